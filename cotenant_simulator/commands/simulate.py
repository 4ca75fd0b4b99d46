"""simulate: one trace, one cluster, several policies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cotenant_simulator.commands.progress import Progress
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import fingerprint, read_trace
from cotenant_simulator.report.json_report import Question, as_json
from cotenant_simulator.report.table import as_table
from cotenant_simulator.run.records import Charges, NodeFailures, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.system_clock import cpu_s
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.core.errors import PolicyError
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import make_policy

_PATH = click.Path(path_type=Path)
_EXIT_UNFINISHED = 1
HOUR_MS = 3_600_000


def _world_options(command: Callable[..., None]) -> Callable[..., None]:
    """What the trace does not say."""
    for option in (
        click.option(
            "--share", type=click.Choice([share.value for share in Share]), default=Share.SAFE.value, show_default=True
        ),
        click.option("--max-slowdown", type=click.FloatRange(0, 1e6), default=1.0, show_default=True),
        click.option("--slowdown", type=click.FloatRange(0, 1e3), help="True slowdown of pairs that nobody measured."),
        click.option("--launch-s", type=click.FloatRange(0, 86_400), default=0.0, show_default=True),
        click.option("--restart-s", type=click.FloatRange(0, 86_400), default=20.0, show_default=True),
        click.option("--checkpoint-s", type=click.FloatRange(0, 86_400), default=10.0, show_default=True),
        click.option("--checkpoint-every-s", type=click.FloatRange(0, 1e7), default=600.0, show_default=True),
        click.option("--node-failure-hours", type=click.FloatRange(0, 1e7), default=0.0, help="Mean time; 0 = never."),
        click.option("--node-repair-s", type=click.FloatRange(1, 1e7), default=1_800.0, show_default=True),
        click.option("--report-every-s", type=click.FloatRange(0, 1e6), default=0.0, help="0 = after changes only."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("trace", type=_PATH)
@click.option("--cluster", default="16x4", show_default=True, help="NODESxGPUS, or a TOML file.")
@click.option("--policies", default="fifo", show_default=True, help="Names, separated by commas.")
@click.option("--parameter", "parameters", multiple=True, help="POLICY.NAME=VALUE of a policy; may be repeated.")
@click.option("--predictions", default="oracle", show_default=True, help="oracle, trained, noise:SIGMA or error:E.")
@click.option("--jobs", type=click.Choice(["none", "all"]), default="none", show_default=True)
@click.option("-o", "--output", type=click.Choice(["json", "table"]), default="table", show_default=True)
@click.option("--timings", type=_PATH, help="Write CPU seconds to this file.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@_world_options
@click.pass_context
def simulate(context: click.Context, /, **flags: Any) -> None:  # noqa: ANN401 (click hands over what was declared)
    """Run the workload TRACE under policies and say what became of its jobs.

    Exits with 1 when jobs did not finish; they are counted on stderr.
    """
    began_s = cpu_s()
    consent = Consent(share=Share(flags["share"]), max_slowdown_ratio=flags["max_slowdown"])
    trace = read_trace(flags["trace"], consent)
    cluster = read_cluster(flags["cluster"], device=trace.device)
    truth = trace.truth if flags["slowdown"] is None else replace(trace.truth, slowdown_ratio=flags["slowdown"])
    trace = replace(trace, truth=replace(truth, speeds=cluster.speeds))
    predictor = TruthPredictor(trace.truth, parse_errors(flags["predictions"], seed=flags["seed"]))
    results: list[RunResult] = []
    timings: dict[str, object] = {"read_cpu_s": cpu_s() - began_s}
    for settings in _settings(flags):
        run_began_s = cpu_s()
        with Progress(f"{settings.policy}", len(trace.jobs)) as progress:
            simulation = Simulation(trace, cluster, predictor, settings, advance=progress.advance)
            results.append(simulation.run())
        timings[settings.policy] = {"cpu_s": cpu_s() - run_began_s, "events": results[-1].events}
    question = Question(
        trace_path=str(flags["trace"]),
        trace_sha256=fingerprint(flags["trace"]),
        trace_jobs=len(trace.jobs),
        cluster=flags["cluster"],
        engine_rules="live",
        predictions=flags["predictions"],
        seed=flags["seed"],
        has_jobs=flags["jobs"] == "all",
    )
    report = as_json(question, results)
    click.echo(json.dumps(report, indent=1) if flags["output"] == "json" else as_table(report), nl=True)
    if flags["timings"] is not None:
        flags["timings"].write_text(json.dumps(timings, indent=1) + "\n", encoding="utf-8")
    unfinished = {result.policy: result.unfinished for result in results if result.unfinished}
    for policy, count in unfinished.items():
        sys.stderr.write(f"{policy}: {count} of {len(trace.jobs)} jobs did not finish\n")
    if unfinished:
        context.exit(_EXIT_UNFINISHED)


def _settings(flags: dict[str, Any]) -> list[RunSettings]:
    names = [name.strip() for name in flags["policies"].split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy; write for instance --policies fifo,srtf")
    charges = Charges(
        launch_ms=round(flags["launch_s"] * 1_000),
        restart_ms=round(flags["restart_s"] * 1_000),
        checkpoint_ms=round(flags["checkpoint_s"] * 1_000),
        checkpoint_interval_ms=round(flags["checkpoint_every_s"] * 1_000),
    )
    failures = NodeFailures(
        mean_up_ms=round(flags["node_failure_hours"] * HOUR_MS), repair_ms=round(flags["node_repair_s"] * 1_000)
    )
    parameters = _parameters(names, flags["parameters"])
    for name in names:
        try:
            make_policy(name, parameters[name])
        except PolicyError as error:
            raise InputError(str(error)) from error
    return [
        RunSettings(
            policy=name,
            parameters=parameters[name],
            seed=flags["seed"],
            charges=charges,
            failures=failures,
            report_interval_ms=round(flags["report_every_s"] * 1_000),
        )
        for name in names
    ]


def _parameters(names: list[str], texts: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """Sort POLICY.NAME=VALUE by policy; values are JSON, or else text."""
    found: dict[str, dict[str, object]] = {name: {} for name in names}
    for text in texts:
        place, is_set, value = text.partition("=")
        policy, _, name = place.partition(".")
        if not is_set or not name or policy not in found:
            raise InputError(f"--parameter {text!r} is not POLICY.NAME=VALUE of one of {', '.join(names)}")
        try:
            found[policy][name] = json.loads(value)
        except json.JSONDecodeError:
            found[policy][name] = value
    return found

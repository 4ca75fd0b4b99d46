"""simulate: one trace, one cluster, several policies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.option_types import FiniteRange
from cotenant_simulator.errors import InputError
from cotenant_simulator.system_clock import cpu_s
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO

_PATH = click.Path(path_type=Path)
_EXIT_UNFINISHED = 1
BASELINE = "fifo"
"""What the programs' own policy is compared with by default."""
CLUSTER = "16x4"
"""Where a trace that names no machines runs by default."""


def _world_options(command: Callable[..., None]) -> Callable[..., None]:
    """Settings that the trace does not contain."""
    for option in (
        click.option("--report-every-s", type=FiniteRange(0, 1e6), default=0.0, help="0 = after changes only."),
        click.option("--node-repair-s", type=FiniteRange(1, 1e7), default=1_800.0, show_default=True),
        click.option("--node-failure-hours", type=FiniteRange(0, 1e7), default=0.0, help="Mean time; 0 = never."),
        click.option("--checkpoint-every-s", type=FiniteRange(0, 1e7), default=600.0, show_default=True),
        click.option("--checkpoint-s", type=FiniteRange(0, 86_400), default=10.0, show_default=True),
        click.option("--restart-s", type=FiniteRange(0, 86_400), default=20.0, show_default=True),
        click.option("--prepared-restart-s", type=FiniteRange(0, 86_400), help="Instead, where a move is prepared."),
        click.option("--prepare-s", type=FiniteRange(0, 86_400), default=0.0, help="While the job trains on."),
        click.option("--launch-s", type=FiniteRange(0, 86_400), default=0.0, show_default=True),
        click.option("--slowdown", type=FiniteRange(0, 900), help="True slowdown of unmeasured pairs."),
        click.option(
            "--max-slowdown",
            type=FiniteRange(0, 1e6),
            default=DEFAULT_MAX_SLOWDOWN_RATIO,
            show_default=True,
            help="Accepted when co-located, default of live jobs; 1 = twice as long.",
        ),
        click.option("--tenants", type=_PATH, help="TOML file with quotas and weights of tenants."),
        click.option("--no-trials", is_flag=True, help="No job shares on trial."),
        click.option("--learn-speeds", is_flag=True, help="Policies see measured step times, as on a live cluster."),
        click.option("--share", type=click.Choice(["never", "safe", "any"]), default="safe", show_default=True),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("trace", type=_PATH)
@click.option("--cluster", help=f"NODESxGPUS, a TOML file, or own.  [default: {CLUSTER}; own for event logs]")
@click.option(
    "--policies", help=f"Names, separated by commas.  [default: {BASELINE},{DEFAULT_POLICY}; {BASELINE} under pollux]"
)
@click.option("--parameter", "parameters", multiple=True, help="POLICY.NAME=VALUE of a policy; may be repeated.")
@click.option("--predictions", default="oracle", show_default=True, help="oracle, trained, noise:SIGMA or error:E.")
@click.option("--jobs", type=click.Choice(["none", "all"]), default="none", show_default=True)
@click.option("-o", "--output", type=click.Choice(["json", "table"]), default="table", show_default=True)
@click.option("--report", type=_PATH, help="Write a page for the browser to this file.")
@click.option("--timings", type=_PATH, help="Write CPU seconds to this file.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True)
@click.option("--engine-rules", type=click.Choice(["live", "pollux"]), default="live", show_default=True)
@click.option(
    "--profiles", type=_PATH, help="Folder of Pollux' profiles; by default the nearest `profiles` above TRACE."
)
@click.option("--models", type=_PATH, help="State folder of the predictor, for trained; by default the user's own.")
@click.option("--graphs", type=_PATH, help="Folder of SHA256.onnx files, for trained.")
@_world_options
@click.pass_context
def simulate(context: click.Context, /, **flags: Any) -> None:  # noqa: ANN401 (click hands over what was declared)
    """Run the workload TRACE under policies and report what became of its jobs.

    Exits with 1 when jobs did not finish; they are counted on stderr.
    """
    names = [name.strip() for name in _policies(flags).split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy; write for instance --policies fifo,srtf")
    for path in (flags["report"], flags["timings"]):
        _require_place(path)
    timings: dict[str, object] = {}
    run = _run_pollux if flags["engine_rules"] == "pollux" else _run_live
    report = run(flags, names, timings)
    _print(flags, report)
    if flags["timings"] is not None:
        _write(flags["timings"], json.dumps({**timings, "process_cpu_s": cpu_s()}, indent=1) + "\n")
    if _tell_unfinished(report):
        context.exit(_EXIT_UNFINISHED)


def _policies(flags: dict[str, Any]) -> str:
    if flags["policies"] is not None:
        return str(flags["policies"])
    return BASELINE if flags["engine_rules"] == "pollux" else f"{BASELINE},{DEFAULT_POLICY}"


def _run_live(flags: dict[str, Any], names: list[str], timings: dict[str, object]) -> Mapping[str, Any]:
    # Imported here: runs under Pollux' rules need none of it and promise to start in a fraction of a second.
    from cotenant_simulator.commands.live_run import run_live

    return run_live(flags, names, timings)


def _run_pollux(flags: dict[str, Any], names: list[str], timings: dict[str, object]) -> Mapping[str, Any]:
    from cotenant_simulator.commands.plugged_rules import run_plugged
    from cotenant_simulator.pollux_rules.entry_point import run_pollux_rules

    return run_plugged(run_pollux_rules, flags, names, timings, cluster=CLUSTER)


def _print(flags: dict[str, Any], report: Mapping[str, Any]) -> None:
    if flags["output"] == "json":
        click.echo(json.dumps(report, indent=1))
    else:
        from cotenant_simulator.report.table import as_table

        click.echo(as_table(report))


def _require_place(path: Path | None) -> None:
    """Refuses before the run what could not be written after it."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise InputError(f"{path} cannot be written; name a file in a folder that exists and may be written to")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}; name a file in a folder that exists") from error


def _tell_unfinished(report: Mapping[str, Any]) -> bool:
    found = False
    for policy in report["policies"]:
        missing = policy["jobs_submitted"] - policy["jobs_finished"]
        if missing:
            found = True
            held = ", ".join(f"{code} {count}" for code, count in policy["held_reasons"].items())
            why = f"; what jobs were first held for: {held}" if held else ""
            sys.stderr.write(f"{policy['policy']}: {missing} of {policy['jobs_submitted']} jobs did not finish{why}\n")
    return found

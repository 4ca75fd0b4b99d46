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
from cotenant.option_types import FiniteRange, Integers
from cotenant.system_clock import cpu_s
from cotenant_simulator.errors import InputError
from cotenant_simulator.report.text_file import write_text
from cotenant_simulator.truth.cluster import DEFAULT_CLUSTER
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO

_PATH = click.Path(path_type=Path)
_EXIT_UNFINISHED = 1
BASELINE = "fifo"
"""What the programs' own policy is compared with by default."""
_SEEDS_MAX = 1_000


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
        click.option("--speedup-power", type=FiniteRange(0, 1), default=0.8, show_default=True),
        click.option(
            "--gpu-counts", type=Integers(), default="", help="That all jobs allow; n are n^POWER times as fast as one."
        ),
        click.option("--measured", type=_PATH, help="Folder of measured jobs; each job is taken for one, by the seed."),
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


@click.command(
    epilog="Example:  cotenant simulate jobs.csv --cluster 4x4 --policies fifo,sjf_bsbf --report report.html"
)
@click.argument("trace", type=_PATH)
@click.option("--cluster", help=f"NODESxGPUS, a TOML file, or own.  [default: {DEFAULT_CLUSTER}; own for event logs]")
@click.option(
    "--policies", help=f"Names, separated by commas.  [default: {BASELINE},{DEFAULT_POLICY}; {BASELINE} under pollux]"
)
@click.option("--parameter", "parameters", multiple=True, help="POLICY.NAME=VALUE of a policy; may be repeated.")
@click.option(
    "--predictions", default="oracle", show_default=True, help="oracle, trained, held-out, noise:SIGMA or error:E."
)
@click.option("--jobs", type=click.Choice(["none", "all"]), default="none", show_default=True, help="List all jobs.")
@click.option(
    "-o", "--output", type=click.Choice(["json", "table", "csv", "parquet"]), default="table", show_default=True
)
@click.option("--report", type=_PATH, help="Write a page for the browser to this file.")
@click.option("--timings", type=_PATH, help="Write CPU seconds to this file.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of all that is drawn.")
@click.option(
    "--seeds",
    type=click.IntRange(1, _SEEDS_MAX),
    default=1,
    show_default=True,
    help="Run so many seeds, from --seed on: means with 95 % intervals.",
)
@click.option("--engine-rules", type=click.Choice(["live", "pollux"]), default="live", show_default=True)
@click.option(
    "--profiles", type=_PATH, help="Folder of Pollux' profiles; by default the nearest `profiles` above TRACE."
)
@click.option("--models", type=_PATH, help="State folder of the predictor, for trained and held-out.")
@click.option("--graphs", type=_PATH, help="Folder of SHA256.onnx files, for trained.")
@_world_options
@click.pass_context
def simulate(context: click.Context, /, **flags: Any) -> None:  # noqa: ANN401 (click hands over what was declared)
    """Run the workload TRACE under policies and report what became of its jobs.

    Exits with 1 when jobs did not finish; they are counted on stderr.
    """
    names = list(dict.fromkeys(name.strip() for name in _policies(flags).split(",") if name.strip()))
    if not names:
        raise InputError("--policies names no policy; write for instance --policies fifo,srtf")
    for path in (flags["report"], flags["timings"]):
        _require_place(path)
    _require_reader(flags["output"])
    timings: dict[str, object] = {}
    run = _run_pollux if flags["engine_rules"] == "pollux" else _run_live
    report = run(flags, names, timings)
    _print(flags, report)
    if flags["timings"] is not None:
        write_text(flags["timings"], json.dumps({**timings, "process_cpu_s": cpu_s()}, indent=1) + "\n")
    if _has_unfinished(report):
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

    return run_plugged(run_pollux_rules, flags, names, timings, cluster=DEFAULT_CLUSTER)


def _print(flags: dict[str, Any], report: Mapping[str, Any]) -> None:
    if flags["output"] == "json":
        click.echo(json.dumps(report, indent=1))
        return
    # Imported here: JSON needs none of it.
    from cotenant_simulator.commands.printed_report import as_bytes, as_text

    if flags["output"] == "parquet":
        click.echo(as_bytes(report, has_jobs=flags["jobs"] == "all"), nl=False)
    else:
        click.echo(as_text(report, form=flags["output"], has_jobs=flags["jobs"] == "all").rstrip("\n"))


def _require_reader(output: str) -> None:
    """Refuses before the run what no terminal can show after it."""
    if output == "parquet" and sys.stdout.isatty():
        raise InputError("-o parquet is for a file; write for instance -o parquet > jobs.parquet, or -o csv")


def _require_place(path: Path | None) -> None:
    """Refuses before the run what could not be written after it."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise InputError(f"{path} cannot be written; name a file in a folder that exists and may be written to")


def _has_unfinished(report: Mapping[str, Any]) -> bool:
    runs = report.get("runs") or report["policies"]
    return any(run["jobs_submitted"] != run["jobs_finished"] for run in runs)

"""shadow: what sharing would have saved, from accounting, monitoring, observed windows or a trace. Changes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.option_types import FiniteRange
from cotenant_simulator.commands.simulate import BASELINE
from cotenant_simulator.report.text_file import write_text
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="Example:  cotenant shadow --sacct sacct.txt --cluster 4x8 --measured collected --report shadow.html"
)
@click.option("--sacct", type=_PATH, help="What sacct wrote with --parsable2 (docs/slurm.md has the commands).")
@click.option("--dcgm", type=_PATH, help="Prometheus' answer about the series of DCGM's exporter.")
@click.option("--ray-tasks", type=_PATH, help="What ray list tasks --detail --format json wrote.")
@click.option("--observed", type=_PATH, help="What cotenant observe -o json wrote.")
@click.option("--trace", type=_PATH, help="A trace of docs/simulate.md instead; its jobs start when submitted.")
@click.option("--profiles", type=_PATH, help="Folder of Pollux' profiles, for a trace of that family.")
@click.option(
    "--measured",
    type=_PATH,
    required=True,
    help="Folder of measured jobs (solo.csv, pairs.csv): each past job is taken for one of them.",
)
@click.option("--cluster", required=True, help="The GPUs that the jobs had: NODESxGPUS, or a TOML file.")
@click.option("--gpu-memory-gib", type=FiniteRange(0.1, 10_000), default=16.0, show_default=True)
@click.option("--policy", default=DEFAULT_POLICY, show_default=True, help="That shares.")
@click.option(
    "--max-slowdown", type=FiniteRange(0, 1e6), default=DEFAULT_MAX_SLOWDOWN_RATIO, show_default=True, help="Accepted."
)
@click.option("--error", type=FiniteRange(0, 0.99), default=0.2, show_default=True, help="Of predictions, either way.")
@click.option("--seeds", type=click.IntRange(2, 1_000), default=20, show_default=True, help="Draws of the demands.")
@click.option("-o", "--output", type=click.Choice(["json", "table"]), default="table", show_default=True)
@click.option("--report", type=_PATH, help="Write a page for the browser to this file.")
def shadow(
    *,
    sacct: Path | None,
    dcgm: Path | None,
    ray_tasks: Path | None,
    observed: Path | None,
    trace: Path | None,
    profiles: Path | None,
    measured: Path,
    cluster: str,
    gpu_memory_gib: float,
    policy: str,
    max_slowdown: float,
    error: float,
    seeds: int,
    output: str,
    report: Path | None,
) -> None:
    """Report day by day what sharing GPUs would have saved, how likely, and at what cost.

    What past jobs demanded is in no accounting: it is drawn from measured jobs, once per seed, and every figure has the
    least and the most of all seeds. DCGM's series and observed windows tell utilization and memory; then those count.
    """
    # Imported here: other verbs need not pay for what simulates.
    import cotenant_simulator.commands.shadow_draws as draws
    from cotenant_simulator.readers.measured_jobs import read_measured_jobs
    from cotenant_simulator.readers.trace_file import fingerprint
    from cotenant_simulator.report.shadow_page import as_page, as_text
    from cotenant_simulator.report.shadow_report import shadow_report

    sources = {"--sacct": sacct, "--dcgm": dcgm, "--ray-tasks": ray_tasks, "--observed": observed, "--trace": trace}
    table = draws.read_past_jobs(sources, profiles)
    path, known = next(one for one in sources.values() if one is not None), read_measured_jobs(measured)
    machines = draws.read_machines(cluster, known.device, gpu_memory_gib)
    warnings = draws.doubts(table, machines) if trace is None else []  # a trace has no starts of its own
    sys.stderr.write("".join(f"warning: {text}\n" for text in warnings))
    runs = draws.simulate_draws(
        table.jobs, known, machines, policy=policy, max_slowdown_ratio=max_slowdown, error=error, seeds=seeds
    )
    found = shadow_report(
        runs,
        past=table,
        about={
            "path": str(path),
            "sha256": fingerprint(path),
            "measured": str(measured),
            "device": known.device,
            "cluster": machines.name,
            "policy": policy,
            "exclusive_policy": BASELINE,
            "max_slowdown_ratio": max_slowdown,
            "prediction_error_ratio": error,
            "seeds": seeds,
        },
        warnings=warnings,
    )
    if report is not None:
        write_text(report, as_page(found))
    click.echo(json.dumps(found, indent=1) if output == "json" else as_text(found))

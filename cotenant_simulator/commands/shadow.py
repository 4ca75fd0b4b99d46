"""shadow: what sharing would have saved, from an accounting table or a trace. Changes nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import click

from cotenant.default_policy import DEFAULT_POLICY
from cotenant.option_types import FiniteRange
from cotenant_simulator.commands.simulate import BASELINE
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.accounting import Accounting, PastJob, read_accounting
from cotenant_simulator.readers.assumed_jobs import assume
from cotenant_simulator.readers.measured_jobs import read_measured_jobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import fingerprint, read_trace
from cotenant_simulator.report.shadow_page import as_page, as_text
from cotenant_simulator.report.shadow_report import ShadowRun, shadow_report
from cotenant_simulator.run.records import RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import GIB, Trace
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO

_PATH = click.Path(path_type=Path)
JOBS_MAX = 100_000


@click.command(
    epilog="Example:  cotenant shadow --sacct sacct.txt --cluster 4x8 --measured collected --report shadow.html"
)
@click.option("--sacct", type=_PATH, help="What sacct wrote with --parsable2 (docs/slurm.md has the command).")
@click.option("--trace", type=_PATH, help="A trace of docs/simulate.md instead; its jobs start when submitted.")
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
    trace: Path | None,
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
    least and the most of all seeds.
    """
    table, path = _past_jobs(sacct, trace), sacct or trace or Path()
    known = read_measured_jobs(measured)
    machines = _machines(cluster, known.device, gpu_memory_gib)
    runs = []
    for seed in range(seeds):
        sys.stderr.write(f"\rseed {seed + 1} of {seeds}")
        drawn = assume(table.jobs, known, Consent(max_slowdown_ratio=max_slowdown), seed=seed)
        runs.append(_run(drawn, machines, policy=policy, error=error, seed=seed))
    sys.stderr.write("\n")
    found = shadow_report(
        runs,
        past_jobs=table.jobs,
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
        skipped=table.skipped,
    )
    if report is not None:
        _write(report, as_page(found))
    click.echo(json.dumps(found, indent=1) if output == "json" else as_text(found))


def _past_jobs(sacct: Path | None, trace: Path | None) -> Accounting:
    if (sacct is None) == (trace is None):
        raise InputError("name one of --sacct FILE and --trace FILE")
    table = read_accounting(sacct) if sacct is not None else _of_trace(trace or Path())
    if len(table.jobs) > JOBS_MAX:
        raise InputError(f"{len(table.jobs):,} jobs are more than {JOBS_MAX:,}; ask about fewer days")
    return table


def _of_trace(path: Path) -> Accounting:
    """Return the jobs of a trace as if each had got its GPUs at once."""
    found = read_trace(path, Consent())
    return Accounting(jobs=tuple(_past_job(found, place) for place in range(len(found.jobs))), skipped=found.skipped)


def _past_job(trace: Trace, place: int) -> PastJob:
    job = trace.jobs[place]
    kind = trace.truth.kind(job.request.key, trace.device)
    step_ms = kind.step_ms(gpus=job.request.gpus) if kind is not None else 1_000.0
    began_ms = job.submitted_at_ms
    return PastJob(
        job_id=job.request.job_id,
        name=job.request.key,
        user=job.request.tenant,
        gpus=job.request.gpus,
        submitted_at_ms=began_ms,
        started_at_ms=began_ms,
        ended_at_ms=began_ms + max(round(job.request.steps_total * step_ms), 1),
    )


def _machines(text: str, device: str, memory_gib: float) -> Cluster:
    """Return the cluster; the memory of GPUs stands in the flag unless there is a file."""
    found = read_cluster(text, device=device)
    if text.endswith(".toml"):
        return found
    nodes = [
        replace(node, gpus=tuple(replace(gpu, memory_bytes=int(memory_gib * GIB)) for gpu in node.gpus))
        for node in found.nodes
    ]
    return replace(found, nodes=nodes)


def _run(trace: Trace, machines: Cluster, *, policy: str, error: float, seed: int) -> ShadowRun:
    def simulated(name: str, predictions: str) -> RunResult:
        predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=seed))
        settings = RunSettings(policy=name, seed=seed, keeps_history=True)
        return Simulation(trace, machines, predictor, settings).run()

    predictions = f"noise:{error:g}" if error else "oracle"
    return ShadowRun(exclusive=simulated(BASELINE, "oracle"), shared=simulated(policy, predictions))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}; name a file in a folder that exists") from error

"""What every policy orders on workloads that the repository holds: one digest per policy and workload.

Equal digests: the same jobs were launched and stopped at the same instants on the same GPUs with the same limits, and
those that waited waited for the same reasons.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.papers import optimus
from benchmarks.papers.colocation_workloads import draw_testbed, settings_of
from benchmarks.papers.sharing_runs import committed_mix
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event

OWN_WORKLOAD = Path(__file__).resolve().parent / "version_0_1" / "mixed.toml"
"""Kept here, so that an example that changes changes no golden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs that the repository holds or draws, the machines for them, and how they are predicted.

    Attributes:
        draw: Makes the trace; the first jobs of it are used, since all of them would take minutes.
        cluster: NODESxGPUS; from 64 GPUs on policies look at them as columns.
        predictions: As `cotenant simulate --predictions`.
    """

    draw: Callable[[], Trace]
    cluster: str
    jobs_max: int
    predictions: str = "oracle"


def _mixed(max_slowdown_ratio: float) -> Trace:
    consent = Consent(max_slowdown_ratio=max_slowdown_ratio)
    return read_trace(OWN_WORKLOAD, consent)


WORKLOADS = {
    "mixed_on_8": Workload(draw=partial(_mixed, 1.0), cluster="2x4", jobs_max=80),
    "mixed_on_64": Workload(draw=partial(_mixed, 0.3), cluster="16x4", jobs_max=120),
    "mixed_with_errors": Workload(draw=partial(_mixed, 1.0), cluster="2x4", jobs_max=50, predictions="noise:0.5"),
    "horus_testbed": Workload(
        draw=lambda: draw_testbed(settings_of("testbed"), "W-Small", 0), cluster="3x4", jobs_max=60
    ),
    "optimus": Workload(draw=lambda: optimus.draw_workload(0), cluster="4x2", jobs_max=5),
    "sjf_bsbf_physical": Workload(
        draw=lambda: committed_mix("sjf_bsbf_physical", 0), cluster="4x4", jobs_max=30, predictions="error:0.3"
    ),
}

AS_BEFORE: Mapping[str, Mapping[str, object]] = {"ojpap": {"unshare": False}}
"""Parameters by which a policy leaves out what it did not do when the goldens were written."""


def orders_digest(name: str, policy: str) -> dict[str, object]:
    """Run the first jobs of a workload under a policy.

    Returns:
        The digest of all orders, how many there were, how many jobs finished, and first reasons to wait.
    """
    workload = WORKLOADS[name]
    trace = workload.draw()
    trace = replace(trace, jobs=trace.jobs[: workload.jobs_max])
    cluster = read_cluster(workload.cluster, device=trace.device)
    predictor = TruthPredictor(trace.truth, parse_errors(workload.predictions, seed=0))
    digest, count = hashlib.sha256(), 0

    def note(event: Event, commands: Sequence[Command]) -> None:
        nonlocal count
        for order in commands:
            line = _order_line(order)
            if line:
                count += 1
                digest.update(f"{event.at_ms} {line}\n".encode())

    settings = RunSettings(policy=policy, parameters=AS_BEFORE.get(policy, {}))
    result = Simulation(trace, cluster, predictor, settings, observe=note).run()
    return {
        "orders": count,
        "digest": digest.hexdigest()[:16],
        "finished": sum(job.is_finished for job in result.jobs),
        "held_reasons": dict(sorted(result.held_reasons.items())),
    }


def _order_line(order: Command) -> str:
    """An order in words that no renaming of classes or fields touches; empty for questions and timers."""
    if isinstance(order, LaunchJob):
        gpu_ids = [[part.gpu_id, part.rank] for part in order.assignments]
        sizes = [order.micro_batch_size, order.accumulation_steps, order.memory_limit_bytes, order.steps_done]
        return json.dumps(["launch", order.job_id, order.attempt, order.node_id, gpu_ids, sizes])
    if isinstance(order, StopJob):
        return json.dumps(["stop", order.job_id, order.attempt, order.checkpoint, order.cause])
    return ""

"""Short runs of the simulator: every setting has a default, so that a test states only what matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import OverheadCosts, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import GIB, Trace, TraceJob
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event
from scheduler_service.core.records import JobRequest

FREE_CHANGES = OverheadCosts(launch_ms=0, restart_ms=0, checkpoint_ms=0, checkpoint_interval_ms=0)
"""Nothing but work takes time."""


def drawn(*, seed: int = 0, **changes: Any) -> Trace:
    """A drawn workload; the fields are those of the TOML file."""
    data: dict[str, Any] = {"jobs": 50, "classes": [{"step_ms": 1.0}], **changes}
    return draw(Path("drawn.toml"), data, Consent(max_slowdown_ratio=1.0), seed=seed)


def noting_orders(found: list[object]) -> Callable[[Event, Sequence[Command]], None]:
    """Return what to observe a run with, so that its launches and stops are noted in order."""

    def note(event: Event, commands: Sequence[Command]) -> None:
        for order in commands:
            if isinstance(order, LaunchJob):
                found.append((event.at_ms, order.job_id, tuple(part.gpu_id for part in order.assignments)))
            elif isinstance(order, StopJob):
                found.append((event.at_ms, order.job_id))

    return note


def trace_job(job_id: str, *, at_s: float = 0.0, seconds: float = 100.0, gpus: int = 1, **changes: Any) -> TraceJob:
    """A job of the kind `kind` that runs so long alone, in steps of one second."""
    fields = {"key": "kind", "max_slowdown_ratio": 10.0, "restart_limit": 1_000, "global_batch_size": gpus, **changes}
    request = JobRequest(job_id=job_id, gpus=gpus, steps_total=round(seconds), **fields)
    return TraceJob(submitted_at_ms=round(at_s * 1_000), request=request)


def trace_of(
    *jobs: TraceJob, slowdown_ratio: float = 0.5, kinds: Mapping[str, Kind] | None = None, **changes: Any
) -> Trace:
    """A trace of these jobs; every kind takes one second a step on any number of GPUs and 6 of 16 GiB."""
    known = kinds if kinds is not None else {key: kind() for key in {job.request.key for job in jobs}}
    table = {(key, EVERY_DEVICE): one for key, one in known.items()}
    return Trace(format="test", jobs=jobs, truth=GroundTruth(kinds=table, slowdown_ratio=slowdown_ratio, **changes))


def kind(**changes: Any) -> Kind:
    """A kind of job that takes one second a step on up to eight GPUs."""
    return Kind(
        **{"step_ms_by_gpus": dict.fromkeys(range(1, 9), 1_000.0), "memory_bytes": 6 * GIB, "batch": 1, **changes}
    )


def simulation(
    trace: Trace, *, cluster: str | Cluster = "1x1", predictions: str = "oracle", observe: Any = None, **settings: Any
) -> Simulation:
    """A run that has not begun; changes are free unless stated."""
    machines = read_cluster(cluster, device=trace.device) if isinstance(cluster, str) else cluster
    reported = RunSettings(**{"policy": "fifo", "charges": FREE_CHANGES, **settings})
    predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=reported.seed))
    return Simulation(trace, machines, predictor, reported, observe=observe)


def run(trace: Trace, **settings: Any) -> RunResult:
    """A finished run."""
    return simulation(trace, **settings).run()


def ends_s(result: RunResult) -> dict[str, float]:
    """When each job ended, in s."""
    return {job.job_id: job.finished_at_ms / 1_000 for job in result.jobs}


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)

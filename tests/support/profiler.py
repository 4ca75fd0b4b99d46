"""Builders and a fake bench for the profiler's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotenant_profiler.bench import Load, Measurement
from cotenant_profiler.campaign import Campaign, Method, parse_campaign
from cotenant_profiler.errors import WorkerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import Record
from cotenant_profiler.plan import Kind

LENET = JobSpec(architecture="lenet", batch=32)
LENET_WAIT = JobSpec(architecture="lenet", batch=32, input_wait_ratio=0.6)
RECOMMENDER = JobSpec(architecture="recommender", batch=64)

SOLO_STEP_MS = {"lenet": 6.0, "recommender": 4.0}


def small_document(**changes: Any) -> dict[str, Any]:
    """A campaign of two architectures and one job with a wait, as parsed TOML."""
    document: dict[str, Any] = {
        "name": "test",
        "device": "cpu-standin",
        "seed": 3,
        "method": {"warm_up_ms": 100, "warm_in_ms": 100, "window_ms": 500, "tail_ms": 50},
        "core_jobs": {
            "lenet": {"architecture": "lenet", "batch": 32},
            "recommender": {"architecture": "recommender", "batch": 64},
            "lenet_wait": {"architecture": "lenet", "batch": 32, "input_wait_ratio": 0.6},
        },
        "solo": {"repeats": 2},
        "pairs": {"repeated": 1, "repeats": 2},
    }
    return {**document, **changes}


def small_campaign(**changes: Any) -> Campaign:
    """The campaign of `small_document`."""
    return parse_campaign(small_document(**changes))


class FakeBench:
    """Answers at once: steps take as long as the jobs on the core are many, waits come on top."""

    def __init__(
        self,
        *,
        foreign_ratios: Sequence[float] = (),
        failing: Sequence[JobSpec] = (),
        speed_change: float = 1.0,
    ) -> None:
        self._speed_change = speed_change
        self._foreign_ratios = list(foreign_ratios)
        self._failing = set(failing)
        self.measured: list[tuple[JobSpec, ...]] = []
        self.references: list[tuple[JobSpec, ...]] = []
        self.closed = 0

    def measure(self, loads: Sequence[Load], references: Sequence[Load], method: Method) -> Measurement:
        self.measured.append(tuple(load.job for load in loads))
        self.references.append(tuple(load.job for load in references))
        if self._failing & {load.job for load in loads}:
            raise WorkerError("the worker died")
        foreign_ratio = self._foreign_ratios.pop(0) if self._foreign_ratios else 0.0
        figures = tuple(
            step_figures(len(loads) * SOLO_STEP_MS[load.job.architecture] + load.wait_ms, 1 - load.job.input_wait_ratio)
            for load in loads
        )
        alone_ms = [SOLO_STEP_MS[load.job.architecture] + load.wait_ms for load in references]
        references_ms = tuple((time_ms, time_ms * self._speed_change) for time_ms in alone_ms)
        return Measurement(
            figures=figures, references_ms=references_ms, foreign_ratio=foreign_ratio, elsewhere_ratio=0.1
        )

    def measure_memory(self, job: JobSpec, method: Method) -> Measurement:
        figures = {"peak_bytes": 1_000_000.0 * job.batch, "baseline_bytes": 2e8}
        return Measurement(figures=(figures,))

    def measure_trace(self, load: Load, method: Method) -> Measurement:
        sample = {"offset_ms": 1.0, "allocated_bytes": 5e6, "reserved_bytes": 6e6}
        return Measurement(figures=(sample,) * method.trace_samples)

    def close(self) -> None:
        self.closed += 1


def step_figures(step_ms: float, utilization_ratio: float = 1.0) -> dict[str, float]:
    """Figures of a window in which every step took `step_ms`."""
    return {
        "steps": 100,
        "step_ms_mean": step_ms,
        "step_ms_p50": step_ms,
        "step_ms_p95": step_ms,
        "utilization_ratio": utilization_ratio,
        "rate_check_ratio": 1.0,
    }


def record(
    kind: Kind, *jobs: JobSpec, step_ms: float | Sequence[float] = 10.0, alone_ms: float = 10.0, **changes: Any
) -> Record:
    """An accepted record; `step_ms` is one value or one per job, `alone_ms` the time of every reference."""
    times_ms = [step_ms] * len(jobs) if isinstance(step_ms, int | float) else step_ms
    values: dict[str, Any] = {
        "run_id": f"{kind}-{'-'.join(job.name for job in jobs)}",
        "attempt": 0,
        "kind": kind,
        "jobs": jobs,
        "repeat": 0,
        "status": "ok",
        "figures": tuple(step_figures(time_ms) for time_ms in times_ms),
        "waits_ms": (0.0,) * len(jobs),
        "references_ms": () if kind is Kind.MEMORY else ((alone_ms, alone_ms),) * len(jobs),
    }
    return Record(**{**values, **changes})

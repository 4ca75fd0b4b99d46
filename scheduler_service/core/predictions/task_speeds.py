"""Step times of jobs with parameter servers over numbers of workers and servers, from what was measured at some.

What was measured is what is known. From three pairs of numbers on the predictor fits Eq. 4 to them, which tells other
numbers of workers, or of servers, where at least two of them were measured. Nothing is foreseen of servers: a number
of them that is neither measured nor fitted counts as the nearest one that is, so that nothing is gained by it.

Source:
    Optimus, section 3.2, Eq. 4: synchronous training with w workers and p servers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from scheduler_service.core.records import JobPrediction

Tasks = tuple[int, int]
"""Number of workers, which is that of GPUs, and number of parameter servers."""

PAIRS_MIN: Final = 3
"""Pairs of numbers that must have been measured before a curve is fitted."""
REFIT_RATIO: Final = 0.05
"""A measured step time that moved by more since the fit asks for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpeedFit:
    """A curve over numbers of workers and servers, or the question for one.

    Attributes:
        samples: (workers, servers, step time in ms) that it is fitted to.
        asked: Which numbers it was asked about.
        global_batch_size: Samples of one step over all workers.
        step_ms: The curve at these; empty = none was fitted yet.
        fitted_samples: To how many samples the present curve is fitted.
        error_ratio: Mean of |fitted - measured| / measured over the samples.
        is_asked: An answer is awaited.
    """

    samples: tuple[tuple[int, int, float], ...]
    asked: tuple[Tasks, ...]
    global_batch_size: int
    step_ms: Mapping[Tasks, float] = field(default_factory=dict)
    fitted_samples: int = 0
    error_ratio: float = 0.0
    is_asked: bool = False


def with_task_speeds(
    prediction: JobPrediction, measured: Mapping[Tasks, float], fit: TaskSpeedFit | None
) -> JobPrediction:
    """Return a prediction with the step times of workers and servers that are measured, else fitted."""
    if not measured:
        return prediction
    fitted = fit.step_ms if fit is not None else {}
    return replace(prediction, task_step_ms={**fitted, **measured}, measured_tasks=tuple(sorted(measured)))


def tasks_to_fit(
    measured: Mapping[Tasks, float], workers: Collection[int], servers: Collection[int]
) -> tuple[Tasks, ...]:
    """Return the numbers that a curve through these measurements may tell; none below three of them.

    Args:
        measured: Step times in ms.
        workers: Numbers that jobs may have.
        servers: Numbers that jobs may have.
    """
    if len(measured) < PAIRS_MIN:
        return ()
    seen_workers, seen_servers = ({tasks[place] for tasks in measured} for place in (0, 1))
    asked_workers = {*seen_workers, *(workers if len(seen_workers) > 1 else ())}
    asked_servers = {*seen_servers, *(servers if len(seen_servers) > 1 else ())}
    return tuple((one, other) for one in sorted(asked_workers) for other in sorted(asked_servers))


def needs_task_fit(fit: TaskSpeedFit | None, measured: Mapping[Tasks, float], asked: Collection[Tasks]) -> bool:
    """Say whether a curve is worth asking for: it would tell something, and something is new since the last one."""
    if set(asked) <= set(measured) or (fit is not None and fit.is_asked):
        return False
    if fit is None or not set(asked) <= set(fit.asked):
        return True
    before = {(workers, servers): step_ms for workers, servers, step_ms in fit.samples}
    return any(
        abs(step_ms - before.get(tasks, 0.0)) > REFIT_RATIO * before.get(tasks, 0.0)
        for tasks, step_ms in measured.items()
    )


def task_step_ms_of(prediction: JobPrediction, tasks: Tasks) -> float | None:
    """Return the step time with so many workers and servers in ms: known, else as the module says; None = unknown.

    Another number of workers, beside the same number of servers, takes as many times as long as was foreseen of jobs
    without servers; where nothing was, it is unknown.
    """
    known = prediction.task_step_ms
    if tasks in known or not known:
        return known.get(tasks)
    workers, servers = tasks
    near = min(known, key=lambda one: (abs(one[1] - servers), abs(one[0] - workers), one))
    if near[0] == workers:
        return known[near]
    ratio = _foreseen_ratio(prediction, workers, near[0])
    return known[near] * ratio if ratio else None


def _foreseen_ratio(prediction: JobPrediction, workers: int, known_workers: int) -> float:
    """Return how many times as long a step takes on one number of GPUs as on another, as foreseen; 0 = unknown."""
    whole: dict[int, tuple[int, float]] = {}
    for (gpus, micro_batch_size), step_ms in prediction.step_ms.items():
        whole[gpus] = max(whole.get(gpus, (0, 0.0)), (micro_batch_size, step_ms))
    one, other = whole.get(workers, (0, 0.0))[1], whole.get(known_workers, (0, 0.0))[1]
    return one / other if other > 0 else 0.0

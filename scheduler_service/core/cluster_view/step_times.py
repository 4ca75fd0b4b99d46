"""How long jobs still run alone, from what is predicted of them.

Source:
    The SJF-BSBF paper, Algorithm 1 line 2: L_k = iteration time x remaining iterations. The iteration time at a
    micro-batch (Eq. 7) comes with the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

from scheduler_service.core.cluster_view.capacity import samples_per_gpu
from scheduler_service.core.records import JobPrediction, JobRequest

ELAPSED_LEAST_MS: Final = 60_000.0
ELAPSED_MOST_MS: Final = 7 * 86_400_000.0
"""Between these a job of unknown length is taken to run as long again as it has run."""
RESTART_MS_LEAST: Final = 1_000.0


class StartedJob(Protocol):
    """A job that holds GPUs, as the scheduler keeps it or as a policy sees it."""

    @property
    def request(self) -> JobRequest:
        """What its owner asked for."""

    @property
    def attempt(self) -> int:
        """How often it was started."""

    @property
    def steps_done(self) -> int:
        """Of the whole job."""

    @property
    def solo_step_ms(self) -> float:
        """Of one step alone, as measured; 0 = it was not."""


def restart_ms_of(job: StartedJob, *, started_at_ms: int, move_ms: int, now_ms: int) -> float:
    """Return what a restart costs a job: what it states or was measured, else what its start took up to the first step.

    Args:
        job: The job.
        started_at_ms: When its present attempt began.
        move_ms: What a move was measured to cost it; 0 = never measured.
        now_ms: The present instant.
    """
    is_first = job.attempt == 1 and not move_ms
    start_ms = now_ms - started_at_ms - job.steps_done * job.solo_step_ms if is_first else float(move_ms)
    return max(float(job.request.migration_cost_ms), start_ms, RESTART_MS_LEAST)


def passes_of(request: JobRequest, *, gpus: int, micro_batch_size: int) -> int:
    """Return the passes of one optimizer step when each of `gpus` GPUs takes `micro_batch_size` samples per pass."""
    return -(-samples_per_gpu(request, gpus) // micro_batch_size)


def step_ms_of(
    request: JobRequest, prediction: JobPrediction | None, *, gpus: int, micro_batch_size: int | None = None
) -> float | None:
    """Return the predicted time of one optimizer step in ms, or None when nothing tells.

    A pass of a predicted, larger micro-batch bounds that of a smaller one, as with memory. Where only one GPU is
    predicted, each of `gpus` GPUs does its share of the passes; exchanging gradients then counts as free.

    Args:
        request: The job.
        prediction: What is predicted on the device type.
        gpus: GPUs of the job.
        micro_batch_size: Samples per GPU and pass; None = all at once.
    """
    wanted = samples_per_gpu(request, gpus) if micro_batch_size is None else micro_batch_size
    if prediction is None:
        return None
    count = passes_of(request, gpus=gpus, micro_batch_size=wanted)
    exact_ms = prediction.step_ms.get((gpus, wanted))
    if exact_ms is not None:  # the first of all passes that are large enough
        return exact_ms / count * count
    passes = _passes(request, prediction, gpus, least=wanted)
    return min(passes)[2] * count if passes else None


def steps_ms_of(
    request: JobRequest, prediction: JobPrediction | None, *, gpus: int, micro_batch_sizes: Iterable[int]
) -> dict[int, float | None]:
    """Return the same by micro-batch, for as little work as of one: what counts of the prediction is found once."""
    passes = sorted(_passes(request, prediction, gpus, least=1)) if prediction is not None else []
    found: dict[int, float | None] = {}
    for wanted in micro_batch_sizes:
        first = next((one for one in passes if one[0] >= wanted), None)
        count = passes_of(request, gpus=gpus, micro_batch_size=wanted)
        found[wanted] = first[2] * count if first is not None else None
    return found


_Pass: TypeAlias = tuple[int, bool, float]
"""Micro-batch, whether it was predicted on another number of GPUs, ms; the first that is large enough counts."""


def _passes(request: JobRequest, prediction: JobPrediction, gpus: int, *, least: int) -> list[_Pass]:
    """The predicted passes of at least so many samples that say something about so many GPUs."""
    return [
        (known, counted != gpus, step_ms / passes_of(request, gpus=counted, micro_batch_size=known))
        for (counted, known), step_ms in prediction.step_ms.items()
        if known >= least and counted in (1, gpus)
    ]


def remaining_ms_of(
    request: JobRequest,
    prediction: JobPrediction | None,
    *,
    steps_done: int,
    gpus: int,
    micro_batch_size: int | None = None,
) -> float | None:
    """Return how long a job still runs alone in ms, or None when its steps or their time are unknown."""
    step_ms = step_ms_of(request, prediction, gpus=gpus, micro_batch_size=micro_batch_size)
    if step_ms is None or request.steps_total <= 0:
        return None
    return max(request.steps_total - steps_done, 0) * step_ms


def remaining_by_elapsed_ms(elapsed_ms: float) -> float:
    """Return how long a running job of unknown length is taken to run still: as long as it has run (Lindy's law).

    Args:
        elapsed_ms: Since its attempt started; 0 = it starts now.
    """
    return min(max(float(elapsed_ms), ELAPSED_LEAST_MS), ELAPSED_MOST_MS)

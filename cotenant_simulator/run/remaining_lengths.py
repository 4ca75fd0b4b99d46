"""How long the jobs of a live cluster still run alone: what is known of them, times an error drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from random import Random

from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import JobPrediction, Level
from scheduler_service.core.step_times import step_ms_of
from scheduler_service.core.view import Predictions

MEASURED_SIGMA = 0.05
"""Standard deviation of the logarithm of a step time that was measured alone, relative to what the rest takes."""
PACE_SIGMA = 0.15
"""The same of a pace: steps done over the time that they took, co-located or not."""
PREDICTED_SIGMA = 0.5
"""The same of a prediction that states no range."""
_SIGMAS_OF_RANGE = 2 * 1.6449
"""Standard deviations between the ends of a range of 90 %."""
UNSTARTED_MS = 3_600_000
"""What a job of unknown length that has not run yet is taken for."""
LONGEST_MS = 30 * 86_400_000
_ELAPSED_MIN_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingLength:
    """What is left of one job, alone on its GPUs.

    Attributes:
        steps: At least 1.
        step_ms: Time of each.
        is_known: False: nothing tells how long it runs, and the two are drawn from how long it has run.
    """

    steps: int
    step_ms: float
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingLengths:
    """One draw of what is left of every job.

    Attributes:
        predictions: Of the live cluster.
        seed: Names the draw; None = the expected values without errors.
    """

    predictions: Predictions
    seed: str | None = None

    def of(self, job: JobRecord, *, device: str, gpus: int, now_ms: int) -> RemainingLength:
        """Return what is left of a job on so many GPUs of a type; the error of a job is the same in every attempt."""
        steps = job.request.steps_total - job.steps_done
        known = self._step(job, device, gpus)
        if job.request.steps_total <= 0 or known is None:
            return self._unknown(job, now_ms)
        step_ms, sigma = known
        return RemainingLength(steps=max(steps, 1), step_ms=max(step_ms * self._error(job, sigma), 1e-3))

    def _step(self, job: JobRecord, device: str, gpus: int) -> tuple[float, float] | None:
        """Return the expected step time with the deviation of its logarithm, or None."""
        if job.solo_step_ms > 0:
            return job.solo_step_ms, MEASURED_SIGMA
        prediction = self.predictions.job(job.request.key, device)
        micro_batch_size = job.micro_batch_size or None
        predicted_ms = step_ms_of(job.request, prediction, gpus=gpus, micro_batch_size=micro_batch_size)
        if prediction is not None and predicted_ms is not None:
            return predicted_ms, sigma_of(prediction)
        return (job.step_ms, PACE_SIGMA) if job.step_ms > 0 else None

    def _error(self, job: JobRecord, sigma: float) -> float:
        return 1.0 if self.seed is None else exp(self._random(job).gauss(0.0, sigma))

    def _unknown(self, job: JobRecord, now_ms: int) -> RemainingLength:
        """Draw by how long the job has run: as long again with a chance of one half (Lindy's law)."""
        ran_ms = now_ms - job.started_at_ms if job.holds_gpus else 0
        elapsed_ms = max(ran_ms, _ELAPSED_MIN_MS) if job.attempt else UNSTARTED_MS
        survival = 0.5 if self.seed is None else 1.0 - self._random(job).random()
        left_ms = min(elapsed_ms * (1.0 / survival - 1.0), LONGEST_MS)
        return RemainingLength(steps=1, step_ms=max(left_ms, 1.0), is_known=False)

    def _random(self, job: JobRecord) -> Random:
        return Random(f"{self.seed}/{job.job_id}")


def sigma_of(prediction: JobPrediction) -> float:
    """Return the standard deviation of the logarithm of a predicted step time."""
    lower_ms, upper_ms = prediction.step_ms_lower, prediction.step_ms_upper
    if 0 < lower_ms < upper_ms:
        return min(log(upper_ms / lower_ms) / _SIGMAS_OF_RANGE, 2.0)
    return MEASURED_SIGMA if prediction.level is Level.OBSERVED else PREDICTED_SIGMA

"""How long the jobs of a live cluster still run alone: what is known of them, times an error drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from random import Random

from cotenant_simulator.run.pooled_lengths import Correction, StatedLength, corrections_of
from scheduler_service.core.cluster_view.step_times import step_ms_of
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import JobPrediction, Level

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
        corrections: What predicted step times are corrected by (`of_jobs`).
    """

    predictions: Predictions
    seed: str | None = None
    corrections: Mapping[str, Correction] = field(default_factory=dict)

    @classmethod
    def of_jobs(
        cls, predictions: Predictions, seed: str | None, jobs: Iterable[JobRecord], devices: Iterable[str]
    ) -> RemainingLengths:
        """Return a draw in which jobs tell of each other how much is error in what is predicted of them.

        Args:
            predictions: Of the live cluster.
            seed: Names the draw.
            jobs: That wait or run; those that were measured alone say nothing, for they are no sample of the others.
            devices: Types on which they may run.
        """
        plain, types, stated = cls(predictions=predictions, seed=seed), sorted(set(devices)), dict[str, StatedLength]()
        for job in jobs:
            steps, gpus = job.request.steps_total, job.request.gpus
            if steps <= 0 or job.solo_step_ms > 0:
                continue
            known = next(filter(None, (plain._predicted(job, device, gpus) for device in types)), None)
            if known is not None and known[0] > 0:
                stated.setdefault(_key(job), StatedLength(length_ms=steps * known[0], sigma=known[1], gpus=gpus))
        found = corrections_of(stated, None if seed is None else Random(f"{seed}/lengths"))
        return cls(predictions=predictions, seed=seed, corrections=found)

    def of(self, job: JobRecord, *, device: str, gpus: int, now_ms: int) -> RemainingLength:
        """Return what is left of a job on so many GPUs of a type; the error of a job is the same in every attempt."""
        steps = job.request.steps_total - job.steps_done
        known = self._step(job, device, gpus)
        if job.request.steps_total <= 0 or known is None:
            return self._unknown(job, now_ms)
        step_ms, error = known
        return RemainingLength(steps=max(steps, 1), step_ms=max(step_ms * error, 1e-3))

    def _step(self, job: JobRecord, device: str, gpus: int) -> tuple[float, float] | None:
        """Return the stated step time and what it is off by, or None."""
        if job.solo_step_ms > 0:
            return job.solo_step_ms, self._error(job.job_id, MEASURED_SIGMA)
        predicted = self._predicted(job, device, gpus)
        if predicted is not None:
            key, (step_ms, sigma) = _key(job), predicted
            correction = self.corrections.get(key) or Correction(shift=0.0, sigma=sigma)
            return step_ms, exp(correction.shift) * self._error(key, correction.sigma)
        return (job.step_ms, self._error(job.job_id, PACE_SIGMA)) if job.step_ms > 0 else None

    def _predicted(self, job: JobRecord, device: str, gpus: int) -> tuple[float, float] | None:
        """Return the predicted step time with the deviation of its logarithm, or None."""
        prediction = self.predictions.job(job.request.key, device)
        micro_batch_size = job.shape.micro_batch_size or None
        step_ms = step_ms_of(job.request, prediction, gpus=gpus, micro_batch_size=micro_batch_size)
        return (step_ms, sigma_of(prediction)) if prediction is not None and step_ms is not None else None

    def _error(self, name: str, sigma: float) -> float:
        return 1.0 if self.seed is None else exp(self._random(name).gauss(0.0, sigma))

    def _unknown(self, job: JobRecord, now_ms: int) -> RemainingLength:
        """Draw by how long the job has run: as long again with a chance of one half (Lindy's law)."""
        ran_ms = now_ms - job.times.started_at_ms if job.holds_gpus else 0
        elapsed_ms = max(ran_ms, _ELAPSED_MIN_MS) if job.attempt else UNSTARTED_MS
        survival = 0.5 if self.seed is None else 1.0 - self._random(job.job_id).random()
        left_ms = min(elapsed_ms * (1.0 / survival - 1.0), LONGEST_MS)
        return RemainingLength(steps=1, step_ms=max(left_ms, 1.0), is_known=False)

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")


def _key(job: JobRecord) -> str:
    """Return the name of what is predicted: the tasks of an array are all off by the same error."""
    return job.request.key or job.job_id


def sigma_of(prediction: JobPrediction) -> float:
    """Return the standard deviation of the logarithm of a predicted step time."""
    lower_ms, upper_ms = prediction.step_ms_lower, prediction.step_ms_upper
    if 0 < lower_ms < upper_ms:
        return min(log(upper_ms / lower_ms) / _SIGMAS_OF_RANGE, 2.0)
    return MEASURED_SIGMA if prediction.level is Level.OBSERVED else PREDICTED_SIGMA

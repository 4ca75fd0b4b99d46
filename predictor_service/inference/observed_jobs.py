"""What was measured of jobs alone on each device type, so that a job that ran here is answered by what it did.

A measured step time or utilization is weighed against the prediction by their variances: one short look moves the
answer part of the way, several settle it. Measured memory only ever raises what is promised: a peak that was not
reached yet may still come.

An outcome with a reason for doubt (others used the device, the windows scatter, the run was cancelled or failed) makes
no interval narrower: its peak is the least that the job needs, and nothing else of it is used.

The table is rebuilt from the outcome journal when the service starts. It also knows which jobs differ in batch and
precision only; `related_jobs` corrects one by the others.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, NamedTuple

from cotenant.job_settings import PRECISIONS, JobSettings, JobSettingsError
from predictor_service.features.devices import find_device_type
from predictor_service.inference.observed_pairs import WINDOW_MS_MIN, Observation
from predictor_service.inference.records import Estimate, Level, PairJob
from predictor_service.outcome_journal import PredictionEntry, read_entry_settings
from predictor_service.profile_store.measurement_window import MEMORY_FACTOR_MAX, STEP_MS_MAX, STEP_MS_MIN

JOBS_MAX: Final = 10_000
"""Jobs of all device types."""
RELATED_MAX: Final = 32
"""Batches and precisions of one job; the newest are kept."""
MEMORY_MARGIN: Final = 1.02
_VARIANCE_MIN: Final = 1e-6
_LINE_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """What is known of one job alone; None where it was not measured.

    Attributes:
        log_step_ms: Of the logarithm of the step time.
        utilization_ratio: Of the utilization.
        memory_peak_bytes: Largest peak of sound outcomes.
        memory_least_bytes: Largest peak of doubtful ones: the job needs at least so much.
    """

    log_step_ms: Observation | None = None
    utilization_ratio: Observation | None = None
    memory_peak_bytes: int | None = None
    memory_least_bytes: int | None = None

    def with_outcome(self, outcome: Mapping[str, Any], device: str) -> ObservedJob:
        """Folds a sound outcome on a device type in; values outside their possible range are left out."""
        step_ms = _number(outcome, "step_ms_mean", STEP_MS_MIN, STEP_MS_MAX)
        return ObservedJob(
            log_step_ms=_fold(self.log_step_ms, math.log(step_ms) if step_ms else None),
            utilization_ratio=_fold(self.utilization_ratio, _number(outcome, "utilization_ratio", 0.0, 1.0)),
            memory_peak_bytes=_largest(self.memory_peak_bytes, outcome, device),
            memory_least_bytes=self.memory_least_bytes,
        )

    def with_doubtful_outcome(self, outcome: Mapping[str, Any], device: str) -> ObservedJob:
        """Takes the peak of an outcome for the least that the job needs, and nothing else of it."""
        return dataclasses.replace(self, memory_least_bytes=_largest(self.memory_least_bytes, outcome, device))


def _largest(past: int | None, outcome: Mapping[str, Any], device: str) -> int | None:
    """The larger one of a peak and that of an outcome, if it is one that a job on the device type can have."""
    known = find_device_type(device)
    memory_bytes_max = MEMORY_FACTOR_MAX * known.memory_bytes if known else math.inf
    return max(past or 0, int(_number(outcome, "memory_peak_bytes", 0.0, memory_bytes_max) or 0)) or None


def _number(outcome: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    """A value within its range, or None."""
    value = outcome.get(name)
    return float(value) if isinstance(value, int | float) and least <= value <= most else None


def _fold(past: Observation | None, value: float | None) -> Observation | None:
    if value is None:
        return past
    return Observation(count=1.0, mean=value) if past is None else past.with_sample(value)


def line_key(graph_sha256: str, settings: JobSettings) -> str:
    """What jobs share that differ in batch and precision only; a wait in milliseconds is as long for each sample."""
    return dataclasses.replace(settings.at_batch(_LINE_BATCH), precision=PRECISIONS[0]).keys(graph_sha256)(0)


def read_entry_job(content: Mapping[str, object]) -> tuple[str, JobSettings] | None:
    """Graph and settings as the entry of a prediction keeps them; None where it does not keep all that its key has."""
    graph_sha256 = str(content.get("graph_sha256", ""))
    try:
        job = read_entry_settings(content)
        is_whole = job is not None and job.checked().key(graph_sha256) == content.get("job_key")
    except (JobSettingsError, TypeError, ValueError):
        return None
    return (graph_sha256, job) if job is not None and is_whole else None


class RelatedJob(NamedTuple):
    """What is known of a job at one batch and precision."""

    batch: int
    precision: str
    seen: ObservedJob


class ObservedJobs:
    """The table; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], ObservedJob] = OrderedDict()
        # Batches and precisions of one graph with otherwise equal settings, by their keys.
        self._lines: OrderedDict[tuple[str, str], OrderedDict[str, tuple[int, str]]] = OrderedDict()

    def learn(self, joined: Iterable[tuple[PredictionEntry, Mapping[str, Any]]]) -> None:
        """Folds in outcomes of single jobs; of what is flagged or too short nothing but its peak.

        Args:
            joined: Outcomes with their predictions, oldest first.
        """
        for entry, outcome in joined:
            key = entry.content.get("job_key")
            if entry.kind != "job" or not key:
                continue
            is_doubtful = bool(outcome.get("quality_flags")) or outcome.get("window_ms", 0) < WINDOW_MS_MIN
            with self._lock:
                place = (_canonical(entry.device), str(key))
                past = self._jobs.get(place, ObservedJob())
                fold = past.with_doubtful_outcome if is_doubtful else past.with_outcome
                seen = fold(outcome, entry.device)
                if is_doubtful and seen == ObservedJob():
                    continue
                self._jobs[place] = seen
                self._jobs.move_to_end(place)
                if len(self._jobs) > JOBS_MAX:
                    self._jobs.popitem(last=False)
                self._join_line(place[0], str(key), entry.content)

    def _join_line(self, device: str, key: str, content: Mapping[str, object]) -> None:
        job = read_entry_job(content)
        if job is None:
            return
        members = self._lines.setdefault((device, line_key(*job)), OrderedDict())
        members[key] = job[1].global_batch_size, job[1].precision
        members.move_to_end(key)
        self._lines.move_to_end((device, line_key(*job)))
        if len(members) > RELATED_MAX:
            members.popitem(last=False)
        if len(self._lines) > JOBS_MAX:
            self._lines.popitem(last=False)

    @property
    def has_related(self) -> bool:
        """Whether `related` can find anything: naming the line of a job costs more than reading its answer."""
        return bool(self._lines)

    def related(self, device: str, line: str) -> Sequence[RelatedJob]:
        """What is known of a job at any batch and precision on a device type.

        Args:
            device: Device type.
            line: See `line_key`.
        """
        if not self._lines:
            return ()
        name = _canonical(device)
        with self._lock:
            members = self._lines.get((name, line), OrderedDict[str, tuple[int, str]]())
            return [
                RelatedJob(batch, precision, seen)
                for key, (batch, precision) in members.items()
                if (seen := self._jobs.get((name, key))) is not None
            ]

    def find(self, device: str, key: str) -> ObservedJob | None:
        """What is known of a job on a device type."""
        return self._jobs.get((_canonical(device), key)) if self._jobs else None

    def complete(self, device: str, job: PairJob) -> PairJob:
        """Returns a job of a question with what was measured of it where the question states nothing."""
        seen = self.find(device, job.key) if self._jobs and not job.is_known else None
        if seen is None:
            return job
        step, share = seen.log_step_ms, seen.utilization_ratio
        return dataclasses.replace(
            job,
            known_step_ms=job.known_step_ms or (math.exp(step.mean) if step else None),
            known_utilization_ratio=(
                share.mean if job.known_utilization_ratio is None and share else job.known_utilization_ratio
            ),
            known_memory_bytes=job.known_memory_bytes or seen.memory_peak_bytes,
        )


def weigh_observed(
    seen: ObservedJob, *, utilization: Estimate, memory: Estimate, step: Estimate
) -> tuple[Estimate, Estimate, Estimate]:
    """Weighs the predictions of a job against what was measured of it.

    Returns:
        Utilization, memory and step time; what was measured has the level observed and no explanation, because it
        is no answer of the model.
    """
    return (
        _observed_share(utilization, seen.utilization_ratio) if seen.utilization_ratio else utilization,
        weigh_observed_memory(memory, seen),
        weigh_observed_step(step, seen),
    )


def weigh_observed_step(estimate: Estimate, seen: ObservedJob) -> Estimate:
    """Weighs a predicted step time against what was measured, if it was; see `weigh_observed`."""
    return _observed_step(estimate, seen.log_step_ms) if seen.log_step_ms else estimate


def _observed_step(estimate: Estimate, seen: Observation) -> Estimate:
    """Weighs a predicted step time against measured ones; bounds are those of the next window."""
    scaled = estimate._replace(value=math.log(estimate.value), lower=_log(estimate.lower), upper=_log(estimate.upper))
    weighed = _weigh(scaled, seen)
    return weighed._replace(value=math.exp(weighed.value), lower=math.exp(weighed.lower), upper=math.exp(weighed.upper))


def _observed_share(estimate: Estimate, seen: Observation) -> Estimate:
    """Weighs a predicted utilization against measured ones; bounds are those of the next window."""
    weighed = _weigh(estimate, seen)
    return weighed._replace(value=_share(weighed.value), lower=_share(weighed.lower), upper=_share(weighed.upper))


def weigh_observed_memory(estimate: Estimate, seen: ObservedJob) -> Estimate:
    """Raises a predicted memory to what was measured, never below what was promised.

    A doubtful peak raises the value and the upper ends alone: the answer stays the prediction's.
    """
    if seen.memory_peak_bytes:
        estimate = _observed_memory(estimate, seen.memory_peak_bytes)
    least_bytes = float(seen.memory_least_bytes or 0)
    promised_bytes = least_bytes * MEMORY_MARGIN
    if least_bytes <= estimate.value and promised_bytes <= min(estimate.upper, estimate.upper_99 or estimate.upper):
        return estimate
    return estimate._replace(
        value=max(estimate.value, least_bytes),
        upper=max(estimate.upper, promised_bytes),
        upper_99=max(estimate.upper_99 or estimate.upper, promised_bytes),
        explanation=(),
    )


def _observed_memory(estimate: Estimate, peak_bytes: int) -> Estimate:
    upper_99 = max(estimate.upper_99 or estimate.upper, peak_bytes * MEMORY_MARGIN)
    return estimate._replace(
        value=float(peak_bytes),
        lower=min(estimate.lower, float(peak_bytes)),
        upper=max(estimate.upper, float(peak_bytes)),
        upper_99=upper_99,
        level=Level.OBSERVED,
        in_domain=True,
        unusual_features=(),
        explanation=(),
    )


def _weigh(estimate: Estimate, seen: Observation) -> Estimate:
    deviations = NormalDist().inv_cdf(0.5 + estimate.confidence / 2)
    promised = (estimate.upper - estimate.lower) / (2 * deviations)
    # A prediction that is off by more than it promised is not trusted by its promise.
    prior = max(promised**2, (seen.mean - estimate.value) ** 2, _VARIANCE_MIN)
    trust = prior / (prior + seen.mean_variance)
    value = estimate.value + trust * (seen.mean - estimate.value)
    reach = deviations * math.sqrt(trust * seen.mean_variance + seen.variance)
    return estimate._replace(
        value=value,
        lower=value - reach,
        upper=value + reach,
        level=Level.OBSERVED,
        in_domain=True,
        unusual_features=(),
        explanation=(),
    )


def _log(value: float) -> float:
    return math.log(max(value, 1e-9))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _canonical(device: str) -> str:
    return device.strip().lower()

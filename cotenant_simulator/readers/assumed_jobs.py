"""What past jobs may have been: each is one of some measured jobs, drawn from a seed; no accounting tells it.

Jobs of one user and name are the same measured job. Where it was measured how busy they kept their GPUs and what memory
they took, that counts, and they are one of the measured jobs that keep a GPU about as busy. Jobs of several GPUs are
not shared, so that nothing need be assumed of them but their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

from cotenant_simulator.readers.accounting import PastJob
from cotenant_simulator.readers.measured_jobs import MeasuredJob, MeasuredJobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob

_SECOND_MS = 1_000.0
_AS_BUSY_RATIO = 0.1
"""Measured jobs whose utilization is so much further away than that of the nearest one may be drawn as well."""
_OBSERVED_MARK = " as "
"""Stands in the key of a measured job behind its name, before the place of a past one that was observed."""


def assume(jobs: Sequence[PastJob], measured: MeasuredJobs, consent: Consent, *, seed: int) -> Trace:
    """Return past jobs with drawn demands, submitted when they were and as long alone as they ran.

    Args:
        jobs: They had their GPUs to themselves.
        measured: One of these each job is.
        consent: What their owners would consent to.
        seed: The same seed draws the same demands.
    """
    drawn = {
        name: _drawn(name, members, measured, seed, place)
        for place, (name, members) in enumerate(_by_name(jobs).items())
    }
    kinds: dict[tuple[str, str], Kind] = {}
    found = []
    for job in jobs:
        duration_ms = job.ended_at_ms - job.started_at_ms
        if job.gpus == 1:
            key, kind = drawn[job.user, job.name]
        else:
            key, kind = f"{job.gpus} GPUs", Kind(step_ms_by_gpus={job.gpus: _SECOND_MS}, batch=job.gpus)
        kinds[key, measured.device if job.gpus == 1 else EVERY_DEVICE] = kind
        request = consent.request(
            job.job_id,
            key=key,
            gpus=job.gpus,
            batch=kind.batch,
            steps_total=max(round(duration_ms / kind.step_ms(gpus=job.gpus)), 1),
            may_share=job.gpus == 1,
        )
        found.append(TraceJob(submitted_at_ms=job.submitted_at_ms, request=request))
    truth = GroundTruth(kinds=kinds, slowdowns=_Slowdowns(measured.slowdowns), predicts_unmeasured=False)
    return Trace(format="accounting", jobs=found, truth=truth, device=measured.device)


def _by_name(jobs: Iterable[PastJob]) -> dict[tuple[str, str], list[PastJob]]:
    found: dict[tuple[str, str], list[PastJob]] = {}
    for job in jobs:
        if job.gpus == 1:
            found.setdefault((job.user, job.name), []).append(job)
    return found


def _drawn(
    name: tuple[str, str], jobs: Sequence[PastJob], measured: MeasuredJobs, seed: int, place: int
) -> tuple[str, Kind]:
    """Return the measured job for which the past jobs of one name are taken, with what was observed of them."""
    busy = [job.utilization_ratio for job in jobs if job.utilization_ratio is not None]
    memory_bytes = max(job.memory_bytes for job in jobs)
    chosen = Random("/".join((str(seed), *name))).choice(
        _as_busy(measured.jobs, fmean(busy)) if busy else measured.jobs
    )
    if not busy and not memory_bytes:
        return chosen.key, chosen.kind
    kind = replace(
        chosen.kind,
        utilization_ratio=fmean(busy) if busy else chosen.kind.utilization_ratio,
        memory_bytes=memory_bytes or chosen.kind.memory_bytes,
    )
    return f"{chosen.key}{_OBSERVED_MARK}{place}", kind


def _as_busy(jobs: Sequence[MeasuredJob], utilization_ratio: float) -> list[MeasuredJob]:
    away = {job.key: abs(job.kind.utilization_ratio - utilization_ratio) for job in jobs}
    return [job for job in jobs if away[job.key] <= min(away.values()) + _AS_BUSY_RATIO]


class _Slowdowns(Mapping[tuple[str, str, str], float]):
    """Slowdowns of measured jobs, found by the keys of the past jobs that are taken for them too."""

    def __init__(self, measured: Mapping[tuple[str, str, str], float]) -> None:
        self._measured = measured

    def __getitem__(self, pair: tuple[str, str, str]) -> float:
        victim, other, device = pair
        return self._measured[victim.partition(_OBSERVED_MARK)[0], other.partition(_OBSERVED_MARK)[0], device]

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        return iter(self._measured)

    def __len__(self) -> int:
        return len(self._measured)

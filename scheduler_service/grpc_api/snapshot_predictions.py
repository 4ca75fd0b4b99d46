"""What a snapshot itself says of its jobs: predictions of them and of pairs, and the caller's own figures."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.capacity import samples_per_gpu
from scheduler_service.core.measured_averages import Sizes, preferred
from scheduler_service.core.prediction_store import PredictionStore
from scheduler_service.core.records import JobPrediction, JobRequest, Level, MemoryPoint, PairPrediction
from scheduler_service.grpc_api import translate_snapshot
from scheduler_service.grpc_api.waiting_caller import CallerLeftError, WaitingCaller

_WORST_UTILIZATION_RATIO: Final = 1.0


PairPlace = tuple[str, str, str, int, int]
"""Victim, other job, device type, micro-batch sizes of both (0 = any)."""
_Pair = scheduling_pb2.SnapshotPairPrediction | PairPrediction
"""A row, or what was read from it."""
_Name = TypeVar("_Name")
_KeyPair = tuple[str, str, str]
"""Victim, other job, device type."""

_KEYS_OF_PAIR: Final = attrgetter("victim_job_key", "other_job_key", "device")
_SIZES_OF_PAIR: Final = attrgetter("micro_batch_size", "other_micro_batch_size")
_SIZE_OF_VICTIM: Final = attrgetter("micro_batch_size")
_SIZE_OF_OTHER: Final = attrgetter("other_micro_batch_size")
_AT_ANY_SIZES: Final = (0, 0)


class PredictionRows:
    """The predictions that a snapshot states; of the many rows few are asked for, so each is read when it first is.

    Args:
        snapshot: Snapshot with valid rows only.
    """

    def __init__(self, snapshot: scheduling_pb2.Snapshot) -> None:
        self._pairs_of_snapshot = snapshot.pair_predictions
        self._jobs = {(row.job_key, row.device): row for row in snapshot.job_predictions}
        self._read_jobs: dict[tuple[str, str], JobPrediction] = {}

    @cached_property
    def _pairs(self) -> tuple[dict[_KeyPair, _Pair], dict[_KeyPair, dict[Sizes, _Pair]]]:
        """What is stated of pairs at any micro-batches, and at others; of several rows about one place the last."""
        rows = [*self._pairs_of_snapshot]
        if not any(map(_SIZE_OF_VICTIM, rows)) and not any(map(_SIZE_OF_OTHER, rows)):
            return dict(zip(map(_KEYS_OF_PAIR, rows), rows, strict=True)), {}
        at_any: dict[_KeyPair, _Pair] = {}
        at_sizes: dict[_KeyPair, dict[Sizes, _Pair]] = {}
        for row, at in zip(rows, map(_SIZES_OF_PAIR, rows), strict=True):
            if at == _AT_ANY_SIZES:
                at_any[_KEYS_OF_PAIR(row)] = row
            else:
                at_sizes.setdefault(_KEYS_OF_PAIR(row), {})[at] = row
        return at_any, at_sizes

    @property
    def places(self) -> AbstractSet[tuple[str, str]]:
        """The keys and device types of which something is stated."""
        return self._jobs.keys()

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return what is stated of a key on a device type."""
        place = (key, device)
        known = self._read_jobs.get(place)
        if known is None and place in self._jobs:
            known = self._read_jobs[place] = translate_snapshot.job_prediction(self._jobs[place])
        return known

    def pair(self, keys: _KeyPair, sizes: Sizes) -> PairPrediction | None:
        """Return what is stated of a pair at these micro-batches, else at the nearest ones (`preferred`)."""
        at_any, at_sizes = self._pairs
        of_keys = at_sizes.get(keys) if at_sizes else None
        at = next((one for one in preferred(*sizes) if one in of_keys), None) if of_keys is not None else None
        return _read(at_any, keys) if of_keys is None or at is None else _read(of_keys, at)


def _read(pairs: dict[_Name, _Pair], name: _Name) -> PairPrediction | None:
    found = pairs.get(name)
    if found is None or isinstance(found, PairPrediction):
        return found
    pairs[name] = read = translate_snapshot.pair_prediction(found)
    return read


class SnapshotPredictions(PredictionStore):
    """Predictions of a snapshot, else of the predictor, else the figures that the caller states of its jobs.

    Args:
        rows: The predictions of the snapshot.
        jobs: All its jobs; of those with figures and one key the first counts.

    Attributes:
        caller: For whom a policy asks; once they have left, the next question ends the work.
    """

    def __init__(self, rows: PredictionRows, jobs: Iterable[scheduling_pb2.SnapshotJob]) -> None:
        super().__init__()
        self.caller = WaitingCaller()
        self._rows = rows
        self._answers: dict[PairPlace, PairPrediction] = {}
        self._stating: dict[str, scheduling_pb2.SnapshotJob] = {}
        for job in jobs:
            if translate_snapshot.states_figures(job):
                self._stating.setdefault(translate_snapshot.key_of_job(job), job)

    @property
    def measured_alone(self) -> AbstractSet[tuple[str, str]]:
        """Keys and device types of which a row of the snapshot states measured figures."""
        return {
            place
            for place in self._rows.places
            if (known := self.job(*place)) is not None and known.measured_micro_batch_sizes
        }

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return what is predicted of a key on a device type, else what is stated of it.

        Raises:
            CallerLeftError: No caller waits for the answer any more.
        """
        if self.caller.has_left:
            raise CallerLeftError
        by_device = self._jobs.get(key)  # as the store does it, without a call: this is asked most of all
        known = by_device.get(device) if by_device is not None else None
        if known is not None:
            return known
        known = self._rows.job(key, device)
        if known is None and key in self._stating:
            known = _prediction(self._stating[key], device)
        if known is not None:
            # Nothing of a snapshot was measured here, so that what is stated is what is served.
            self._jobs.setdefault(key, {})[device] = known
        return known

    def pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Return the same as `predicted_pair`: nothing of a snapshot was measured here."""
        place = (victim_key, other_key, device, micro_batch_size, other_micro_batch_size)
        known = self._answers.get(place)
        if known is None:
            known = self.predicted_pair(*place)
            if known is not None:
                self._answers[place] = known
        return known

    def put_pair(self, pair: PairPrediction) -> None:
        """Store an answer about a pair."""
        self._answers.clear()
        super().put_pair(pair)

    def predicted_pair(
        self,
        victim_key: str,
        other_key: str,
        device: str,
        micro_batch_size: int = 0,
        other_micro_batch_size: int = 0,
    ) -> PairPrediction | None:
        """Return what is predicted of a pair, else what is stated of the first next to any other."""
        sizes = micro_batch_size, other_micro_batch_size
        return (
            self._rows.pair((victim_key, other_key, device), sizes)
            or super().predicted_pair(victim_key, other_key, device, *sizes)
            or self._stated_pair(victim_key, other_key, device)
        )

    def _stated_pair(self, victim_key: str, other_key: str, device: str) -> PairPrediction | None:
        stating = self._stating.get(victim_key)
        if stating is None or not stating.HasField("stated_slowdown_ratio"):
            return None
        ratio = stating.stated_slowdown_ratio
        return PairPrediction(
            victim_key=victim_key,
            other_key=other_key,
            device=device,
            slowdown_ratio=ratio,
            upper_ratio=ratio,
            level=Level.SOLO_KNOWN,
        )


def _prediction(job: scheduling_pb2.SnapshotJob, device: str) -> JobPrediction:
    """Return stated figures as a prediction; a job that states no utilization is taken for a busy one."""
    request = translate_snapshot.request(job)
    sizes = {gpus: samples_per_gpu(request, gpus) for gpus in request.allowed_gpus}
    point = MemoryPoint(memory_bytes=job.stated_memory_bytes, memory_bytes_upper_99=job.stated_memory_bytes)
    return JobPrediction(
        key=request.key,
        device=device,
        utilization_ratio=job.stated_utilization_ratio
        if job.HasField("stated_utilization_ratio")
        else _WORST_UTILIZATION_RATIO,
        memory=dict.fromkeys(sizes.values(), point) if job.stated_memory_bytes else {},
        step_ms=_step_times(request, job.stated_step_ms, sizes.items()),
        level=Level.SOLO_KNOWN,
    )


def _step_times(request: JobRequest, step_ms: float, sizes: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return the stated time at the number of GPUs that the job asks for; of others nothing is stated."""
    return {(gpus, samples): step_ms for gpus, samples in sizes if step_ms and gpus == request.gpus}

"""What a snapshot itself says of its jobs: predictions of them and of pairs, and the caller's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

from cotenant.device_sharing import DeviceSharing
from cotenant.v1 import scheduling_pb2
from scheduler_service.core.cluster_view.capacity import samples_per_gpu
from scheduler_service.core.cluster_view.shared_ways import device_of
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import JobPrediction, JobRequest, Level, MemoryPoint, PairPrediction
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.row_columns import RowColumns
from scheduler_service.grpc_api.snapshots.snapshot_pairs import PairRows
from scheduler_service.grpc_api.waiting_caller import CallerLeftError, WaitingCaller

_WORST_UTILIZATION_RATIO: Final = 1.0


PairPlace = tuple[str, str, str, int, int]
"""Victim, other job, device type, micro-batch sizes of both (0 = any)."""


class PredictionRows:
    """The predictions that a snapshot states; of the many rows few are asked for, so each is read when it first is.

    Args:
        jobs: Valid rows about jobs.
        pairs: Valid rows about pairs.
    """

    def __init__(self, jobs: RowColumns, pairs: PairRows) -> None:
        self.pairs = pairs
        self._jobs = dict(zip(zip(jobs["job_key"], jobs["device"], strict=True), jobs.rows, strict=True))
        self._read_jobs: dict[tuple[str, str], JobPrediction] = {}

    @property
    def places(self) -> AbstractSet[tuple[str, str]]:
        """The keys and device types of which something is stated."""
        return self._jobs.keys()

    def job(self, key: str, device: str) -> JobPrediction | None:
        """Return what is stated of a key on a device type."""
        place = (key, device)
        known = self._read_jobs.get(place)
        if known is None and place in self._jobs:
            self.read([place])
            known = self._read_jobs[place]
        return known

    def read(self, places: Iterable[tuple[str, str]]) -> None:
        """Read what is stated of keys on device types, together in a fifth of the time that one after the other takes.

        Args:
            places: Some keys and device types that will be asked for.
        """
        unread = [place for place in places if place in self._jobs and place not in self._read_jobs]
        rows = RowColumns([self._jobs[place] for place in unread])
        self._read_jobs.update(zip(unread, translate_snapshot.job_predictions(rows), strict=True))


class SnapshotPredictions(PredictionStore):
    """Predictions of a snapshot, else of the predictor, else the figures that the caller states of its jobs.

    Args:
        rows: The predictions of the snapshot.
        stating: Its jobs that state figures, by key.
        sharing: In which ways device types are shared, as its nodes say.

    Attributes:
        caller: For whom a policy asks; once they have left, the next question ends the work.
    """

    def __init__(
        self,
        rows: PredictionRows,
        stating: Mapping[str, scheduling_pb2.SnapshotJob],
        sharing: Mapping[str, frozenset[DeviceSharing]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        for device, ways in sharing.items():
            self.share(device, *ways)
        self.caller = WaitingCaller()
        self._rows = rows
        self._answers: dict[PairPlace, PairPrediction] = {}
        self._stating = stating

    def read(self, places: Iterable[tuple[str, str]]) -> None:
        """Read at once what will be asked for one by one.

        Args:
            places: Keys and device types, each once.
        """
        self._rows.read(places)

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
        sizes, of_type = (micro_batch_size, other_micro_batch_size), device_of(device)
        return (
            self._rows.pairs.find((victim_key, other_key, of_type), sizes)
            or super().predicted_pair(victim_key, other_key, device, *sizes)
            or self._stated_pair(victim_key, other_key, of_type)
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

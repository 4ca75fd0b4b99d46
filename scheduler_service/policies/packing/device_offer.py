"""What a kind of GPUs offers to one job: devices that could take a worker each, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.capacity import Resident


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU that keeps every constraint of a device with one of the job's workers.

    Attributes:
        node_id: Where it is.
        index: Its place there.
        score: Lower is better; what it means is the policy's `Best`.
        tie_breaker: Decides between equal scores, lower is better.
        own_slowdown_ratio: Of the worker that would come.
        is_new: No job is there yet.
    """

    gpu_id: str
    node_id: str
    index: int
    score: float
    tie_breaker: float
    own_slowdown_ratio: float
    is_new: bool

    @property
    def order(self) -> tuple[float, float, str, int, str]:
        """Best first; ties are never broken at random."""
        return self.score, self.tie_breaker, self.node_id, self.index, self.gpu_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Devices of one kind among which a job may spread.

    Attributes:
        worker: One worker of the job as it would be on this kind.
        devices: Those that the policy tries first, best first.
        unused: One unused device, for the worth of all of them: they differ by name only.
        free: The unused devices by node; none where `unused` is None.
    """

    worker: Resident
    devices: Sequence[Device]
    unused: Device | None
    free: Mapping[str, Sequence[str]]

    @property
    def width(self) -> int:
        """Devices that could take a worker each, as far as one look shows."""
        return sum(map(len, self.free.values())) + sum(not device.is_new for device in self.devices)

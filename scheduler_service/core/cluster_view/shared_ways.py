"""What questions about pairs name: a device type as it is shared, since GPUs of one type need not be shared alike.

To all that is asked about a job alone such GPUs are of one kind.
"""

from __future__ import annotations

from functools import lru_cache

from cotenant.device_sharing import DeviceSharing, read_sharing
from scheduler_service.core.records import Gpu

_BEFORE_WAY = "\t"


@lru_cache(maxsize=4_096)
def place_name(device: str, sharing: DeviceSharing) -> str:
    """Return under what the pairs of a device type are kept that is shared in a way; also in stored snapshots."""
    return f"{device}{_BEFORE_WAY}{sharing.label}" if sharing else device


def place_of(gpu: Gpu) -> str:
    """Return under what the pairs are kept that may meet on a GPU."""
    return place_name(gpu.device, gpu.sharing) if gpu.sharing else gpu.device


def device_of(place: str) -> str:
    """Return the device type of a place."""
    return place.partition(_BEFORE_WAY)[0]


def way_of(place: str) -> DeviceSharing:
    """Return how a place is shared, as far as its name says."""
    return read_sharing(place.partition(_BEFORE_WAY)[2])

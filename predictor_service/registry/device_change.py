"""What a version knows of devices that changed: since when a device type measures otherwise, and by how much.

A change belongs to the version that was learned with it, so that a rollback takes it back, and later versions go on
with it. Whatever was measured before is restated by it before it teaches; rows of data sets are older than any change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cotenant.system_clock import iso_utc
from predictor_service.features.devices import find_device_type
from predictor_service.selection.targets import TARGETS_BY_NAME


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DeviceChange:
    """One target of one device type.

    Attributes:
        device: Device type.
        target: Name with its unit.
        at_ms: When what was measured first arrived that is no longer restated.
        shift: Added to what was measured earlier: of sizes and times in the logarithm, of shares as it is.
    """

    device: str
    target: str
    at_ms: int
    shift: float

    @property
    def is_share(self) -> bool:
        """Whether `shift` is a difference of shares; else it is the logarithm of a factor."""
        return TARGETS_BY_NAME[self.target].scale == "share"

    def say(self) -> str:
        """Says it in one sentence."""
        how = f"{self.shift:+.2f}" if self.is_share else f"{math.exp(self.shift):.2f} times"
        return f"{self.device}, {self.target}: {how} what it was, since {iso_utc(self.at_ms)}"

    def as_json(self) -> dict[str, Any]:
        """For the manifest; `change_from_json` restores it."""
        return asdict(self)


def change_from_json(read: Mapping[str, Any]) -> DeviceChange:
    """Reads what `as_json` wrote.

    Raises:
        KeyError: A field is missing, or the target is none.
    """
    change = DeviceChange(**{name: read[name] for name in DeviceChange.__dataclass_fields__})
    if change.target not in TARGETS_BY_NAME:
        raise KeyError(change.target)
    return change


def restate(value: float, changes: Iterable[DeviceChange], *, device: str, target: str, at_ms: int) -> float:
    """What a measured value would be today.

    Args:
        value: In the target's unit.
        changes: In any order.
        device: Device type, by any of its names.
        target: Name with its unit.
        at_ms: When it arrived; 0 = before any change.
    """
    found = find_device_type(device)
    for change in changes:
        if change.target == target and change.at_ms > at_ms and found is not None and found.name == change.device:
            value = min(max(value + change.shift, 0.0), 1.0) if change.is_share else value * math.exp(change.shift)
    return value

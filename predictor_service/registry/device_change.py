"""What a version knows of devices that changed: since when a device type measures otherwise, and by how much.

A change belongs to the version that was learned with it, so that a rollback takes it back, and later versions go on
with it. Whatever was measured before is restated by it before it teaches or corrects an answer: windows and outcomes
that arrived earlier, and the data sets that were there when it was found. A set that is measured anew afterwards says
itself how the device is now.
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
        datasets: Names of the data sets that are older.
    """

    device: str
    target: str
    at_ms: int
    shift: float
    datasets: tuple[str, ...] = ()

    @property
    def is_share(self) -> bool:
        """Whether `shift` is a difference of shares; else it is the logarithm of a factor."""
        return TARGETS_BY_NAME[self.target].scale == "share"

    def applied_to(self, value: float) -> float:
        """What a value of before is since, in the target's unit; what no share can be stays what it is."""
        if not self.is_share:
            return value * math.exp(self.shift)
        return min(max(value + self.shift, 0.0), 1.0) if 0.0 <= value <= 1.0 else value

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
    plain = {name: read[name] for name in ("device", "target", "at_ms", "shift")}
    if plain["target"] not in TARGETS_BY_NAME:
        raise KeyError(plain["target"])
    return DeviceChange(**plain, datasets=tuple(read["datasets"]))


def restate(value: float, changes: Iterable[DeviceChange], *, device: str, target: str) -> float:
    """What a measured value would be today.

    Args:
        value: In the target's unit.
        changes: Those since.
        device: Device type, by any of its names.
        target: Name with its unit.
    """
    found = find_device_type(device)
    for change in changes:
        if change.target == target and found is not None and found.name == change.device:
            value = change.applied_to(value)
    return value

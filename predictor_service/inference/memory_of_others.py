"""Memory by what others measured: on machines of theirs, of this device type or, for want of it, of another one.

What a network holds depends little on the device; what its process holds beside it, the context, differs by card,
driver and release of the libraries. So a job is asked about as it would run on the device that was measured: rows of
one device say nothing of what another one's peaks change. Ranges are those of networks held out, with the contexts that
were seen elsewhere at their ends; on another device type they are wider by the factor that the constants of
`features/uncalibrated_memory.py` have there. How often they hold on the device at hand was not checked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from predictor_service.features.devices import DeviceType, Generation, find_device_type
from predictor_service.features.uncalibrated_memory import CONTEXT_SEEN_BYTES, EXPECTED, GENERATION_MEMORY
from predictor_service.registry.served_version import Bounded, ServedTarget, ServedVersion
from predictor_service.selection.targets import MEMORY

_LESS_BYTES: Final = EXPECTED.context_bytes - CONTEXT_SEEN_BYTES[0]
_MORE_BYTES: Final = CONTEXT_SEEN_BYTES[1] - EXPECTED.context_bytes
_LEAST_RATIO: Final = 0.25
"""Of the lower end: a process without any context holds more than that of what is expected."""


class MemoryOfOthers(NamedTuple):
    """A public model of memory, and the device type whose rows taught it."""

    device: DeviceType
    model: ServedTarget


def memory_model_of_others(version: ServedVersion | None) -> MemoryOfOthers | None:
    """The public model of memory with the most rows, of whatever device type; None where there is none."""
    if version is None:
        return None
    models = [
        MemoryOfOthers(device, targets[MEMORY.name])
        for name, targets in version.devices.items()
        if MEMORY.name in targets and (device := find_device_type(name)) is not None
    ]
    public = [each for each in models if each.model.record.is_public]
    return max(public, key=lambda each: each.model.record.rows, default=None)


def widen_to_contexts(bounded: Bounded) -> Bounded:
    """Moves the ends of memory by the contexts that were seen; the value has that of the machine that taught it."""
    lower = np.maximum(bounded.lower - _LESS_BYTES, _LEAST_RATIO * bounded.lower)
    upper, upper_99 = (each + _MORE_BYTES for each in (bounded.upper, bounded.upper_99))
    return Bounded(value=bounded.value, lower=lower, upper=upper, upper_99=upper_99)


def widen_to_device(bounded: Bounded, device: DeviceType) -> Bounded:
    """Moves the ends of what is known on one GPU by the factor of another one's generation."""
    factor = GENERATION_MEMORY.get(device.generation, GENERATION_MEMORY[Generation.UNKNOWN]).widening
    upper, upper_99 = (factor * each for each in (bounded.upper, bounded.upper_99))
    return Bounded(value=bounded.value, lower=bounded.lower / factor, upper=upper, upper_99=upper_99)

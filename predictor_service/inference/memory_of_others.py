"""Memory by what others measured: on machines of theirs, of this device type or, for want of it, of another one.

What a network holds depends little on the device; what its process holds beside it, the context, differs by card,
driver and release of the libraries. So ranges are those of networks held out, with the contexts that were seen
elsewhere at their ends; on another device type they are wider by the factor that the constants of
`features/uncalibrated_memory.py` have there. How often they hold on the device at hand was not checked.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from predictor_service.features.devices import DeviceType, Generation
from predictor_service.features.uncalibrated_memory import CONTEXT_SEEN_BYTES, EXPECTED, GENERATION_MEMORY
from predictor_service.registry.served_version import Bounded, ServedTarget, ServedVersion
from predictor_service.selection.targets import MEMORY

_LESS_BYTES: Final = EXPECTED.context_bytes - CONTEXT_SEEN_BYTES[0]
_MORE_BYTES: Final = CONTEXT_SEEN_BYTES[1] - EXPECTED.context_bytes
_LEAST_RATIO: Final = 0.25
"""Of the lower end: a process without any context holds more than that of what is expected."""


def memory_model_of_others(version: ServedVersion | None) -> ServedTarget | None:
    """The public model of memory with the most rows, of whatever device type; None where there is none."""
    if version is None:
        return None
    models = [targets[MEMORY.name] for targets in version.devices.values() if MEMORY.name in targets]
    public = [model for model in models if model.record.is_public]
    return max(public, key=lambda model: model.record.rows, default=None)


def widen_to_contexts(bounded: Bounded, device: DeviceType, *, of_this_type: bool) -> Bounded:
    """Moves the ends of memory by the contexts that were seen.

    Args:
        bounded: What the model says, with the context of the machine that taught it.
        device: That is asked about, a GPU.
        of_this_type: Whether the model was taught by machines with this device type.
    """
    known = GENERATION_MEMORY.get(device.generation, GENERATION_MEMORY[Generation.UNKNOWN])
    factor = 1.0 if of_this_type else known.widening
    lower = np.maximum(bounded.lower - _LESS_BYTES, _LEAST_RATIO * bounded.lower) / factor
    upper, upper_99 = (factor * (each + _MORE_BYTES) for each in (bounded.upper, bounded.upper_99))
    return Bounded(value=bounded.value, lower=lower, upper=upper, upper_99=upper_99)

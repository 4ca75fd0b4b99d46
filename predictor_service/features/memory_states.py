"""What of a job's memory it holds all the time, and what only while it computes, if it releases memory in between.

Parameters, gradients, state of the optimizer and the context stay; activations and workspace come with a pass. A job
computes all the time but while it waits for its input and while its optimizer steps.

Source:
    The two sub-requirements of Li et al., "Interference-aware opportunistic job placement for shared distributed deep
    learning clusters" (JPDC), section 3.2, counted instead of measured; measurements replace them where there are any.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor_service.features.analytical_memory import MemoryBreakdown


class MemoryStates(NamedTuple):
    """Memory of a job that releases it between peaks: `low_bytes` always, `extra_bytes` more a share of the time."""

    low_bytes: float
    extra_bytes: float
    high_state_ratio: float


def split_memory(
    peak_bytes: float, counted: MemoryBreakdown, *, input_wait_ratio: float, once_ratio: float
) -> MemoryStates:
    """Split an estimate of the peak.

    What the count leaves out is taken to be held in the same proportion, and never less than what was counted.

    Args:
        peak_bytes: The estimate.
        counted: Of the same job and batch.
        input_wait_ratio: Share of a step that it waits for its input, 0 to 1.
        once_ratio: Share of a step that the optimizer takes, 0 to 1.
    """
    held_bytes = counted.context_bytes + counted.weights_bytes + counted.gradients_bytes + counted.optimizer_state_bytes
    low_bytes = min(peak_bytes, max(held_bytes, peak_bytes * held_bytes / counted.total_bytes))
    high_ratio = 1.0 - input_wait_ratio - once_ratio
    return MemoryStates(low_bytes, peak_bytes - low_bytes, min(max(high_ratio, 0.0), 1.0))

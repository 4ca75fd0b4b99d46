"""Time and memory of an optimizer step that is made of several passes over parts of its batch.

Two forms are known. The printed one takes a whole step for every pass and so charges the optimizer in each of them; the
corrected one charges it once, t = s (a_sub + beta B/s) + a_once. The corrected form answers, the printed one, which
never is below it, bounds it from above: what else happens once a step is not known, only that it is not negative.

Source: SJF-BSBF paper, Eq. 4 and 7; measured errors of Eq. 7 with an optimizer that weighs much: up to +215 %.
"""

from __future__ import annotations

from predictor_service.features.analytical_memory import MemoryBreakdown
from predictor_service.inference.records import Estimate


def accumulate(one: Estimate, passes: int, once_ratio: float) -> Estimate:
    """Returns the step made of several passes.

    Args:
        one: A whole step at the micro-batch, milliseconds.
        passes: At least 1.
        once_ratio: Share of such a step that happens once however many passes there are, 0 to 1.
    """
    paid = passes - (passes - 1) * once_ratio
    return one._replace(value=paid * one.value, lower=paid * one.lower, upper=passes * one.upper)


def keep_gradients(one: Estimate, counted: MemoryBreakdown, *, is_in_bounds: bool) -> Estimate:
    """Returns the memory of several passes: gradients stay between them, whatever else a process holds.

    Args:
        one: Of one pass, bytes.
        counted: Of the same pass.
        is_in_bounds: Whether upper end and bound count gradients already as if the script kept them.
    """

    def more_bytes(of_bytes: float) -> float:
        return counted.gradients_left_bytes(of_bytes / counted.total_bytes)

    def end_of(of_bytes: float) -> float:
        return max(value, of_bytes if is_in_bounds else of_bytes + more_bytes(of_bytes))

    value = one.value + more_bytes(one.value)
    bound = None if one.upper_99 is None else end_of(one.upper_99)
    return one._replace(value=value, upper=end_of(one.upper), upper_99=bound)

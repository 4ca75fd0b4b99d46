"""Whether a predicted job fits on a device, in three words: a bound that does not fit is no reason to say no."""

from __future__ import annotations

from enum import StrEnum


class MemoryVerdict(StrEnum):
    """What the expected memory and its bound say of a device."""

    FITS = "fits"
    MAY_NOT_FIT = "may not fit"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


def judge_memory(*, expected_bytes: float, bound_bytes: float, device_bytes: float) -> MemoryVerdict:
    """Judges a job that has the device for itself.

    Args:
        expected_bytes: The expected peak of its memory.
        bound_bytes: The bound of that.
        device_bytes: What the device has; 0 = not known.

    Returns:
        DOES_NOT_FIT where already the expected peak is too large, MAY_NOT_FIT where only the bound is.
    """
    if device_bytes <= 0:
        return MemoryVerdict.UNKNOWN
    if expected_bytes > device_bytes:
        return MemoryVerdict.DOES_NOT_FIT
    return MemoryVerdict.MAY_NOT_FIT if bound_bytes > device_bytes else MemoryVerdict.FITS

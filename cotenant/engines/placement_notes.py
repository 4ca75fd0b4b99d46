"""The one thing that a bridge must find again: which GPU it gave a job. It stands in the job itself, in the engine."""

from __future__ import annotations

from typing import Final

_MARK: Final = "cotenant placed "
_DIGITS_MAX: Final = 6


def placed_note(gpu_id: str, slots: int) -> str:
    """Return what is written into a placed job.

    Args:
        gpu_id: Its GPU; holds no space.
        slots: Parts of it; 0 = the whole GPU.
    """
    return f"{_MARK}{gpu_id} {slots or 'whole'}"


def planned_gpu(note: str) -> str:
    """Return the GPU in such a note; empty = it is another one."""
    return note[len(_MARK) :].split(" ", 1)[0] if note.startswith(_MARK) else ""


def planned_slots(note: str) -> int:
    """Return the parts of that GPU in such a note; 0 = the whole GPU, also where it is another note."""
    count = note[len(_MARK) :].partition(" ")[2].partition(":")[0] if note.startswith(_MARK) else ""
    return int(count) if count.isdecimal() and len(count) <= _DIGITS_MAX else 0

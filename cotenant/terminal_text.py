"""Texts that others wrote, made harmless for the reader's terminal."""

from __future__ import annotations

# What moves a cursor, rings, or turns the direction of writing; a tab and a new line do no harm.
_CONTROLS = dict.fromkeys(
    {*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {ord("\t"), ord("\n")}, "\ufffd"
)


def harmless(text: str) -> str:
    """Returns a text of the same length in which no character steers a terminal."""
    return text.translate(_CONTROLS)

"""Writes a report or table into a file that the user named."""

from __future__ import annotations

from pathlib import Path

from cotenant_simulator.errors import InputError


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        InputError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}; name a file in a folder that exists") from error

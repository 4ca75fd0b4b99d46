"""The one-line errors of every program, with the remedy; errors of services stand in `client_errors`."""

from __future__ import annotations


class CotenantError(Exception):
    """Base of all; carries the remedy next to the message."""

    def __init__(self, message: str, *, remedy: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.reason = reason
        if remedy:  # who calls from Python reads it below the traceback
            self.add_note(f"remedy: {remedy}")


class InputError(CotenantError):
    """The caller handed in something unusable."""


class ProgramError(CotenantError):
    """A program of ours did not start, or ended when it should not."""

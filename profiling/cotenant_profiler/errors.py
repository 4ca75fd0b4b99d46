"""Errors of the profiler.

ProfilerError
├── InvalidCampaignError      the caller's: the campaign file cannot be carried out
├── UnknownArchitectureError  the caller's: no such architecture in the zoo
├── JournalError              the caller's: the results folder belongs to another campaign or is damaged
├── GraphExportError          the framework's: the exporter failed for this network
└── WorkerError               ours or the machine's: a measuring process ended, was silent or refused a command
    ├── ForkRefusedError      the machine's: no measuring process can be forked, each must start by itself
    └── OutOfMemoryError      the job's: it does not fit on the device
"""

from __future__ import annotations

from collections.abc import Sequence


class ProfilerError(Exception):
    """Base of all errors of the profiler."""


class InvalidCampaignError(ProfilerError):
    """The campaign file cannot be carried out; the message names the key and the remedy."""


class UnknownArchitectureError(ProfilerError):
    """The zoo has no architecture of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"the zoo has no architecture {name!r}; it has: {', '.join(known)}")


class JournalError(ProfilerError):
    """The results folder cannot be continued; the message names cause and remedy."""


class GraphExportError(ProfilerError):
    """The network could not be written as ONNX."""


class WorkerError(ProfilerError):
    """A measuring process ended, stayed silent or refused a command."""


class ForkRefusedError(WorkerError):
    """Importing the framework started something that no forked process survives; the message says what."""


class OutOfMemoryError(WorkerError):
    """The job does not fit on the device: a result, and no reason to try again."""

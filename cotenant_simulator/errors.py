"""Every error of the simulator; the class names the side at fault.

SimulatorError
├── InputError               a file, flag or value must change
│   ├── TraceError           the trace; the message names file and line
│   ├── ClusterError         the description of the machines
│   └── PredictionsError     what shall be predicted cannot be
├── PolicyFaultError         a policy raised, or answered what is no decision
└── BrokenSimulationError    the simulator contradicts itself: a bug, never the user's fault
"""

from __future__ import annotations

from pathlib import Path


class SimulatorError(Exception):
    """Anything that this program reports; the message holds reason and remedy."""


class InputError(SimulatorError):
    """Something that the user handed in must change."""


class TraceError(InputError):
    """A trace cannot be read.

    Args:
        path: The file.
        problem: What is wrong, and the remedy.
        line: Where, counted from 1; 0 = nowhere in particular.
    """

    def __init__(self, path: Path, problem: str, *, line: int = 0) -> None:
        place = f"{path}:{line}" if line else str(path)
        super().__init__(f"{place}: {problem}")


class ClusterError(InputError):
    """The machines are described wrongly."""


class PredictionsError(InputError):
    """Predictions of this kind are not to be had for this trace."""


class PolicyFaultError(SimulatorError):
    """A policy cannot be run to the end.

    Args:
        policy: Its name.
        fault: What it raised, or what was wrong with its answer.
    """

    def __init__(self, policy: str, fault: str) -> None:
        super().__init__(f"policy {policy} failed: {fault}; mend its decide(view), or leave it out of the policies")


class BrokenSimulationError(SimulatorError):
    """An invariant does not hold; the message states which and by how much."""

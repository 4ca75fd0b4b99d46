"""Trace in, tables and pictures out: the scheduler's own engine and policies in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant_simulator.data_frames import Comparison, simulate

__all__ = ["Comparison", "simulate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever has the name)
    """Loads what makes data frames when it is used: the command line pays nothing for it."""
    if name in __all__:
        from cotenant_simulator import data_frames

        return getattr(data_frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

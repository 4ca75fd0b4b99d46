"""Trace in, tables and pictures out: the scheduler's own engine and policies in simulated time."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant_simulator.data_frames import Comparison, simulate

__all__ = ["Comparison", "simulate"]


def _data_frames() -> ModuleType:
    try:
        from cotenant_simulator import data_frames
    except ModuleNotFoundError as error:
        from cotenant.extras import missing_extra_line
        from cotenant_simulator.errors import InputError

        raise InputError(missing_extra_line("cotenant_simulator", error).removeprefix("error: ")) from None
    return data_frames


def __dir__() -> list[str]:
    """Names what is loaded when it is used, too, so that a notebook offers it."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever has the name)
    """Loads what makes data frames when it is used: the command line pays nothing for it."""
    if name in __all__:
        return getattr(_data_frames(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Ends a program as Ctrl-C does, so that what it has started ends with it."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def unwind_when_ended() -> None:
    """Lets the signals of `kill` and of a closed terminal leave by the `with` blocks that stop schedulers and jobs.

    By default they end Python at once: what it has started, in sessions of its own, goes on. Of several signals the
    first counts, so that an impatient second one does not end the stopping.
    """
    for number in _SIGNALS:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    for each in (*_SIGNALS, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)

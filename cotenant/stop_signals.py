"""How a program that goes on until it is told to end hears of it."""

from __future__ import annotations

import signal
import threading


def until_signal(*further: signal.Signals) -> threading.Event:
    """Return what SIGINT, SIGTERM and these further signals set; to be called in the main thread."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, *further):
        signal.signal(number, lambda *_: stop.set())
    return stop

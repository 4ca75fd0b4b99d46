"""What holds for every test."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator

import pytest

# Agents that a test starts would measure their devices for half a minute; those about calibration ask for it.
os.environ.setdefault("COTENANT_AGENT_CALIBRATE", "false")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program that a test runs in this process starts its own logging; the next test sees none of it."""
    root = logging.getLogger()
    handlers, level, hooks = list(root.handlers), root.level, (sys.excepthook, threading.excepthook)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks

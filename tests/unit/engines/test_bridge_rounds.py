"""A bridge goes on asking an engine that does not answer, and says so once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import cast

import pytest

from cotenant.cli.engine_command import _run_rounds
from cotenant.engines.bridge import Bridge
from cotenant.engines.errors import EngineUnreachableError


class FailingBridge:
    """Fails as told, then ends the program that it is in."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)

    def run_round(self, *, now_ms: int, notes_max: int) -> None:
        if len(self.messages) == 1:
            signal.raise_signal(signal.SIGTERM)
        message = self.messages.pop(0)
        raise EngineUnreachableError(message, remedy="look for it" if message == "gone" else "")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_what_goes_on_failing_is_said_once_and_what_else_fails_anew(capsys: pytest.CaptureFixture[str]) -> None:
    _run_rounds(cast("Bridge", FailingBridge("down", "down", "down", "gone", "down")), 0.01)
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    remedies = {"down": "", "gone": "; look for it"}
    asked = ("down", "gone", "down")
    assert told == [f"error: {cause}; asking again every 0.01 s{remedies[cause]}" for cause in asked]

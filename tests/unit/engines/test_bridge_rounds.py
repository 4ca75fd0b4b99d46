"""A bridge asks an engine that does not answer less and less often, says so once, and ends where that is no use."""

from __future__ import annotations

import signal
from typing import cast

import grpc
import pytest

from cotenant import system_clock
from cotenant.cli import engine_rounds
from cotenant.cli.engine_rounds import PAUSE_INTERVALS_MAX, PAUSE_S_MAX, run_rounds, wait_for_engine
from cotenant.cli.exit_codes import ExitCode, exit_code_of
from cotenant.client_errors import CotenantError, PermissionDeniedError
from cotenant.engines.bridge import Bridge
from cotenant.engines.errors import EngineDeniedError, EngineTakenError, EngineUnreachableError
from cotenant.errors import InputError


class FailingBridge:
    """Fails as told, then ends the program that it is in."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)

    def run_round(self, *, now_ms: int, notes_max: int) -> None:
        if len(self.messages) == 1:
            signal.raise_signal(signal.SIGTERM)
        message = self.messages.pop(0)
        if message == "taken":
            raise EngineTakenError(message)
        raise EngineUnreachableError(message, remedy="look for it" if message == "gone" else "")


class Stop:
    """Notes the pauses, and waits for none of them."""

    def __init__(self, rounds: int = 1_000) -> None:
        self.rounds = rounds
        self.pauses_s: list[float] = []

    def is_set(self) -> bool:
        return len(self.pauses_s) == self.rounds

    def wait(self, timeout: float) -> None:
        self.pauses_s.append(timeout)


def test_what_goes_on_failing_is_said_once_and_what_else_fails_anew(capsys: pytest.CaptureFixture[str]) -> None:
    run_rounds(cast("Bridge", FailingBridge("down", "down", "down", "gone", "down")), 0.01)
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    remedies = {"down": "", "gone": "; look for it"}
    asked = ("down", "gone", "down")
    assert told == [f"error: {cause}; asking again, every 0.08 s at least{remedies[cause]}" for cause in asked]


@pytest.mark.parametrize(
    ("failure", "interval_s", "pauses_s"),
    [
        ("down", 2.0, [4, 8, 16, 16, 16]),
        ("down", 20.0, [40, 60, 60]),
        ("down", 600.0, [600, 600]),
        ("taken", 2.0, [2, 2, 2, 2, 2]),
    ],
    ids=["lost", "lost for long", "lost between rare rounds", "taken"],
)
def test_pauses_grow_up_to_a_bound_unless_another_controller_is_waited_for(
    failure: str, interval_s: float, pauses_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop(len(pauses_s))
    monkeypatch.setattr(engine_rounds, "until_signal", lambda: stop)
    run_rounds(cast("Bridge", FailingBridge(*[failure] * (len(pauses_s) + 1))), interval_s)
    assert stop.pauses_s == pauses_s
    assert max(pauses_s) <= min(PAUSE_INTERVALS_MAX * interval_s, max(PAUSE_S_MAX, interval_s))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("squeue is not installed here"), ExitCode.USAGE),
        (EngineDeniedError("401"), ExitCode.PERMISSION),
        (PermissionDeniedError("the token was revoked", code=grpc.StatusCode.PERMISSION_DENIED), ExitCode.PERMISSION),
    ],
)
def test_what_asking_again_does_not_change_ends_the_program(
    error: CotenantError, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def run_round(self, *, now_ms: int, notes_max: int) -> None:
            raise error

    monkeypatch.setattr(engine_rounds, "until_signal", lambda: Stop(3))
    with pytest.raises(type(error)) as caught:
        run_rounds(cast("Bridge", Ended()), 0.01)
    assert exit_code_of(caught.value) is code


def test_an_engine_that_is_not_there_yet_is_waited_for_and_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_ms: list[int] = []
    monkeypatch.setattr(system_clock, "wait_ms", pauses_ms.append)
    answers = iter([EngineUnreachableError("no Ray cluster")] * 5)

    def connect() -> str:
        if (error := next(answers, None)) is not None:
            raise error
        return "connected"

    assert wait_for_engine(connect, 1.0) == "connected"
    assert pauses_ms == [2_000, 4_000, 8_000, 8_000, 8_000]
    assert capsys.readouterr().err.count("no Ray cluster; asking again") == 1


@pytest.mark.parametrize(("error", "interval_s"), [(EngineUnreachableError("no"), 0.0), (EngineDeniedError("no"), 1.0)])
def test_a_single_question_and_one_that_is_denied_wait_for_nothing(error: CotenantError, interval_s: float) -> None:
    def connect() -> None:
        raise error

    with pytest.raises(type(error)):
        wait_for_engine(connect, interval_s)

"""The rounds of a bridge between an engine and Decide, and what ends them.

One rule for all engines: what is missing here, or refuses who we are, ends the program with cause and remedy. What does
not answer is asked again, less and less often up to a bound, and is said once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from cotenant import system_clock
from cotenant.cli.session import show, tell
from cotenant.client_errors import CotenantError, PermissionDeniedError, ServiceError
from cotenant.engines.bridge import NOTES_PER_ROUND_MAX, Bridge
from cotenant.engines.errors import EngineDeniedError, EngineTakenError, EngineUnreachableError
from cotenant.stop_signals import until_signal

NOTES_PER_S: Final = 10
"""One note takes an engine up to 40 ms; so many take less than half of the time between two rounds."""
PAUSE_INTERVALS_MAX: Final = 8
PAUSE_S_MAX: Final = 60.0
"""Longest pause between two questions to what does not answer, each being twice the one before: so many intervals of
rounds, at most so many seconds, but no less than one interval."""

Found = TypeVar("Found")


class _Failures:
    """What goes on failing, said once.

    Args:
        interval_s: Between two rounds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._most_s = max(interval_s, min(PAUSE_INTERVALS_MAX * interval_s, PAUSE_S_MAX))
        self._told = ""
        self.pause_s = interval_s

    def note(self, error: CotenantError) -> None:
        """Say what is new of a failure, and make the pause longer; a standby asks as often as before."""
        if error.message != self._told:
            remedy = f"; {error.remedy}" if error.remedy else ""
            tell(f"error: {error.message}; asking again, every {self._most_s:g} s at least{remedy}", style="red")
        self._told = error.message
        if not isinstance(error, EngineTakenError):
            self.pause_s = min(2 * self.pause_s, self._most_s)

    def forget(self) -> None:
        """Note that all is well again."""
        self._told, self.pause_s = "", self._interval_s


def wait_for_engine(connect: Callable[[], Found], interval_s: float) -> Found:
    """Return what connecting returns, once the engine answers; SIGTERM ends the program meanwhile.

    Args:
        connect: Raises EngineUnreachableError where it does not.
        interval_s: Between two tries at first; 0 = one only.

    Raises:
        EngineUnreachableError: It does not answer the only try.
        EngineDeniedError: It lets us not in.
    """
    failures = _Failures(interval_s)
    while True:
        try:
            return connect()
        except EngineUnreachableError as error:
            if not interval_s or isinstance(error, EngineDeniedError):
                raise
            failures.note(error)
        system_clock.wait_ms(round(1_000 * failures.pause_s))


def run_rounds(bridge: Bridge, interval_s: float) -> None:
    """Go on until SIGTERM; an engine or a scheduler that does not answer is asked again.

    Raises:
        InputError: What the engine is asked with is missing here.
        EngineDeniedError: The engine lets us not in.
        PermissionDeniedError: The scheduler does not.
    """
    stop, failures = until_signal(), _Failures(interval_s)
    # GPUs that fall free do not wait for words.
    notes_max = min(max(round(NOTES_PER_S * interval_s), 1), NOTES_PER_ROUND_MAX)
    warnings = frozenset[str]()
    while not stop.is_set():
        try:
            warnings = show_round(bridge, notes_max, warnings)
            failures.forget()
        except (EngineDeniedError, PermissionDeniedError):
            raise
        except (EngineUnreachableError, ServiceError) as error:
            failures.note(error)
        stop.wait(failures.pause_s)


def show_round(bridge: Bridge, notes_max: int, warnings: frozenset[str] = frozenset()) -> frozenset[str]:
    """Run one round and print what came of it; return its warnings.

    Args:
        bridge: Runs it.
        notes_max: So many jobs at most are told why they wait.
        warnings: Of the round before: they are not printed again.
    """
    lines = bridge.run_round(now_ms=system_clock.now_ms(), notes_max=notes_max).lines
    for line in lines:
        if line not in warnings:
            show(line)
    return frozenset(line for line in lines if line.startswith("warning: "))

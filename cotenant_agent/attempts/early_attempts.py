"""Attempts of a table that were started early: their start, the word to begin, and their end before that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.early_start import PREPARATION_LOST
from cotenant_agent.attempts.stop_orders import request_stop
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.records import AttemptKey, AttemptState
from cotenant_agent.storage.durable_files import read_text
from cotenant_agent.storage.state_directory import StateDirectory


def with_devices(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Those that have devices now: they have not ended, and may run."""
    return [item for item in attempts if item.state is not AttemptState.ENDED and not item.is_early]


def find_prepared(attempts: Iterable[Attempt]) -> list[AttemptKey]:
    """Attempts that wait for the word to begin; each is named once, and again when it is ordered again."""
    found = [item for item in attempts if not item.announced and item.is_early and item.directory.prepared.exists()]
    for attempt in found:
        attempt.announced = True
    return [attempt.key for attempt in found]


class LostPreparations:
    """What ended before it might begin; nothing of it stays on this node."""

    def __init__(self, directory: StateDirectory, groups: ControlGroups) -> None:
        self._directory = directory
        self._groups = groups
        self._lost: list[tuple[AttemptKey, str]] = []

    def forget(self, attempt: Attempt) -> None:
        """Delete what is left of an attempt whose processes have ended."""
        record = attempt.read(attempt.directory.exit)
        code, cause = (record or {}).get("return_code"), read_text(record, "cause")
        tail = read_text(record, "log_tail").strip().splitlines()[-1:]
        words = cause or f"it ended with {code}" + (f": {tail[0]}" if tail else "")
        self._lost.append((attempt.key, words))
        if attempt.socket is not None:
            attempt.socket.close()
            attempt.socket = None
        self._groups.remove(attempt.directory.path.name)
        self._directory.forget(attempt.directory)

    def take(self) -> list[tuple[AttemptKey, str]]:
        """Those since the last call, and why."""
        lost, self._lost = self._lost, []
        return lost


def give_up_early(attempts: Iterable[Attempt], key: AttemptKey) -> bool:
    """End what was started early for a launch that will not be; whether there was any.

    What the disk does not take ends with its lease, which is not renewed.
    """
    found = [item for item in attempts if item.is_early and item.key.is_meant_by(key)]
    for attempt in found:
        with contextlib.suppress(OSError):
            request_stop(attempt, "not_needed")
    return bool(found)


def begin_or_end(begin: Callable[[], Attempt], end: Callable[[], None]) -> Attempt:
    """Let an attempt begin that was started early; where that is refused it ends.

    Raises:
        CommandRefusedError: as `begin`; it may be ordered again under another number.
    """
    try:
        return begin()
    except CommandRefusedError:
        end()
        raise
    except OSError as error:
        end()
        raise CommandRefusedError(PREPARATION_LOST, f"this node cannot store the order: {error}") from error

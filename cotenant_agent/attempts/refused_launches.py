"""Launches that were refused here: their jobs may run elsewhere by now, and late repetitions must not start them."""

from __future__ import annotations

from collections import OrderedDict

from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.records import AttemptKey

REFUSALS_KEPT_MAX = 1_000


class RefusedLaunches:
    """The newest refusals, by attempt."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[AttemptKey, tuple[str, str]] = OrderedDict()

    def note(self, key: AttemptKey, refusal: CommandRefusedError) -> None:
        """Remember a refusal; the oldest one leaves first."""
        self._refusals[key] = (refusal.code, refusal.message)
        while len(self._refusals) > REFUSALS_KEPT_MAX:
            self._refusals.popitem(last=False)

    def check(self, key: AttemptKey) -> None:
        """Refuse again what was refused before.

        Raises:
            CommandRefusedError: it was, with the same code and message.
        """
        if key in self._refusals:
            raise CommandRefusedError(*self._refusals[key])

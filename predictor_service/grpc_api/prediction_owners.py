"""Which prediction was asked for by which engine: another scheduler reports outcomes of its own predictions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cotenant.access.callers import current_caller
from cotenant.access.roles import Role
from predictor_service.outcome_journal import OutcomeJournal

_ASKED_BY: Final = "asked_by"


def asked_by() -> Mapping[str, str]:
    """Returns what the journal notes of the caller: the names of engines; nothing of people and schedulers."""
    caller = current_caller()
    return {_ASKED_BY: caller.name} if caller.role is Role.ENGINE else {}


def asked_by_text() -> str:
    """Returns the same as the beginning of a JSON object's content; a caller's name needs no escapes."""
    caller = current_caller()
    return f'"{_ASKED_BY}":"{caller.name}",' if caller.role is Role.ENGINE else ""


def foreign_predictions(journal: OutcomeJournal, prediction_ids: Sequence[str]) -> list[str]:
    """Returns those of some predictions whose outcomes the caller may not report; they count as unknown.

    Args:
        journal: Where predictions are remembered.
        prediction_ids: Any, also unknown ones, which are left out.
    """
    caller = current_caller()
    if caller.role is not Role.ENGINE:
        return []
    found = journal.find(prediction_ids)
    return [name for name, entry in found.items() if entry.content.get(_ASKED_BY) != caller.name]

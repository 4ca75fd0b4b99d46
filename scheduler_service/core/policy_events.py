"""Facts about the policy itself."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_service.core.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySilenced(Event):
    """The policy did not answer in time upon an earlier event, and is not asked again until one is chosen.

    Kept for the replay: there it could answer, and would have decided what was not.

    Attributes:
        sequence: Of that event.
        answers: How often it had answered upon that event before.
        words: What was said of it.
    """

    sequence: int
    answers: int
    words: str

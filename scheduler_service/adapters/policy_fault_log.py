"""Logs what was wrong with a policy's answers, for the author of the policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event
from scheduler_service.core.jobs.job_records import RejectedDecision
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.state import ClusterState

_log = logging.getLogger(__name__)

FAILED, SILENT = "POLICY_FAILED", "POLICY_SILENT"


@dataclass(slots=True, kw_only=True)
class PolicyFaultLog:
    """One line for what a policy raised or decided in vain, and no second one while it does so again and again.

    Attributes:
        state: Returns the engine's state; what was refused before this log was there is not told.
    """

    state: Callable[[], ClusterState]
    _last: RejectedDecision | None = None
    _told: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Begin behind what a stored state has kept."""
        self._last = next(reversed(self.state().rejected), None)

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Wait for the end of the batch."""

    def batch_handled(self) -> None:
        """Log the newest fault of each batch that has one."""
        rejected = self.state().rejected
        new = list(takewhile(lambda one: one is not self._last, reversed(rejected)))
        if not new:
            return
        self._last = new[0]
        # What a policy raised tells more than what was refused beside it.
        fault = next((one for one in new if one.reason.code in (FAILED, SILENT)), new[0])
        told = (fault.policy, fault.reason.code, fault.detail)
        if told != self._told:
            self._told = told
            _tell(fault, count=len(new))


def _tell(fault: RejectedDecision, *, count: int) -> None:
    words = {"policy": fault.policy, "reason": fault.detail, "count": count}
    if fault.reason.code == FAILED:
        _log.error("policy_failed", extra=words)
    elif fault.reason.code == SILENT:
        _log.error("policy_silent", extra=words)
    else:
        words["reason"] = f"{fault.detail}: {describe_reason(fault.reason)}"
        _log.warning("decision_refused", extra={**words, "job_id": fault.job_id})

"""What of a policy's answer may be carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.decisions import Decision
from scheduler_service.core.records import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A decision that was dropped, and why."""

    decision: Decision
    reason: Reason


@slotted_record
class CheckedPlan:
    """What may be carried out.

    Attributes:
        decisions: In execution order; holds are filled in for jobs whose decision was dropped or absent.
        reservations: Memory to reserve on each GPU, by job id, for the starts and moves.
        rejections: What was dropped; empty for a correct policy.
    """

    decisions: tuple[Decision, ...]
    reservations: Mapping[str, int]
    rejections: tuple[Rejection, ...]

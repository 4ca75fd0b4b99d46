"""A policy with one defect at a time in its answers, which the contract suite has to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold, unfolded
from scheduler_service.core.records import Reason
from scheduler_service.policies.fifo import Fifo


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPolicy:
    """First in, first out, as it is but for its answers.

    Attributes:
        defect: A key of `DEFECTS`; empty = none.
    """

    defect: str = ""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return fifo's decisions with the defect in every hold."""
        decisions = unfolded(Fifo().decide(view))
        spoil = DEFECTS.get(self.defect)
        return [spoil(one) if spoil is not None and isinstance(one, Hold) else one for one in decisions]


def _with_numbers(hold: Hold, numbers: Mapping[str, float]) -> Hold:
    return replace(hold, reason=replace(hold.reason, numbers=numbers))


def _with_nan(hold: Hold) -> Hold:
    return _with_numbers(hold, dict.fromkeys(hold.reason.numbers, nan))


def _with_row(hold: Hold, *, feasible: bool, code: str) -> Hold:
    reason = Reason(code=code, numbers={"gpus_in_cluster": 1})
    first = [replace(row, feasible=feasible, reason=reason) for row in hold.candidates[:1]]
    return replace(hold, candidates=(*first, *hold.candidates[1:]))


DEFECTS: Mapping[str, Callable[[Hold], Hold]] = {
    "unregistered code": lambda hold: replace(hold, reason=Reason(code="NO_SUCH_CODE")),
    "missing number": lambda hold: _with_numbers(hold, {}),
    "number that is none": _with_nan,
    "number without a unit": lambda hold: _with_numbers(hold, {**hold.reason.numbers, "mood": 1.0}),
    "missing ids": lambda hold: replace(hold, reason=replace(hold.reason, job_ids=())),
    "empty table": lambda hold: replace(hold, candidates=()),
    "missing row": lambda hold: replace(hold, candidates=hold.candidates[1:]),
    "repeated row": lambda hold: replace(hold, candidates=(*hold.candidates[:1], *hold.candidates)),
    "refused for no obstacle": lambda hold: _with_row(hold, feasible=False, code="CLUSTER_FULL"),
    "feasible against its reason": lambda hold: _with_row(hold, feasible=True, code="CLUSTER_FULL"),
}

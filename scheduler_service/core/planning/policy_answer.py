"""What a policy answers, looked at before anything relies on it: a policy may be another package's."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import PurePath
from traceback import walk_tb

from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision, HoldMany, Placement, Reshape, Start
from scheduler_service.core.errors import POLICY_FAULTS, PolicySilentError
from scheduler_service.core.jobs.job_records import RejectedDecision, with_history
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Assignment, Reason
from scheduler_service.core.state import ClusterState
from scheduler_service.core.trial_sharing.measuring_starts import with_measuring_starts
from scheduler_service.core.trial_sharing.trial_moves import trial_moves

_COUNTING = (Start, Reshape)
_WHOLE = (int, Integral)
"""An int is one without asking the abstract class, which takes ten times as long."""


def decisions_of(policy: Policy, view: SchedulingView) -> Sequence[Decision]:
    """Ask a policy, and return its decisions with the moves and the starts for trials that follow from them.

    Raises:
        TypeError: It answered something else than decisions.
        Exception: Whatever the policy raises.
    """
    decisions = answer_of(policy, view)
    moves = trial_moves(view, decisions) if getattr(policy, "trial_moves", False) else ()
    if not moves and getattr(policy, "trial_pauses", False):
        return with_measuring_starts(view, decisions)
    return (*decisions, *moves) if moves else decisions


def answer_of(policy: Policy, view: SchedulingView) -> Sequence[Decision]:
    """Ask a policy, and return its decisions.

    Raises:
        TypeError: It answered something else than decisions.
        Exception: Whatever the policy raises.
    """
    decisions = tuple(policy.decide(view))
    for decision in decisions:
        _require_decision(decision)
    return decisions


def describe_fault(policy: Policy, error: BaseException) -> str:
    """Return what a policy has raised, with the line of its own file where that was."""
    return f"{type(error).__name__}: {_words_of(error)}{_place(policy, error)}"


def _words_of(error: BaseException) -> str:
    try:
        return f"{error!s:.400}"
    except POLICY_FAULTS:  # its own words may have a bug too
        return "it has no words"


def note_failed(state: ClusterState, policy: Policy, error: BaseException) -> None:
    """Keep what a policy has raised; one that does not answer is not asked again until one is chosen."""
    if isinstance(error, PolicySilentError):
        state.silence = _words_of(error)
        note_refused(state, "", Reason(code="POLICY_SILENT"), state.silence)
    else:
        note_refused(state, "", Reason(code="POLICY_FAILED"), describe_fault(policy, error))


def _place(policy: Policy, error: BaseException) -> str:
    code = getattr(getattr(type(policy), "decide", None), "__code__", None)
    own = code.co_filename if code is not None else ""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == own]
    return f" ({'/'.join(PurePath(own).parts[-2:])}:{lines[-1]})" if lines else ""


def note_refused(state: ClusterState, job_id: str, reason: Reason, detail: str) -> None:
    """Keep a decision that was dropped; a running job tells it in its story, once in a row."""
    job = state.jobs.get(job_id)
    message = f"{detail}: {describe_reason(reason)}"[:500]
    if job is not None and job.holds_gpus and (not job.history or job.history[-1].message != message):
        state.put_job(with_history(job, at_ms=state.now_ms, kind="refused", message=message))
    state.rejected.append(
        RejectedDecision(at_ms=state.now_ms, policy=state.policy, job_id=job_id, reason=reason, detail=detail[:500])
    )


def _require_decision(decision: Decision) -> None:
    if not isinstance(decision, Decision):
        raise TypeError(f"decide(view) returned {decision!r:.100}, which is no decision")
    if not isinstance(decision.job_id, str):
        raise TypeError(f"a decision is about job {decision.job_id!r:.100}, not about a job's id")
    if not isinstance(decision.reason, Reason):
        raise TypeError(f"the reason of job {decision.job_id} is {decision.reason!r:.100}, not a Reason")
    if isinstance(decision, Placement):
        _require_placement(decision)
    elif isinstance(decision, HoldMany) and not isinstance(decision.job_ids, tuple):
        raise TypeError(f"the jobs of a hold are {decision.job_ids!r:.100}, not a tuple of ids")


def _require_placement(placement: Placement) -> None:
    for one in placement.assignments:
        if not isinstance(one, Assignment):
            raise TypeError(f"the GPUs of job {placement.job_id} are {placement.assignments!r:.100}, not assignments")
    if isinstance(placement, _COUNTING):
        counts: tuple[object, ...] = (placement.micro_batch_size, placement.accumulation_steps)
        if not (isinstance(counts[0], _WHOLE) and isinstance(counts[1], _WHOLE)):
            raise TypeError(f"job {placement.job_id} gets samples and passes {counts!r:.100}, not whole numbers")

"""When a policy is asked again although nothing happens: where time alone may change its mind, at its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isnan
from numbers import Real

from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.commands import LaunchJob, PauseJob, PrepareJob, ResumeJob, StopJob
from scheduler_service.core.errors import POLICY_FAULTS, PolicySilentError
from scheduler_service.core.event_effects import EventEffects, PutOff
from scheduler_service.core.events import Event, JobProgressed, JobStarted, TimerFired
from scheduler_service.core.planning.policy_answer import note_failed
from scheduler_service.core.queue.turns import needs_turns
from scheduler_service.core.state import ClusterState

_ORDERS = LaunchJob, StopJob, PrepareJob, PauseJob, ResumeJob
_REPORTS = JobProgressed, JobStarted
_NOTHING = PutOff()


def find_looks(
    policy: Policy,
    event: Event | None,
    step: EventEffects,
    state: ClusterState,
    look: Callable[..., SchedulingView],
    *,
    changes_before: tuple[int, int],
    earlier: PutOff | None = None,
) -> Sequence[int]:
    """Return when to ask again, in ms.

    A policy without `next_look_ms` is asked at every multiple. One that has it is asked at the next multiple after
    every fact, but for reports that it does not heed, and says when time alone may change its answer once a timer has
    ordered nothing. One that always `settles` says so at once: what it was asked upon is no reason to ask it again.

    Args:
        policy: The policy.
        event: What has just been handled; None = it could not be applied.
        step: What followed from it; the policy was asked where a decision was due, by it or by the facts before it.
        state: This instant.
        look: Returns the cluster as it is now, `explain` being asked for or not.
        changes_before: How many changes of predictions there were before the fact, and how many of them were news.
        earlier: What the facts before it that were learned together with it have left.
    """
    interval_ms = int(getattr(policy, "interval_ms", 0))
    if not interval_ms:
        return ()
    soon_ms = (state.now_ms // interval_ms + 1) * interval_ms
    find = getattr(policy, "next_look_ms", None)
    if find is None:
        return (soon_ms,) if step.is_decision_due else ()
    settles = getattr(policy, "settles", False) is True
    earlier = earlier or _NOTHING
    is_unheeded = not (step.is_decision_due or earlier.is_heeded) and _is_unheeded(policy, event, step, state)
    if is_unheeded and not _is_prediction_new(state, changes_before, earlier, settles=settles):
        return ()
    stands = step.is_decision_due if settles else earlier.are_timers and _is_idle_timer(event, step)
    if not stands:
        if not step.is_decision_due:
            state.stands_at_ms = None
        return (soon_ms,)
    if step.look_ms is not None and not step.is_decision_due:  # found a moment ago
        at_ms = step.look_ms
    else:
        at_ms = _look_ms(policy, find, look(explain=False), state)
    return () if at_ms == inf else (max(soon_ms, -(-int(at_ms) // interval_ms) * interval_ms),)


def put_off(
    policy: Policy, event: Event, step: EventEffects, state: ClusterState, *, changes_before: tuple[int, int]
) -> None:
    """Leave to the next fact what is to be decided upon this one; the arguments are those of `find_looks`."""
    before, changes, (count, news_count) = state.put_off or _NOTHING, state.predictions.changes, changes_before
    state.put_off = PutOff(
        is_decision_due=before.is_decision_due or step.is_decision_due,
        is_heeded=before.is_heeded or not _is_unheeded(policy, event, step, state),
        is_changed=before.is_changed or changes.count > count,
        is_news=before.is_news or changes.news_count > news_count,
        are_timers=before.are_timers and _is_idle_timer(event, step),
    )


def find_standing_look(policy: Policy, state: ClusterState, look: Callable[..., SchedulingView]) -> float | None:
    """Return when time alone may change a policy's answer, which stands although a timer rings.

    It stands where the policy says by `settles(view)` that an answer on such a cluster stands until the next fact or
    look: no fact that it heeds has come, and no look was due since. One that is asked in turns answers about a part
    only.

    Args:
        policy: The policy.
        state: This instant, of which a timer alone tells.
        look: Returns the cluster as it is now, seen as of an instant before.

    Returns:
        An instant after this one, in ms; inf = none, None = the policy is to be asked now.
    """
    settles, find = getattr(policy, "settles", None), getattr(policy, "next_look_ms", None)
    since_ms = state.stands_at_ms
    if since_ms is None or find is None or not callable(settles) or state.put_off is not None or needs_turns(state):
        return None
    view = look(explain=False, now_ms=since_ms)
    if not _does(policy, settles, view, state) or (at_ms := _look_ms(policy, find, view, state)) <= state.now_ms:
        return None
    state.stands_at_ms = state.now_ms
    return at_ms


def _look_ms(
    policy: Policy, find: Callable[[SchedulingView], float | None], view: SchedulingView, state: ClusterState
) -> float:
    """Return when a policy wants to be asked; one that cannot say it is asked at every multiple, and that is kept."""
    try:
        at_ms = find(view)
        if at_ms is None:
            return inf
        if not isinstance(at_ms, (int, float, Real)) or isnan(at_ms):
            raise TypeError(f"next_look_ms(view) returned {at_ms!r:.100}, which is no instant in ms")
    except POLICY_FAULTS as error:
        note_failed(state, policy, error)
        return 0
    return max(at_ms, 0)  # of minus infinity no multiple can be taken


def _does(
    policy: Policy, settles: Callable[[SchedulingView], object], view: SchedulingView, state: ClusterState
) -> bool:
    """Return whether a policy says that its answer stands; one that cannot say it is asked, and that is kept."""
    try:
        return bool(settles(view))
    except POLICY_FAULTS as error:
        note_failed(state, policy, error)
        return False


def heeds_some_report(policy: Policy) -> bool:
    """Return whether a report may be a fact to a policy, however much a job has lost."""
    heeds_report = getattr(policy, "heeds_report", None)
    try:
        return heeds_report is None or bool(heeds_report(lost_ratio=1.0))
    except POLICY_FAULTS:  # a policy that cannot say it is asked
        return True


def _is_idle_timer(event: Event | None, step: EventEffects) -> bool:
    return isinstance(event, TimerFired) and not step.commands


def _is_prediction_new(state: ClusterState, before: tuple[int, int], earlier: PutOff, *, settles: bool) -> bool:
    """Return whether facts have changed what is predicted, for a policy that settles: what may let a job start."""
    changes, (count, news_count) = state.predictions.changes, before
    if settles:
        return (earlier.is_news or changes.news_count > news_count) and state.has_ready_jobs
    return earlier.is_changed or changes.count > count


def _is_unheeded(policy: Policy, event: Event | None, step: EventEffects, state: ClusterState) -> bool:
    """Return whether a fact upon which the policy was not asked changes neither its answer nor when it looks again."""
    heeds_report = getattr(policy, "heeds_report", None)
    if heeds_report is None or not isinstance(event, _REPORTS):
        return False
    if step.commands and any(isinstance(order, _ORDERS) for order in step.commands):
        return False
    try:
        return not heeds_report(lost_ratio=state.lost_ratios.get(event.job_id, 0.0))
    except POLICY_FAULTS as error:  # a policy that cannot say it is asked
        if isinstance(error, PolicySilentError):
            note_failed(state, policy, error)
        return False


ASKING = (_look_ms.__code__, _does.__code__, _is_unheeded.__code__)
"""The code that asks a policy something else than to decide."""

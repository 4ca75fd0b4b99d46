"""What facts about the queue do: holding and altering jobs, the end of jobs that others wait for, cordons, tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling.time_limits import enforce_time_limits
from scheduler_service.core.events import CommandGiven
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.attempts import end, stop
from scheduler_service.core.predictions.prediction_requests import ask_about_pairs, refresh_hold
from scheduler_service.core.queue.queue_holds import find_failed_parent, find_misplaced_tasks
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.queue_events import (
    JobAltered,
    JobHeld,
    JobReleased,
    NodeCordoned,
    NodeUncordoned,
    TenantsChosen,
)
from scheduler_service.core.reasons.reason_texts import format_quantity
from scheduler_service.core.records import AfterStop, JobRequest, Phase, Reason, Share
from scheduler_service.core.state import ClusterState

STOPPABLE_PHASES = (Phase.STARTING, Phase.RUNNING, Phase.PAUSED)
"""Phases of a job that is on its GPUs, to stay there."""


def hold_job(state: ClusterState, event: JobHeld, step: EventEffects) -> None:
    """Let a job wait until it is released; one that runs is left as it is, or stopped where that is wanted."""
    job = state.jobs.get(event.job_id)
    is_stopped = event.stops_running and job is not None and job.phase in STOPPABLE_PHASES
    _change_hold(state, event, step, is_held=True, phases=STOPPABLE_PHASES if is_stopped else (Phase.PENDING,))
    if is_stopped:
        stop(state, state.jobs[event.job_id], AfterStop.REQUEUE, step, reason=Reason(code="STOPPING_TO_HOLD"))


def release_job(state: ClusterState, event: JobReleased, step: EventEffects) -> None:
    """Let a held job start, or one that is being stopped to be held; another one is left as it is."""
    _change_hold(state, event, step, is_held=False, phases=(Phase.PENDING, Phase.STOPPING))


def _change_hold(
    state: ClusterState, event: JobHeld | JobReleased, step: EventEffects, *, is_held: bool, phases: Sequence[Phase]
) -> None:
    job = state.jobs.get(event.job_id)
    if job is None or job.phase not in phases or job.request.terms.is_held is is_held:
        return
    request = replace(job.request, terms=replace(job.request.terms, is_held=is_held))
    kind = "hold" if is_held else "release"
    state.put_job(with_history(job, at_ms=state.now_ms, kind=kind, message=giver_of(event), request=request))
    if job.phase is Phase.PENDING:
        step.is_decision_due |= refresh_hold(state, job.job_id)
        refresh_array(state, request.terms, step)


def giver_of(event: CommandGiven) -> str:
    """Return in words who gave a command; empty = unknown."""
    actor = event.actor
    return f"by {actor.role} {actor.name}" if actor is not None and actor.role and actor.name else ""


def alter_job(state: ClusterState, event: JobAltered, step: EventEffects) -> None:
    """Change what a pending job asks for; of one that has started only how long it may run."""
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    terms = job.request.terms
    limit_ms = event.time_limit_ms
    limit = f"time limit {format_quantity('time_limit_ms', limit_ms)}" if limit_ms else "no time limit"
    if job.phase in STOPPABLE_PHASES and event.time_limit_ms != terms.time_limit_ms:
        request = replace(job.request, terms=replace(terms, time_limit_ms=event.time_limit_ms))
        state.put_job(_altered(state, job, event, request, limit))
        enforce_time_limits(state, step)
    if job.phase is not Phase.PENDING:
        return
    terms = replace(terms, priority=event.priority, time_limit_ms=event.time_limit_ms)
    request = replace(job.request, terms=terms, share=event.share, max_slowdown_ratio=event.max_slowdown_ratio)
    asked = f"priority {event.priority}, share {event.share.value}, max slowdown {event.max_slowdown_ratio:g}, {limit}"
    state.put_job(_altered(state, job, event, request, asked))
    if request.share is not Share.NEVER and state.keys.note_sharing(request.key):
        for device in state.devices:
            ask_about_pairs(state, request.key, device, step)
    step.is_decision_due |= refresh_hold(state, event.job_id)


def _altered(state: ClusterState, job: JobRecord, event: JobAltered, request: JobRequest, asked: str) -> JobRecord:
    message = f"{asked} {giver_of(event)}".rstrip()
    submission = job.submission.changed(launch=event.launch)
    return with_history(job, at_ms=state.now_ms, kind="alter", message=message, request=request, submission=submission)


def settle_ends(state: ClusterState, step: EventEffects) -> None:
    """Let go, or cancel, the jobs that waited for those that have left, and those that wait for these in turn."""
    while step.left:
        left = step.left.pop()
        for child_id in state.register.children_of(left.job_id) if left.has_ended else ():
            child = state.jobs[child_id]
            if child.phase is Phase.PENDING and not cancel_orphan(state, child, step):
                step.is_decision_due |= refresh_hold(state, child_id)
                refresh_array(state, child.request.terms, step)
        refresh_array(state, left.request.terms, step)


def cancel_orphan(state: ClusterState, job: JobRecord, step: EventEffects) -> bool:
    """Cancel a job that waits for the success of one that has failed or was cancelled; say whether."""
    parent_id = find_failed_parent(state, job.request.terms)
    if parent_id:
        end(state, job, Phase.CANCELLED, Reason(code="PARENT_FAILED", job_ids=(parent_id,)), step)
    return bool(parent_id)


def refresh_array(state: ClusterState, terms: QueueTerms, step: EventEffects) -> None:
    """Show as many waiting tasks of an array as may start, the first ones first."""
    if not terms.array_running_max:
        return
    for task_id in find_misplaced_tasks(state, terms):
        step.is_decision_due |= refresh_hold(state, task_id)


def cordon_node(state: ClusterState, event: NodeCordoned, step: EventEffects) -> None:
    """Start nothing more on a node; where it is drained, what runs there goes on elsewhere from its checkpoint."""
    node = state.nodes.get(event.node_id)
    if node is None:
        return
    state.put_node(replace(node, is_cordoned=True, is_draining=node.is_draining or event.is_draining))
    if event.is_draining:
        reason = Reason(code="DRAINED")
        for job_id in state.occupancy.jobs_on_node(event.node_id):
            if state.jobs[job_id].phase is not Phase.STOPPING:
                stop(state, state.jobs[job_id], AfterStop.REQUEUE, step, reason=reason)
    step.is_decision_due = True


def uncordon_node(state: ClusterState, event: NodeUncordoned, step: EventEffects) -> None:
    """Let a node take jobs again."""
    node = state.nodes.get(event.node_id)
    if node is not None and node.is_cordoned:
        state.put_node(replace(node, is_cordoned=False, is_draining=False))
        for job_id in tuple(state.in_phase(Phase.PENDING)):
            refresh_hold(state, job_id)
        step.is_decision_due = True


def choose_tenants(state: ClusterState, event: TenantsChosen, step: EventEffects) -> None:
    """Go by these rules from now on."""
    held = Counter[str]()
    for job_id in state.running:
        held[state.jobs[job_id].request.tenant] += state.jobs[job_id].held_gpus
    state.tenants.choose(event.rules, held, state.now_ms)
    pending = [state.jobs[job_id] for job_id in state.in_phase(Phase.PENDING)]
    state.waiting.split_by_tenant(event.rules is not None, pending)
    step.is_decision_due = True

"""What facts about the queue do: holding and altering jobs, the end of jobs that others wait for, cordons, tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from scheduler_service.core.attempts import end, stop
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.job_records import JobRecord, with_history
from scheduler_service.core.prediction_requests import ask_about_pairs, refresh_hold
from scheduler_service.core.queue_events import (
    JobAltered,
    JobHeld,
    JobReleased,
    NodeCordoned,
    NodeUncordoned,
    TenantsChosen,
)
from scheduler_service.core.queue_holds import find_failed_parent, find_misplaced_tasks
from scheduler_service.core.queue_terms import QueueTerms
from scheduler_service.core.records import AfterStop, Phase, Reason, Share
from scheduler_service.core.state import ClusterState


def hold_job(state: ClusterState, event: JobHeld, step: EventEffects) -> None:
    """Let a pending job wait for its owner; another one is left as it is."""
    _change_hold(state, event.job_id, step, is_held=True)


def release_job(state: ClusterState, event: JobReleased, step: EventEffects) -> None:
    """Let a held job start; another one is left as it is."""
    _change_hold(state, event.job_id, step, is_held=False)


def _change_hold(state: ClusterState, job_id: str, step: EventEffects, *, is_held: bool) -> None:
    job = state.jobs.get(job_id)
    if job is None or job.phase is not Phase.PENDING or job.request.terms.is_held is is_held:
        return
    request = replace(job.request, terms=replace(job.request.terms, is_held=is_held))
    kind, message = ("hold", "by its owner") if is_held else ("release", "by its owner")
    state.put_job(with_history(job, at_ms=state.now_ms, kind=kind, message=message, request=request))
    step.is_decision_due |= refresh_hold(state, job_id)
    refresh_array(state, request.terms, step)


def alter_job(state: ClusterState, event: JobAltered, step: EventEffects) -> None:
    """Change what a pending job asks for; one that has started meanwhile is left as it is."""
    job = state.jobs.get(event.job_id)
    if job is None or job.phase is not Phase.PENDING:
        return
    terms = replace(job.request.terms, priority=event.priority, time_limit_ms=event.time_limit_ms)
    request = replace(job.request, terms=terms, share=event.share, max_slowdown_ratio=event.max_slowdown_ratio)
    message = f"priority {event.priority}, share {event.share.value}, max slowdown {event.max_slowdown_ratio:g}"
    altered = with_history(job, at_ms=state.now_ms, kind="alter", message=message, request=request, launch=event.launch)
    state.put_job(altered)
    if request.share is not Share.NEVER and state.keys.note_sharing(altered.request.key):
        for device in state.devices:
            ask_about_pairs(state, request.key, device, step)
    step.is_decision_due |= refresh_hold(state, event.job_id)


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

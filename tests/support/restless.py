"""Policies that move, reshape or pause running jobs all the time, so that tests see every corner of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_service.core.cluster_view.spanning import spanning_obstacle
from scheduler_service.core.cluster_view.view import Policy, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Pause, Reshape, Resume, Start, Stop
from scheduler_service.core.records import Assignment, Reason
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.policies.fifo import Fifo
from scheduler_service.policy_registry import make_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Restless:
    """First in, first out; then the job that has stood still longest goes elsewhere, in turn with another width."""

    interval_ms: int = 1_500
    remaining_ms: int = 4_000

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return starts and holds, and at most one move."""
        decisions = list(Fifo().decide(view))
        taken = {part.gpu_id for one in decisions if isinstance(one, Start) for part in one.assignments}
        free = sorted(view.index.free_gpu_ids - taken)
        for job in view.running.values() if view.can_move else ():
            has_rested = view.now_ms - job.started_at_ms >= self.remaining_ms
            moves = _moves_of(job, free, view) if has_rested and not job.is_stopping else []
            if moves:
                reshapes = [one for one in moves if isinstance(one, Reshape)]
                choice = reshapes if reshapes and job.attempt % 2 else moves
                return [*decisions, choice[view.now_ms // 1_000 % len(choice)]]
        return decisions


def _moves_of(job: RunningJob, free: Sequence[str], view: SchedulingView) -> list[Decision]:
    if any(part.gpu_id not in view.gpus or view.gpus[part.gpu_id].is_releasing for part in job.assignments):
        return []
    found: list[Decision] = []
    reason = Reason(code="CANDIDATE")
    held = [part.gpu_id for part in job.assignments]
    for wanted in job.request.allowed_gpus or (job.request.gpus,):
        # A gang across nodes finds another place where there is no free GPU: its own, with other ranks.
        turned = [held[::-1]] if job.request.terms.across_nodes and wanted == len(held) else []
        for gpu_ids in [[*held, *free][start : start + wanted] for start in range(len(free) + 1)] + turned:
            if len(gpu_ids) < wanted or gpu_ids == held or not _may_be_on(job, gpu_ids, view):
                continue
            parts = tuple(Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids))
            if wanted == len(held):
                found.append(Migrate(job_id=job.request.job_id, reason=reason, assignments=parts))
            else:
                samples = -(-job.request.global_batch_size // wanted)
                found.append(
                    Reshape(job_id=job.request.job_id, reason=reason, assignments=parts, micro_batch_size=samples)
                )
    return found


def _may_be_on(job: RunningJob, gpu_ids: Sequence[str], view: SchedulingView) -> bool:
    nodes = [view.nodes[node_id] for node_id in dict.fromkeys(view.gpus[one].node_id for one in gpu_ids)]
    return len(nodes) == 1 or (job.request.terms.across_nodes and spanning_obstacle(nodes) is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pausing:
    """Horus; now and then a job is paused, and resumed, stopped where it stands, or left to go on by itself."""

    interval_ms: int = 1_500

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return starts and holds, at most one new pause, and what becomes of the older ones."""
        decisions = list(make_policy("horus", {}).decide(view))
        turn = view.now_ms // self.interval_ms
        reason = Reason(code="CANDIDATE")
        for job in view.running.values():
            if job.is_paused and not job.is_stopping and view.now_ms - job.neighbours_since_ms >= self.interval_ms // 2:
                decisions += _end_of_pause(job, turn)
        candidates = [job for job in view.running.values() if _may_pause(view, job)]
        if candidates and turn % 2:
            chosen = candidates[turn % len(candidates)]
            longest_ms = (2_000, 7_000, 60_000)[turn % 3]
            decisions.append(Pause(job_id=chosen.request.job_id, reason=reason, paused_ms_max=longest_ms))
        return decisions


def _may_pause(view: SchedulingView, job: RunningJob) -> bool:
    has_rested = view.now_ms - job.neighbours_since_ms >= 1_000
    return has_rested and not job.is_stopping and job.pause is None and pause_obstacle(view, job) is None


def _end_of_pause(job: RunningJob, turn: int) -> list[Decision]:
    reason = Reason(code="CANDIDATE")
    if turn % 5 == 0:
        return [Stop(job_id=job.request.job_id, reason=reason)]
    if turn % 3 == 0 and job.pause is not None and not job.pause.is_resuming:
        return [Resume(job_id=job.request.job_id, reason=reason)]
    return []


def make_restless_policy(name: str, parameters: Mapping[str, object]) -> Policy:
    """Build `restless`, `pausing`, or any policy of the registry."""
    if name == "pausing":
        return Pausing()
    return Restless() if name == "restless" else make_policy(name, parameters)

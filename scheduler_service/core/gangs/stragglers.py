"""Replaces a rank that is slower than the others: a checkpoint and a stop, then all ranks again, it on another GPU.

Where no GPU like its own is free on its node, all ranks start again where they were: then it is its process that is
replaced. A job states from which ratio on, and for how long; three times it is done at most.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 5.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduler_service.core.cluster_view.inventory import kind_of
from scheduler_service.core.decisions import Migrate
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import JobProgressed
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.jobs.rank_watch import RankWatch, with_times
from scheduler_service.core.lifecycle.migration import order_move
from scheduler_service.core.records import Assignment, Phase, Reason
from scheduler_service.core.state import ClusterState

REPLACEMENTS_MAX: Final = 3
"""How often a rank of one job is replaced: what slows it down every time is not the rank."""


def look_for_straggler(state: ClusterState, job_id: str, report: JobProgressed, step: EventEffects) -> None:
    """Take in what the ranks of a running job say of their own step times, and replace one that is too slow.

    Args:
        state: Knows the job.
        job_id: The job.
        report: What its agent told.
        step: Takes the commands.
    """
    job = state.jobs[job_id]
    terms = job.request.replicas
    if not terms.straggler_ratio or not report.rank_step_ms or job.phase is not Phase.RUNNING:
        return
    watch = with_times(
        job.measured.rank_watch or RankWatch(),
        report.rank_step_ms,
        ranks=len(job.assignments),
        now_ms=state.now_ms,
        window_ms=terms.straggler_window_ms,
        ratio=terms.straggler_ratio,
    )
    job = job.measuring(rank_watch=watch)
    state.put_job(job)
    if watch.slow_rank < 0 or state.now_ms - watch.slow_since_ms < terms.straggler_window_ms or watch.is_given_up:
        return
    if job.counts.stragglers_replaced >= REPLACEMENTS_MAX:
        state.put_job(_given_up(job, watch, state.now_ms))
    else:
        _replace_rank(state, job, watch, step)


def _replace_rank(state: ClusterState, job: JobRecord, watch: RankWatch, step: EventEffects) -> None:
    replaced = job.counts.stragglers_replaced + 1
    gpu_ids = _gpus_without(state, job, watch.slow_rank)
    numbers = {
        "rank": watch.slow_rank,
        "own_ratio": watch.own_ratio,
        "own_step_ms": watch.own_step_ms,
        "others_step_ms": watch.others_step_ms,
        "slow_ms": state.now_ms - watch.slow_since_ms,
        "replaced_count": replaced,
        "replaced_max_count": REPLACEMENTS_MAX,
    }
    reason = Reason(code="STRAGGLER_REPLACED", numbers=numbers, gpu_ids=gpu_ids)
    message = f"{_in_words(watch, state.now_ms)}: replaced, {replaced} of at most {REPLACEMENTS_MAX} times"
    state.put_job(
        with_history(job.counting(stragglers_replaced=1), at_ms=state.now_ms, kind="straggler", message=message)
    )
    assignments = tuple(Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids))
    move = Migrate(job_id=job.job_id, reason=reason, assignments=assignments)
    order_move(state, move, reserved_bytes=job.shape.memory_reserved_bytes, step=step)


def _gpus_without(state: ClusterState, job: JobRecord, rank: int) -> tuple[str, ...]:
    """Return the GPUs of a job with another one in place of a rank's, where one like it is free on its node."""
    slow = job.assignments[rank].gpu_id
    entry = state.gpus.get(slow)
    if entry is None:
        return job.gpu_ids
    free = (
        gpu.gpu_id
        for gpu in state.nodes[entry.node_id].gpus
        if gpu.gpu_id in state.occupancy.free_gpu_ids and kind_of(gpu) == kind_of(entry.gpu)
    )
    other = next(free, slow)
    return tuple(other if part.gpu_id == slow else part.gpu_id for part in job.assignments)


def _given_up(job: JobRecord, watch: RankWatch, now_ms: int) -> JobRecord:
    message = f"{_in_words(watch, now_ms)}: it stays, {REPLACEMENTS_MAX} ranks of the job were replaced already"
    noted = replace(watch, is_given_up=True)
    return with_history(job.measuring(rank_watch=noted), at_ms=now_ms, kind="straggler", message=message)


def _in_words(watch: RankWatch, now_ms: int) -> str:
    others = f"{watch.own_ratio:.1f} times the {watch.others_step_ms:.0f} ms of the others"
    slow_s = (now_ms - watch.slow_since_ms) / 1_000
    return f"rank {watch.slow_rank} took {watch.own_step_ms:.0f} ms of its own for a step, {others}, for {slow_s:.0f} s"

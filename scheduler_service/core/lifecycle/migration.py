"""Moving a running job: a checkpoint and a stop, then a new attempt with the same progress on the kept place.

Where its node can, the new attempt is prepared first (`preparation`), and the old one trains on until it is.

From the order until the end of the old attempt the job occupies both places, so that no other job takes the new one;
what happens in between (a lost node, a cancellation, a failure) only ever frees places, and the job waits in the queue.
"""

from __future__ import annotations

from scheduler_service.core.decisions import Migrate, Reshape, Start
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_parts import AttemptShape, Target
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.jobs.unsaved_work import with_lost_steps, with_unsaved_work
from scheduler_service.core.lifecycle.attempt_orders import stop_commands, without_unlaunched
from scheduler_service.core.lifecycle.attempts import (
    accrued,
    launch,
    leave_gpus,
    note_colocation_change,
    requeue,
)
from scheduler_service.core.lifecycle.preparation import can_prepare, give_up_preparation, order_preparation
from scheduler_service.core.lifecycle.prepared_attempts import discard_unlaunched
from scheduler_service.core.records import AfterStop, Phase, Reason
from scheduler_service.core.state import ClusterState


def order_move(state: ClusterState, decision: Migrate | Reshape, *, reserved_bytes: int, step: EventEffects) -> None:
    """Ask for the end of the present attempt and keep the place of the next one."""
    job = state.jobs[decision.job_id]
    shape = decision if isinstance(decision, Reshape) else job.shape
    target = Target(
        assignments=tuple(sorted(decision.assignments, key=lambda assignment: assignment.rank)),
        shape=AttemptShape(
            micro_batch_size=shape.micro_batch_size,
            accumulation_steps=shape.accumulation_steps,
            memory_reserved_bytes=reserved_bytes,
            memory_surge=decision.memory_surge,
            predicted_slowdown_ratio=decision.predicted_slowdown_ratio,
        ),
        reason=decision.reason,
        trial_with=decision.trial_with,
        servers=decision.servers if isinstance(decision, Reshape) else None,
    )
    gpus = ", ".join(part.gpu_id for part in target.assignments)
    is_prepared = can_prepare(state, job, target.assignments)
    step.commands += discard_unlaunched(job)
    job = with_history(
        without_unlaunched(accrued(job, state.now_ms)),
        at_ms=state.now_ms,
        kind="move",
        message=f"to {gpus}: {decision.reason.code}",
        phase=Phase.STOPPING,
        after_stop=AfterStop.MOVE,
        moves=job.moves.changed(target=target, moved_at_ms=0 if is_prepared else state.now_ms),
        pause=None,
        reason=with_unsaved_work(decision.reason, job, state.now_ms),
    )
    if is_prepared:
        order_preparation(state, job, target, step)
        return
    state.put_job(job)
    step.commands += stop_commands(job)


def complete_move(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """Start the next attempt where its place was kept, or queue the job if that place has gone meanwhile."""
    target = job.moves.target
    if target is None or not _is_there(state, target):
        lost = Reason(
            code="MOVE_TARGET_GONE", gpu_ids=tuple(part.gpu_id for part in target.assignments) if target else ()
        )
        requeue(state, job.counting(preemptions=1), lost, step, wait_ms=0)
        return
    shape = target.shape
    is_reshape = (len(target.assignments), shape.micro_batch_size) != (len(job.assignments), job.shape.micro_batch_size)
    is_reshape = is_reshape or target.servers not in (None, job.request.replicas.servers)
    left_behind = state.occupancy.neighbours(job)
    preparation, moved_at_ms = job.moves.preparation, job.moves.moved_at_ms
    job = job.moving(preparation=None)
    job = job.with_values(leave_gpus(state, job, step, has_steps=True))
    reason = with_lost_steps(target.reason, job)
    job = job.changed(steps_done=max(job.checkpoint_step, 0)).moving(moved_at_ms=moved_at_ms)
    job = job.counting(migrations=not is_reshape, reshapes=is_reshape)
    start = Start(
        job_id=job.job_id,
        reason=reason,
        assignments=target.assignments,
        predicted_slowdown_ratio=shape.predicted_slowdown_ratio,
        trial_with=target.trial_with,
        memory_surge=shape.memory_surge,
        micro_batch_size=shape.micro_batch_size,
        accumulation_steps=shape.accumulation_steps,
        servers=target.servers,
    )
    launch(state, job, start, reserved_bytes=shape.memory_reserved_bytes, step=step, preparation=preparation)
    note_colocation_change(state, left_behind)


def withdraw_move(job: JobRecord, step: EventEffects) -> JobRecord:
    """Return a job that only gives its GPUs up and goes nowhere; what is prepared of it elsewhere is given up."""
    job = give_up_preparation(job.changed(after_stop=AfterStop.REQUEUE), step)
    return job.moving(target=None).changed(reason=Reason(code="STOPPING_TO_REQUEUE"))


def _is_there(state: ClusterState, target: Target) -> bool:
    """Say whether every GPU of the kept place is usable and free of attempts that were given up."""
    haunted = {gpu_id for abandoned in state.abandoned_attempts.values() for gpu_id in abandoned.gpu_ids}
    gpu_ids = {part.gpu_id for part in target.assignments}
    return gpu_ids <= state.usable_gpus.keys() and not gpu_ids & haunted

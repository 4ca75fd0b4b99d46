"""The view once decisions are carried out: the next decision of the same instant is about what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.replica_groups import host_share
from scheduler_service.core.cluster_view.view import GpuView, HostUse, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Placement, Reshape, Start, Stop
from scheduler_service.core.records import Assignment


def carry_out(
    view: SchedulingView,
    decisions: Iterable[Decision],
    reservations: Mapping[str, int],
    pending: Mapping[str, PendingJob],
) -> SchedulingView:
    """Return the view after some decisions: what starts runs, what stops or moves still holds its GPUs.

    Args:
        view: Before; `pending` of it is left to the caller.
        decisions: Checked ones, in execution order.
        reservations: Memory to reserve on each GPU, by job id, of what starts and moves.
        pending: The jobs that start, by id.
    """
    after = _After(view)
    for decision in decisions:
        if isinstance(decision, Stop):
            after.stop(after.running[decision.job_id])
        elif isinstance(decision, Migrate | Reshape):
            after.move(decision, reservations[decision.job_id])
        elif isinstance(decision, Start):
            after.start(decision, pending[decision.job_id], reservations[decision.job_id])
    # An index that the engine keeps knows nothing of what is foreseen.
    index = view.index if isinstance(view.index, FreshIndex) else FreshIndex()
    return replace(view, running=after.running, gpus=after.gpus, host_use=after.host_use, index=index)


class _After:
    """What a view says of running jobs, GPUs and hosts, as decisions change it."""

    def __init__(self, view: SchedulingView) -> None:
        self._now_ms = view.now_ms
        self.running, self.gpus, self.host_use = dict(view.running), dict(view.gpus), dict(view.host_use)

    def stop(self, job: RunningJob) -> None:
        """Let a job leave; until it has gone its GPUs take no other one."""
        self.running[job.request.job_id] = replace(job, is_stopping=True)
        self._change(job.assignments, lambda entry: replace(entry, is_releasing=True))

    def move(self, move: Placement, reserved_bytes: int) -> None:
        """Let a job leave for other GPUs, which it holds from now on."""
        job = self.running[move.job_id]
        reserved_bytes = max(job.memory_reserved_bytes, reserved_bytes)
        held = {part.gpu_id for part in job.assignments}
        grown = replace(job, memory_reserved_bytes=reserved_bytes, moving_to=move.assignments)
        self._change(job.assignments, lambda entry: _grown(entry, reserved_bytes - job.memory_reserved_bytes))
        self._change(
            [part for part in move.assignments if part.gpu_id not in held], lambda entry: _joined(entry, grown)
        )
        self.stop(grown)
        self._change(move.assignments, lambda entry: replace(entry, is_releasing=True))
        self._use_hosts(grown, move.assignments)

    def start(self, start: Start, job: PendingJob, reserved_bytes: int) -> None:
        """Let a job begin."""
        started = RunningJob(
            request=job.request,
            attempt=1,
            assignments=start.assignments,
            micro_batch_size=start.micro_batch_size,
            accumulation_steps=start.accumulation_steps,
            submitted_at_ms=job.submitted_at_ms,
            started_at_ms=self._now_ms,
            steps_done=job.steps_done,
            attained_gpu_ms=job.attained_gpu_ms,
            accrued_at_ms=self._now_ms,
            preemptions=job.preemptions,
            memory_reserved_bytes=reserved_bytes,
            is_on_trial=bool(start.trial_with),
            memory_surge=start.memory_surge,
        )
        self.running[start.job_id] = started
        if start.trial_with:
            self.running[start.trial_with] = replace(self.running[start.trial_with], is_on_trial=True)
        self._change(started.assignments, lambda entry: _joined(entry, started))
        self._use_hosts(started, started.assignments)

    def _change(self, parts: Iterable[Assignment], change: Callable[[GpuView], GpuView]) -> None:
        for part in parts:
            # A job may still run on a GPU that takes no job, which is in no view.
            if part.gpu_id in self.gpus:
                self.gpus[part.gpu_id] = change(self.gpus[part.gpu_id])

    def _use_hosts(self, job: RunningJob, parts: Iterable[Assignment]) -> None:
        here = Counter(self.gpus[part.gpu_id].node_id for part in parts if part.gpu_id in self.gpus)
        for node_id, count in here.items():
            share, used = host_share(job.request, count, len(job.assignments)), self.host_use.get(node_id, HostUse())
            self.host_use[node_id] = HostUse(
                cpu_cores=used.cpu_cores + share.cpu_cores,
                host_memory_bytes=used.host_memory_bytes + share.host_memory_bytes,
            )


def _joined(entry: GpuView, job: RunningJob) -> GpuView:
    return replace(_grown(entry, job.memory_reserved_bytes), job_ids=(*entry.job_ids, job.request.job_id))


def _grown(entry: GpuView, more_bytes: int) -> GpuView:
    return replace(entry, memory_reserved_bytes=entry.memory_reserved_bytes + more_bytes)

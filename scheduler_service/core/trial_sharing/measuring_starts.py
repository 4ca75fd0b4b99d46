"""A job that was never measured starts next to one that was, so that it need not wait for an end to be measured alone.

Jobs of which nothing reliable is predicted start alone, and those that follow them find no GPU: two new scripts on one
device would never share. So where no GPU is free such a job starts in the memory that a measured one leaves. Once it
makes steps the measured one is paused for a window (`first_measurements`), and then both share on trial, or the
incoming job leaves. A job starts so once. A policy that shares GPUs asks for this by `trial_pauses`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, isfinite
from typing import NamedTuple

from scheduler_service.core.cluster_view.capacity import Resident, samples_per_gpu
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.step_times import remaining_ms_of
from scheduler_service.core.cluster_view.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest, MeasuringStart, Start
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.records import Assignment, JobRequest, Reason
from scheduler_service.core.sharing.colocation_slowdown import PlacementSlowdown
from scheduler_service.core.trial_sharing.first_measurement_rules import (
    HOST_REMAINING_PAUSES_MIN,
    has_slack,
    host_obstacle,
    incoming_obstacle,
    lendable_after_ms,
    lendable_ms,
    pause_ms_least,
)
from scheduler_service.core.trial_sharing.trial_moves import JOBS_LOOKED_AT_MAX, measured_entries, unmeasured_jobs

INCOMING_JOBS_LOOKED_AT_MAX = 8
"""Waiting jobs that one round weighs."""


class _Host(NamedTuple):
    """A running job next to which another one may be measured; `from_ms` is when, 0 = now."""

    job: RunningJob
    entry: GpuView
    utilization_ratio: float
    paused_ms_max: int
    from_ms: int = 0


def with_measuring_starts(view: SchedulingView, decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Return what a policy has decided, with starts of jobs that are to be measured next to others; one per host.

    Where a host may be paused later only, the scheduler looks again then.

    Args:
        view: What the policy saw.
        decisions: Its answer.
    """
    if not view.pending or view.index.free_gpu_ids or not view.predictions.measured_alone:
        return decisions
    if not all(isinstance(one, Hold | HoldMany | HoldRest) for one in decisions):
        return decisions
    incoming_jobs = list(islice((job for job in unmeasured_jobs(view) if not job.trials), INCOMING_JOBS_LOOKED_AT_MAX))
    hosts = sorted(_hosts(view), key=_preference) if incoming_jobs else []
    if not hosts:
        return decisions
    ledger, starts, taken, keys = Ledger(view), list[MeasuringStart](), set[str](), set[str]()
    later_ms = min((host.from_ms for host in hosts if host.from_ms), default=0)
    for incoming in incoming_jobs:
        if incoming.request.key in keys:
            continue
        free = (host for host in hosts if not host.from_ms and host.entry.gpu.gpu_id not in taken)
        start = next((one for host in free if (one := _start(view, ledger, incoming, host)) is not None), None)
        if start is not None:
            starts.append(start)
            keys.add(incoming.request.key)
            taken.add(start.assignments[0].gpu_id)
    return _looking_again([*starts, *_without({start.job_id for start in starts}, decisions)], later_ms)


def measured_there(view: SchedulingView, ledger: Ledger, start: Start, pending: PendingJob) -> Resident | Reason:
    """Return a job as it would be next to one that is paused for it, with all that this one leaves, or why not.

    Args:
        view: The cluster.
        ledger: What earlier decisions left of it.
        start: Names one GPU.
        pending: The job.
    """
    entry = view.gpus[start.assignments[0].gpu_id]
    gpu_id = entry.gpu.gpu_id
    if pending.trials:
        return Reason(code="SHARE_NOT_ALLOWED", job_ids=(pending.request.job_id,), gpu_ids=(gpu_id,))
    jobs = ledger.job_count(gpu_id)
    if jobs != 1 or len(entry.job_ids) != 1:
        numbers = {"jobs_on_gpu": jobs, "jobs_on_gpu_max": 1}
        return Reason(code="TOO_MANY_JOBS", numbers=numbers, gpu_ids=(gpu_id,))
    host = view.running[entry.job_ids[0]]
    incoming = Resident(
        request=pending.request,
        micro_batch_size=start.micro_batch_size,
        memory_reserved_bytes=ledger.memory_free_bytes(entry),
    )
    return host_obstacle(view, host, entry) or incoming_obstacle(view, incoming, host, entry) or incoming


def unmeasured_slowdown(view: SchedulingView, start: Start) -> PlacementSlowdown:
    """Return that a job shares on trial, and that no slowdown is expected before it is measured."""
    return PlacementSlowdown(None, None, view.gpus[start.assignments[0].gpu_id].job_ids, is_on_trial=True)


def _hosts(view: SchedulingView) -> Iterator[_Host]:
    least_ms = pause_ms_least(view.report_interval_ms)
    for entry in islice(measured_entries(view), JOBS_LOOKED_AT_MAX):
        job = view.running[entry.job_ids[0]]
        if host_obstacle(view, job, entry) is not None:
            continue
        prediction = view.predictions.job(job.request.key, entry.gpu.device)
        remaining_ms = remaining_ms_of(
            job.request, prediction, steps_done=job.steps_done, gpus=1, micro_batch_size=job.micro_batch_size
        )
        if remaining_ms is not None and remaining_ms < HOST_REMAINING_PAUSES_MIN * least_ms:
            continue
        if not has_slack(job, remaining_ms, least_ms):
            continue
        ran_ms, lent_ms = job.attained_gpu_ms, job.lent_ms
        paused_ms_max = lendable_ms(
            job.request, ran_ms=ran_ms, remaining_ms=remaining_ms, lent_ms=lent_ms, least_ms=least_ms
        )
        utilization_ratio = prediction.utilization_ratio if prediction is not None else 1.0
        after_ms = lendable_after_ms(job.request, lent_ms, least_ms) - ran_ms if remaining_ms is None else 0.0
        if paused_ms_max:
            yield _Host(job, entry, utilization_ratio, paused_ms_max)
        elif after_ms > 0 and isfinite(after_ms):
            yield _Host(job, entry, utilization_ratio, 0, view.now_ms + ceil(after_ms))


def _preference(host: _Host) -> tuple[float, str]:
    """The least busy host first: next to it both consents are kept most likely."""
    return host.utilization_ratio, host.job.request.job_id


def _start(view: SchedulingView, ledger: Ledger, incoming: PendingJob, host: _Host) -> MeasuringStart | None:
    request, gpu_id = incoming.request, host.entry.gpu.gpu_id
    numbers = {"free_bytes": ledger.memory_free_bytes(host.entry), "paused_max_ms": host.paused_ms_max}
    host_id = host.job.request.job_id
    start = MeasuringStart(
        job_id=request.job_id,
        reason=Reason(code="STARTS_TO_BE_MEASURED", numbers=numbers, job_ids=(host_id,), gpu_ids=(gpu_id,)),
        assignments=(Assignment(gpu_id=gpu_id, rank=0),),
        trial_with=host_id,
        micro_batch_size=samples_per_gpu(request, 1),
    )
    if not _may_be_there(view, ledger, request, host.entry):
        return None
    return None if isinstance(measured_there(view, ledger, start, incoming), Reason) else start


def _may_be_there(view: SchedulingView, ledger: Ledger, request: JobRequest, entry: GpuView) -> bool:
    if request.terms.devices and not is_device_named(request.terms.devices, entry.gpu.device):
        return False
    return ledger.host_fits(view.nodes[entry.node_id], request, gpus_here=1, gpus=1)


def _without(job_ids: set[str], decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield holds without those of jobs that start."""
    for decision in decisions if job_ids else ():
        if isinstance(decision, HoldMany):
            left = tuple([job_id for job_id in decision.job_ids if job_id not in job_ids])
            if left:
                yield replace(decision, job_ids=left)
        elif isinstance(decision, HoldRest):
            yield replace(decision, decided=decision.decided | job_ids)
        elif decision.job_id not in job_ids:
            yield decision
    if not job_ids:
        yield from decisions


def _looking_again(decisions: list[Decision], at_ms: int) -> list[Decision]:
    """Let the scheduler look again at an instant, 0 = at none: the last hold lasts until then."""
    last = decisions[-1] if decisions else None
    if not at_ms or not isinstance(last, Hold | HoldMany | HoldRest) or last.until_ms:
        return decisions
    return [*decisions[:-1], replace(last, until_ms=at_ms)]

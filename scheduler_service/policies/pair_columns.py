"""Every GPU that holds exactly one job, weighed for a new job in one expression (Theorem 1 over columns).

What memory, consent and slowdowns say depends on the load class of a GPU only, so they are asked once per class; how
long the job that is there still runs is a column. The GPUs that look best are then weighed again one by one.

Source:
    The SJF-BSBF paper, Algorithm 2 and Theorem 1; the formulas are those of `pair_sharing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.capacity import Resident, samples_per_gpu
from scheduler_service.core.gpu_columns import GpuColumns, LoadClass, columns_of
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.view import GpuView, PendingJob, RunningJob, SchedulingView
from scheduler_service.policies.pair_sharing import sub_batches_of
from scheduler_service.policies.placement import shape_of
from scheduler_service.policies.remaining_time import remaining_ms_of, step_ms_of
from scheduler_service.policies.sharing_spot import Partner, Spot

NODES_WEIGHED = 4
"""Nodes whose GPUs are weighed again one by one; where a job may span nodes, as many GPUs per GPU wanted."""

Column = NDArray[np.float64]


class PairColumns:
    """One call of decide.

    Args:
        view: The cluster.
    """

    def __init__(self, view: SchedulingView) -> None:
        self._view = view
        self._columns: GpuColumns = columns_of(view).for_one_round()
        self._rests_ms = np.full(len(self._columns.gpu_ids), inf)
        self._steps_ms: dict[tuple[int, int, int], float] = {}
        self._answers: dict[object, dict[int, Column]] = {}
        self._own_steps_ms: dict[object, float | None] = {}
        for job in view.running.values():
            self._note_rest(job)

    def start(self, job: PendingJob, resident: Resident, gpu_ids: Sequence[str]) -> None:
        """Note that a job has come to these GPUs; alone there, it is the one to share with from now on."""
        positions = [self._columns.position_of[gpu_id] for gpu_id in gpu_ids]
        self._columns.place(resident, positions)
        device = self._view.gpus[gpu_ids[0]].gpu.device
        rest_ms = remaining_ms_of(
            job.request,
            self._view.predictions.job(job.request.key, device),
            steps_done=job.steps_done,
            gpus=len(gpu_ids),
            sub_batch=resident.sub_batch,
        )
        self._rests_ms[positions] = inf if rest_ms is None else rest_ms

    def shortlist(self, job: PendingJob) -> list[str]:
        """Return the GPUs among which the best gang is: those of the best nodes, and of all of them where one may span.

        GPUs that are free count as the last choice and cost nothing. Empty = no GPU is worth a closer look.
        """
        costs, gpus = self._costs(job), job.request.gpus
        columns = self._columns
        is_free = np.array([not load.residents and not load.is_releasing for load in columns.classes])[columns.class_of]
        if self._view.nodes_per_job_max != 1:
            shared = np.argsort(costs, kind="stable")[: NODES_WEIGHED * gpus]
            chosen = [*shared[np.isfinite(costs[shared])], *np.flatnonzero(is_free)[:gpus]]
            return [columns.gpu_ids[position] for position in chosen]
        padded, free = np.append(costs, inf)[columns.slots], np.append(is_free, False)[columns.slots]
        cheapest = np.sort(padded, axis=1)[:, :gpus]
        shared_count = np.isfinite(cheapest).sum(axis=1)
        is_enough = (shared_count + free.sum(axis=1) >= gpus) & (shared_count > 0)
        sums = np.where(is_enough, np.where(np.isfinite(cheapest), cheapest, 0.0).sum(axis=1), inf)
        nodes = np.argsort(sums, kind="stable")[:NODES_WEIGHED]
        slots = columns.slots[nodes[np.isfinite(sums[nodes])]].ravel()
        return [columns.gpu_ids[position] for position in slots[slots >= 0]]

    def alike(self) -> list[str]:
        """Return the first GPU of every load class: what refuses a job there refuses it on the others too."""
        return [self._columns.gpu_ids[one] for one in np.unique(self._columns.class_of, return_index=True)[1]]

    def _note_rest(self, job: RunningJob) -> None:
        first = self._columns.position_of.get(job.assignments[0].gpu_id)
        if first is None or job.request.steps_total <= 0:
            return
        number = int(self._columns.class_of[first])
        # The class says which job it is; how its batch is spread over GPUs is its own.
        spread = number, job.request.gpus, job.request.batch
        step_ms = self._steps_ms.get(spread, -1.0)
        if step_ms < 0 or len(job.assignments) > 1:
            device = self._columns.classes[number].gpu.device
            prediction = self._view.predictions.job(job.request.key, device)
            found = step_ms_of(job.request, prediction, gpus=len(job.assignments), sub_batch=job.sub_batch)
            step_ms = inf if found is None else found
            if len(job.assignments) == 1 and len(self._columns.classes[number].residents) == 1:
                self._steps_ms[spread] = step_ms
        rest_ms = max(job.request.steps_total - job.steps_done, 0) * step_ms
        if len(job.assignments) == 1:
            self._rests_ms[first] = rest_ms
            return
        positions = [self._columns.position_of.get(part.gpu_id, -1) for part in job.assignments]
        self._rests_ms[[position for position in positions if position >= 0]] = rest_ms

    def _costs(self, job: PendingJob) -> Column:
        """Return the least sum of ends over the sub-batches, where it beats waiting; infinite elsewhere."""
        answers = self._answers_of(job.request)
        left, classes = max(job.request.steps_total - job.steps_done, 0), self._columns.class_of
        partner = self._rests_ms
        best = np.full(len(partner), inf)
        full: Column | None = None
        for table in answers.values():
            rest, own, other = left * table[0][classes], table[1][classes], table[2][classes]
            full = left * table[3][classes] if full is None else full
            with np.errstate(invalid="ignore"):
                best = np.fmin(best, _shared_sums(rest, own, other, partner))
        if full is None:
            return best
        with np.errstate(invalid="ignore"):
            is_worth = best < full + 2 * partner
        return np.where(is_worth & np.isfinite(partner), best, inf)

    def _answers_of(self, request: JobRequest) -> dict[int, Column]:
        """Return by sub-batch, for every class: time of a step, both slowdowns, time of a step at the full batch."""
        known = self._answers.setdefault(shape_of(request), {})
        samples, classes = samples_per_gpu(request, request.gpus), self._columns.classes
        for sub_batch in sub_batches_of(samples):
            table = known.get(sub_batch, np.full((4, 0), inf))
            fresh = [self._answer(request, load, sub_batch, samples) for load in classes[table.shape[1] :]]
            if fresh:
                known[sub_batch] = np.concatenate((table, np.array(fresh).T), axis=1)
        return known

    def _own_step_ms(self, request: JobRequest, device: str, sub_batch: int) -> float | None:
        place = (shape_of(request), device, sub_batch)
        if place not in self._own_steps_ms:
            prediction = self._view.predictions.job(request.key, device)
            self._own_steps_ms[place] = step_ms_of(request, prediction, gpus=request.gpus, sub_batch=sub_batch)
        return self._own_steps_ms[place]

    def _answer(self, request: JobRequest, load: LoadClass, sub_batch: int, samples: int) -> tuple[float, ...]:
        refusal = (inf, 0.0, 0.0, inf)
        if len(load.residents) != 1 or load.is_releasing:
            return refusal
        spot = Spot(
            entry=GpuView(gpu=load.gpu, node_id=""),
            partner=Partner(resident=load.residents[0], steps_done=0, gpus=1),
            memory_free_bytes=load.gpu.memory_bytes - load.memory_used_bytes,
            predictions=self._view.predictions,
        )
        resident = spot.admit(request, sub_batch)
        step_ms = self._own_step_ms(request, load.gpu.device, sub_batch)
        full_ms = self._own_step_ms(request, load.gpu.device, samples)
        if full_ms is None:
            return refusal
        if isinstance(resident, Reason) or step_ms is None:
            return inf, 0.0, 0.0, full_ms
        own, other = spot.slowdowns(resident)
        return step_ms, own, other, full_ms


def _shared_sums(rest: Column, own: Column, other: Column, partner: Column) -> Column:
    """Return the sum of both ends if the new job starts now, as `pair_sharing.shared_sum_ms` for one partner each."""
    partner_throughout = partner * (1 + other)
    newcomer_throughout = rest * (1 + own)
    newcomer = np.where(
        newcomer_throughout <= partner_throughout,
        newcomer_throughout,
        partner_throughout + rest - partner_throughout / (1 + own),
    )
    ends_first = partner_throughout <= newcomer
    partner_end = np.where(ends_first, partner_throughout, newcomer + partner - newcomer / (1 + other))
    sums: Column = newcomer + partner_end
    return sums

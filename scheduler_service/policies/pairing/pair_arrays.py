"""Every GPU that holds exactly one job, weighed for a new job in one expression (Theorem 1 over columns).

What memory, consent and slowdowns allow depends on the load class of a GPU only, so they are asked once per class; how
long the job that is there still runs is a column. The GPUs that look best are then weighed again one by one.

Why both forms: one gang of four on 10,000 GPUs takes 3 ms of CPU, and 230 ms where each GPU is looked at, with a bar of
20 ms (`python -m benchmarks.decisions sjf_bsbf_one_gang_on_10000_gpus`, then with `--without-arrays`). Looking at each
GPU is what small clusters, candidate tables and the final choice among the best GPUs need.

Source:
    The SJF-BSBF paper, Algorithm 2 and Theorem 1; the formulas are those of `pair_sharing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.gpu_arrays import Positions
from scheduler_service.core.cluster_view.step_times import remaining_by_elapsed_ms, remaining_ms_of
from scheduler_service.core.cluster_view.view import PendingJob, SchedulingView
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.pairing.class_answers import answers_of
from scheduler_service.policies.pairing.pair_answers import PairAnswer
from scheduler_service.policies.pairing.pair_sums import (
    LEFT_MIN,
    Column,
    Gangs,
    RunningJobs,
    least_sums,
    may_pay_as_gangs,
)

NODES_WEIGHED = 4
"""Nodes whose GPUs are weighed again one by one."""
GPUS_WEIGHED_PER_GPU = 2
"""Where a job may span nodes, the GPUs that are weighed again for each that it wants: columns round as rules do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """GPUs that deserve a closer look.

    Attributes:
        gpu_ids: Their ids; empty = no GPU is worth it.
        is_whole: Every GPU where sharing pays is among them.
    """

    gpu_ids: list[str]
    is_whole: bool


class PairArrays:
    """One call of decide.

    Args:
        view: The cluster.
    """

    def __init__(self, view: SchedulingView) -> None:
        self._view = view
        self._columns = columns = view.index.arrays.for_one_round()
        self._answers = answers_of(view, columns)
        self._remaining_times_ms, job_of = view.index.remaining_times
        self._job_of = job_of.copy()
        self._settle()

    @property
    def is_one_kind(self) -> bool:
        """All GPUs are alike."""
        return not self._columns.kind_of.any()

    def start(self, job: PendingJob, resident: Resident, gpu_ids: Sequence[str]) -> None:
        """Note that a job has come to these GPUs; alone there, it is the one to share with from now on."""
        positions = np.array([self._columns.position_of[gpu_id] for gpu_id in gpu_ids], dtype=np.intp)
        was_free = positions[self._is_free[positions]]
        self._columns.place(resident, positions)
        device = self._view.gpus[gpu_ids[0]].gpu.device
        remaining_ms = remaining_ms_of(
            job.request,
            self._view.predictions.job(job.request.key, device),
            steps_done=job.steps_done,
            gpus=len(gpu_ids),
            micro_batch_size=resident.micro_batch_size,
        )
        self._remaining_times_ms[positions] = remaining_by_elapsed_ms(0) if remaining_ms is None else remaining_ms
        self._job_of[was_free] = was_free[:1]
        self._settle()

    def may_share(self, request: JobRequest, lefts: Sequence[int]) -> NDArray[np.bool_]:
        """Return of jobs that differ in their steps left whether each may start sharing; never a wrong no.

        Args:
            request: One of them.
            lefts: Steps left.
        """
        # Of a job without any steps nothing is known; a product with an infinite bound must not be undefined.
        met, left = self._met, np.maximum(np.array(lefts, dtype=np.float64), LEFT_MIN)[:, None]
        bounds = self._answers.bounds(self._answers.row_of(request), met.classes, self._columns.classes)
        pays = met.remaining_times_ms > left * bounds
        found: NDArray[np.bool_] = pays @ met.gpus + self._free_count >= request.gpus
        return found

    def may_share_as_gangs(
        self, requests: Sequence[JobRequest], lefts: Sequence[Sequence[int]]
    ) -> list[NDArray[np.bool_]]:
        """Return the same of gangs that take the best of all GPUs in one pass, if that pays with all jobs there.

        Args:
            requests: One per shape.
            lefts: Steps left, by shape.
        """
        counts = [len(some) for some in lefts]
        shapes = [number for number, count in enumerate(counts) for _ in range(count)]
        rows = [self._answers.row_of(request) for request in requests]
        gangs = Gangs(
            options=self._answers.firsts(rows, self._met.classes, self._columns.classes),
            shapes=np.array(shapes, dtype=np.intp),
            left=np.array([left for some in lefts for left in some], dtype=np.float64),
            gpus=np.array([request.gpus for request in requests]),
        )
        found = may_pay_as_gangs(gangs, self._met, self._free_count)
        return [found[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]

    def remaining_ms(self, gpu_id: str) -> float | None:
        """Return how long the one job on a GPU still needs alone, or None."""
        remaining_ms = float(self._remaining_times_ms[self._columns.position_of[gpu_id]])
        return remaining_ms if remaining_ms < inf else None

    def answer(self, request: JobRequest, gpu_id: str) -> PairAnswer:
        """Return what a job may do on a GPU that holds one job."""
        number = int(self._columns.class_of[self._columns.position_of[gpu_id]])
        return self._answers.answer(self._answers.row_of(request), number, self._columns.classes)

    def shortlist(self, job: PendingJob) -> Shortlist:
        """Return the GPUs among which the best gang is: those of the best nodes, and of all of them where one may span.

        GPUs that are free count as the last choice and cost nothing.
        """
        costs, gpus = self._costs(job), job.request.gpus
        pays = int(np.isfinite(costs).sum())
        if not pays and (self._view.nodes_per_job_max == 1 or self._free_count < gpus):
            return Shortlist(gpu_ids=[], is_whole=True)
        gpu_ids = self._columns.gpu_ids
        if self._view.nodes_per_job_max == 1:
            positions = self._best_nodes(costs, gpus)
            return Shortlist(gpu_ids=[gpu_ids[position] for position in positions], is_whole=False)
        best = np.argsort(costs, kind="stable")[: min(GPUS_WEIGHED_PER_GPU * gpus, pays)]
        chosen = [*self._single_job[best], *np.flatnonzero(self._is_free)[:gpus]]
        is_whole = 0 < len(best) == pays
        return Shortlist(gpu_ids=[gpu_ids[position] for position in chosen], is_whole=is_whole)

    def alike(self) -> list[str]:
        """Return the first GPU of every load class: what refuses a job there refuses it on the others too."""
        return [self._columns.gpu_ids[one] for one in np.unique(self._columns.class_of, return_index=True)[1]]

    def _settle(self) -> None:
        """Sort the GPUs with one job anew, by position, and their jobs."""
        jobs_on = self._columns.jobs_on
        self._single_job = single_job = (jobs_on == 1).nonzero()[0]
        self._is_free = jobs_on == 0
        self._single_job_remaining_ms = self._remaining_times_ms[single_job]
        self._free_count = int(np.count_nonzero(self._is_free))
        known = single_job[np.isfinite(self._single_job_remaining_ms)]
        job_of, one_of = self._job_of[known], np.zeros(len(jobs_on), dtype=np.intp)
        one_of[job_of] = known
        gpus = np.bincount(job_of, minlength=len(one_of))
        jobs = gpus.nonzero()[0]
        places = one_of[jobs]
        self._met = RunningJobs(
            remaining_times_ms=self._remaining_times_ms[places], classes=self._columns.class_of[places], gpus=gpus[jobs]
        )

    def _best_nodes(self, costs: Column, gpus: int) -> Positions:
        columns = self._columns
        everywhere = np.full(len(columns.gpu_ids) + 1, inf)
        everywhere[self._single_job] = costs
        cheapest = np.sort(everywhere[columns.slots], axis=1)[:, :gpus]
        free_count = np.append(self._is_free, False)[columns.slots].sum(axis=1)
        shared_count = np.isfinite(cheapest).sum(axis=1)
        is_enough = (shared_count + free_count >= gpus) & (shared_count > 0)
        sums = np.where(is_enough, np.where(np.isfinite(cheapest), cheapest, 0.0).sum(axis=1), inf)
        nodes = np.argsort(sums, kind="stable")[:NODES_WEIGHED]
        slots: Positions = columns.slots[nodes[np.isfinite(sums[nodes])]].ravel()
        return slots[slots >= 0]

    def _costs(self, job: PendingJob) -> Column:
        """Return the least sum of ends over the micro-batches, where it beats waiting; infinite elsewhere."""
        row, classes = self._answers.row_of(job.request), self._columns.classes
        class_of = self._columns.class_of[self._single_job]
        is_there = np.zeros(len(classes), dtype=np.bool_)
        is_there[class_of] = True
        numbers, places = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[class_of]
        answers = [self._answers.answer(row, number, classes) for number in numbers.tolist()]
        most = max((len(answer.options) for answer in answers), default=0)
        tables = ([_option(answer, choice) for answer in answers] for choice in range(most))
        options = [tuple(np.array(table, dtype=np.float64)[places].T) for table in tables]
        full_ms = np.array([inf if answer.full_step_ms is None else answer.full_step_ms for answer in answers])[places]
        partner = self._single_job_remaining_ms
        with np.errstate(invalid="ignore"):
            # A job of unknown length is taken for as long as the one that it would join.
            left = partner / full_ms if job.request.steps_total <= 0 else _steps_left(job)
            return least_sums(left, options, full_ms, partner)


def _steps_left(job: PendingJob) -> int:
    return max(job.request.steps_total - job.steps_done, 0)


def _option(answer: PairAnswer, choice: int) -> tuple[float, float, float]:
    return answer.options[choice][:3] if choice < len(answer.options) else (inf, 0.0, 0.0)

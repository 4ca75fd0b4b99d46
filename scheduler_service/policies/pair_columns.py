"""Every GPU that holds exactly one job, weighed for a new job in one expression (Theorem 1 over columns).

What memory, consent and slowdowns say depends on the load class of a GPU only, so they are asked once per class; how
long the job that is there still runs is a column. The GPUs that look best are then weighed again one by one.

Source:
    The SJF-BSBF paper, Algorithm 2 and Theorem 1; the formulas are those of `pair_sharing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.capacity import Resident
from scheduler_service.core.gpu_columns import Positions, columns_of
from scheduler_service.core.records import JobRequest
from scheduler_service.core.rest_column import rests_of
from scheduler_service.core.step_times import remaining_ms_of
from scheduler_service.core.view import PendingJob, SchedulingView
from scheduler_service.policies.pair_answers import PairAnswer, answers_of
from scheduler_service.policies.pair_sharing import ROUNDING_RATIO, RunningBeside

NODES_WEIGHED = 4
"""Nodes whose GPUs are weighed again one by one; where a job may span nodes, as many GPUs per GPU wanted."""

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """GPUs that deserve a closer look.

    Attributes:
        gpu_ids: Their ids; empty = no GPU is worth it.
        is_whole: Every GPU where sharing pays is among them.
    """

    gpu_ids: list[str]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running job as a new one would find it beside itself; `step_ms` = one step of the new job alone."""

    job_id: str
    beside: RunningBeside
    step_ms: float


class PairColumns:
    """One call of decide.

    Args:
        view: The cluster.
    """

    def __init__(self, view: SchedulingView) -> None:
        self._view = view
        self._columns = columns = columns_of(view).for_one_round()
        self._answers = answers_of(view, columns)
        self._rests_ms = rests_of(view, columns.gpu_ids)
        self._is_free = np.zeros(len(columns.gpu_ids), dtype=np.bool_)
        self._is_free[[columns.position_of[gpu_id] for gpu_id in view.free_gpu_ids]] = True
        self._is_lone = np.zeros(len(columns.gpu_ids), dtype=np.bool_)
        self._is_lone[[columns.position_of[gpu_id] for gpu_id in lone_gpu_ids(view)]] = True
        self._newcomers: dict[int, str] = {}
        self._settle()

    @property
    def is_one_kind(self) -> bool:
        """All GPUs are alike."""
        return not self._columns.kind_of.any()

    @property
    def free_count(self) -> int:
        """GPUs that hold nothing."""
        return int(np.count_nonzero(self._is_free))

    def start(self, job: PendingJob, resident: Resident, gpu_ids: Sequence[str]) -> None:
        """Note that a job has come to these GPUs; alone there, it is the one to share with from now on."""
        positions = np.array([self._columns.position_of[gpu_id] for gpu_id in gpu_ids], dtype=np.intp)
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
        self._newcomers.update(dict.fromkeys(positions.tolist(), job.request.job_id))
        self._is_lone[positions] = self._is_free[positions]
        self._is_free[positions] = False
        self._settle()

    def places(self, requests: Sequence[JobRequest], lefts: Sequence[int]) -> Positions:
        """Return for jobs with so many steps left on how many GPUs each might share or be alone; never too few."""
        rows = [self._answers.row_of(request) for request in requests]
        bounds = self._answers.bounds(rows, self._numbers, self._columns.classes)
        with np.errstate(invalid="ignore"):
            least = np.array(lefts, dtype=np.float64)[:, None] * bounds
        known = np.where(np.isfinite(self._lone_rests_ms), self._lone_rests_ms, -inf)
        found: Positions = (known > least[:, self._class_places]).sum(axis=1) + self.free_count
        return found

    def shortlist(self, job: PendingJob) -> Shortlist:
        """Return the GPUs among which the best gang is: those of the best nodes, and of all of them where one may span.

        GPUs that are free count as the last choice and cost nothing.
        """
        costs, gpus = self._costs(job), job.request.gpus
        pays = int(np.isfinite(costs).sum())
        if not pays and (self._view.nodes_per_job_max == 1 or self.free_count < gpus):
            return Shortlist(gpu_ids=[], is_whole=True)
        gpu_ids = self._columns.gpu_ids
        if self._view.nodes_per_job_max == 1:
            positions = self._best_nodes(costs, gpus)
            return Shortlist(gpu_ids=[gpu_ids[position] for position in positions], is_whole=False)
        best = np.argsort(costs, kind="stable")[: min(NODES_WEIGHED * gpus, pays)]
        chosen = [*self._lone[best], *np.flatnonzero(self._is_free)[:gpus]]
        is_whole = 0 < len(best) == pays
        return Shortlist(gpu_ids=[gpu_ids[position] for position in chosen], is_whole=is_whole)

    def cheapest_gang(self, job: PendingJob) -> list[Place] | None:
        """Return who is met in the best gang of a job without smaller sub-batches; None = sharing pays on too few GPUs.

        Any GPUs may be together; a job that is met on several of them is named once. Empty = only free GPUs are left.
        """
        gpus, left = job.request.gpus, _steps_left(job)
        firsts = self._answers.firsts(self._answers.row_of(job.request), self._numbers, self._columns.classes)
        step_ms, own, other, full_ms = firsts.T
        costs = self._costs_of(left, [(step_ms, own, other)], full_ms)
        pays = int(np.isfinite(costs).sum())
        if pays + self.free_count < gpus:
            return None
        found: dict[str, Place] = {}
        for choice in np.argsort(costs, kind="stable")[: min(pays, gpus)].tolist():
            job_id = self._job_at(int(self._lone[choice]))
            if job_id not in found:
                number = self._class_places[choice]
                found[job_id] = Place(
                    job_id=job_id,
                    beside=RunningBeside(
                        rest_ms=float(self._lone_rests_ms[choice]),
                        slowdown_ratio=float(other[number]),
                        newcomer_slowdown_ratio=float(own[number]),
                    ),
                    step_ms=float(step_ms[number]),
                )
        return list(found.values())

    def _job_at(self, position: int) -> str:
        newcomer = self._newcomers.get(position)
        return newcomer if newcomer is not None else self._view.gpus[self._columns.gpu_ids[position]].job_ids[0]

    def alike(self) -> list[str]:
        """Return the first GPU of every load class: what refuses a job there refuses it on the others too."""
        return [self._columns.gpu_ids[one] for one in np.unique(self._columns.class_of, return_index=True)[1]]

    def _settle(self) -> None:
        """Sort the GPUs with one job anew, by position."""
        self._lone = np.flatnonzero(self._is_lone)
        self._numbers, self._class_places = np.unique(self._columns.class_of[self._lone], return_inverse=True)
        self._lone_rests_ms = self._rests_ms[self._lone]

    def _best_nodes(self, costs: Column, gpus: int) -> Positions:
        columns = self._columns
        everywhere = np.full(len(columns.gpu_ids) + 1, inf)
        everywhere[self._lone] = costs
        cheapest = np.sort(everywhere[columns.slots], axis=1)[:, :gpus]
        free_count = np.append(self._is_free, False)[columns.slots].sum(axis=1)
        shared_count = np.isfinite(cheapest).sum(axis=1)
        is_enough = (shared_count + free_count >= gpus) & (shared_count > 0)
        sums = np.where(is_enough, np.where(np.isfinite(cheapest), cheapest, 0.0).sum(axis=1), inf)
        nodes = np.argsort(sums, kind="stable")[:NODES_WEIGHED]
        slots: Positions = columns.slots[nodes[np.isfinite(sums[nodes])]].ravel()
        return slots[slots >= 0]

    def _costs(self, job: PendingJob) -> Column:
        """Return the least sum of ends over the sub-batches, where it beats waiting; infinite elsewhere."""
        row, classes = self._answers.row_of(job.request), self._columns.classes
        answers = [self._answers.answer(row, int(number), classes) for number in self._numbers]
        most = max((len(answer.options) for answer in answers), default=0)
        tables = ([_option(answer, choice) for answer in answers] for choice in range(most))
        choices = [tuple(np.array(table, dtype=np.float64).T) for table in tables]
        return self._costs_of(_steps_left(job), choices, np.array([answer.full_step_ms for answer in answers]))

    def _costs_of(self, left: int, choices: Sequence[Sequence[Column]], full_ms: Column) -> Column:
        """Return the costs from the answers by class: (time of a step, both slowdowns) for every sub-batch."""
        partner, places = self._lone_rests_ms, self._class_places
        best = np.full(len(partner), inf)
        with np.errstate(invalid="ignore"):
            for step_ms, own, other in choices:
                best = np.fmin(best, _shared_sums((left * step_ms)[places], own[places], other[places], partner))
            waiting = (left * full_ms)[places] + 2 * partner
            is_worth = best < waiting - ROUNDING_RATIO * waiting
        return np.where(is_worth & np.isfinite(partner), best, inf)


def _steps_left(job: PendingJob) -> int:
    return max(job.request.steps_total - job.steps_done, 0)


def _option(answer: PairAnswer, choice: int) -> tuple[float, float, float]:
    return answer.options[choice] if choice < len(answer.options) else (inf, 0.0, 0.0)


def lone_gpu_ids(view: SchedulingView) -> list[str]:
    """Return the GPUs that hold one job and release nothing."""
    if view.lone_gpu_ids is not None:
        return list(view.lone_gpu_ids)
    return [name for name, entry in view.gpus.items() if len(entry.job_ids) == 1 and not entry.is_releasing]


def _shared_sums(rest: Column, own: Column, other: Column, partner: Column) -> Column:
    """Return `pair_sharing.shared_pair_sum_ms` for one partner each, rounded alike."""
    alone_from, newcomer = partner * (1 + other), rest * (1 + own)
    outlives = alone_from + (rest - alone_from / (1 + own)) + alone_from
    ends_first = newcomer + (newcomer + partner - newcomer / (1 + other))
    sums: Column = np.where(
        newcomer > alone_from, outlives, np.where(newcomer == alone_from, newcomer + alone_from, ends_first)
    )
    return sums

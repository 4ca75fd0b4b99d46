"""How a job could share with the one job of a load class, kept from round to round as long as predictions stand.

Where sharing pays follows from two numbers: how long the running job still needs (r), and how many steps the new one
has left (n). For one pair and one micro-batch it pays if and only if r > n x c, with a constant c of the pair; so one
comparison per GPU finds the jobs that cannot share at all, and only the others are weighed.

Source:
    The SJF-BSBF paper, Theorem 1 and Eq. 18-23. With xi = 1 + slowdown, s the time of a step at the micro-batch, f at
    the full batch, the sum of both ends is less than with waiting, n f + 2 r,
    where the new job ends first (n s xi_A <= r xi_B):  if r > n (s (2 xi_A - xi_A / xi_B) - f),
    where the running one does:                         if r (2 - 2 xi_B + xi_B / xi_A) > n (s - f).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.capacity import samples_per_gpu
from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.gpu_arrays import GpuArrays, LoadClass, Positions
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.remaining_time_queue import shape_of
from scheduler_service.core.step_times import steps_ms_of
from scheduler_service.core.view import GpuView, Predictions, SchedulingView
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.pair_sharing import micro_batch_sizes_of
from scheduler_service.policies.pairing.pair_sums import GANG_NUMBERS, gang_option
from scheduler_service.policies.placement.reasons import nearest_obstacle

CELLS_MAX = 2_000_000
"""Answers kept; with more shapes and classes than that everything is asked anew."""
ROUNDING_RATIO = 1e-6
"""How far below its bound a remaining time still counts as one that may pay: the weighing itself decides."""
GAIN_MIN = 1e-9


class PairOption(NamedTuple):
    """One micro-batch that a job may use next to a partner.

    Attributes:
        step_ms: One optimizer step of the job alone.
        slowdown_ratio: How much slower the job gets.
        partner_slowdown_ratio: How much slower its partner gets.
        micro_batch_size: Samples per pass.
    """

    step_ms: float
    slowdown_ratio: float
    partner_slowdown_ratio: float
    micro_batch_size: int


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """How jobs of one shape may share with partners of one shape.

    Attributes:
        full_step_ms: One optimizer step alone with the whole batch at once; None = unknown.
        options: The micro-batches that may join, largest first.
        nearest: Why the others may not: the reason that was nearest to a start, and the jobs it named.
    """

    full_step_ms: float | None = None
    options: tuple[PairOption, ...] = ()
    nearest: Reason | None = None
    job_id: str = ""
    partner_id: str = ""

    @property
    def remaining_per_step_ms(self) -> float:
        """How long the partner must at least still need for every step that the job has left; infinite = never pays."""
        if self.full_step_ms is None:
            return inf
        return min((_remaining_per_step_ms(self.full_step_ms, option) for option in self.options), default=inf)


def answer_pair(request: JobRequest, occupied_gpu: OccupiedGpu, steps_ms: Mapping[int, float | None]) -> PairAnswer:
    """Return how a job may share a GPU with the job that is there.

    Args:
        request: The job.
        occupied_gpu: The GPU.
        steps_ms: The time of an optimizer step by micro-batch, see `own_steps_ms`.
    """
    options: list[PairOption] = []
    obstacles: list[Reason] = []
    for micro_batch_size, step_ms in steps_ms.items():
        admitted = occupied_gpu.admit(request, micro_batch_size)
        if isinstance(admitted, Reason):
            obstacles.append(admitted)
        elif step_ms is not None:
            options.append(
                PairOption(step_ms, admitted.slowdown_ratio, admitted.partner_slowdown_ratio, micro_batch_size)
            )
    return PairAnswer(
        full_step_ms=steps_ms[samples_per_gpu(request, request.gpus)],
        options=tuple(options),
        nearest=nearest_obstacle(obstacles) if obstacles else None,
        job_id=request.job_id,
        partner_id=occupied_gpu.partner_id,
    )


def own_steps_ms(request: JobRequest, predictions: Predictions, device: str) -> dict[int, float | None]:
    """Return the time of an optimizer step by micro-batch, largest first; None = unknown."""
    sizes = micro_batch_sizes_of(samples_per_gpu(request, request.gpus))
    return steps_ms_of(request, predictions.job(request.key, device), gpus=request.gpus, micro_batch_sizes=sizes)


def _remaining_per_step_ms(full_ms: float, option: PairOption) -> float:
    step_ms, own, other, _ = option
    own_pace, other_pace = 1 + own, 1 + other
    if step_ms < full_ms:
        return -1.0  # not a pair of lines any more: it is always weighed
    gain = 2 - 2 * other_pace + other_pace / own_pace
    bound = (step_ms - full_ms) / gain if gain > GAIN_MIN else inf
    if bound * other_pace > step_ms * own_pace:
        bound = step_ms * (2 * own_pace - own_pace / other_pace) - full_ms
    return bound * (1 - ROUNDING_RATIO)


NOTHING = PairAnswer()


class PairAnswers:
    """The answers of one table of columns.

    Args:
        predictions: What the answers follow from.
        changes: Reports what of it has changed.
    """

    def __init__(self, predictions: Predictions, changes: ChangeLog) -> None:
        self.predictions, self._changes = predictions, changes
        self._seen = changes.count
        self._rows: dict[object, int] = {}
        self._requests: list[JobRequest] = []
        self._rows_of_key: dict[str, list[int]] = {}
        self._classes_of_key: dict[str, list[int]] = {}
        self._known_classes: set[int] = set()
        self._answers: dict[tuple[int, int], PairAnswer] = {}
        self._bounds = np.full((8, 64), nan)
        self._firsts = np.zeros((GANG_NUMBERS, 8, 64))

    def row_of(self, request: JobRequest) -> int:
        """Return the number of a shape."""
        shape = shape_of(request)
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = len(self._requests)
            self._requests.append(request)
            self._rows_of_key.setdefault(request.key, []).append(row)
            self._make_room(row + 1, 0)
        return row

    def answer(self, row: int, number: int, classes: list[LoadClass]) -> PairAnswer:
        """Return what a shape may do in a class."""
        self._make_room(0, number + 1)
        if np.isnan(self._bounds[row, number]):
            self._ask(row, number, classes[number])
        return self._answers[row, number]

    def bounds(self, row: int, numbers: Positions, classes: list[LoadClass]) -> NDArray[np.float64]:
        """Return `PairAnswer.remaining_per_step_ms` of a shape, by class."""
        self._know([row], numbers, classes)
        found: NDArray[np.float64] = self._bounds[row, numbers]
        return found

    def firsts(self, rows: list[int], numbers: Positions, classes: list[LoadClass]) -> NDArray[np.float64]:
        """Return `pair_sums.gang_option` of the first possible micro-batch, by shape and class."""
        self._know(rows, numbers, classes)
        found: NDArray[np.float64] = self._firsts[:, np.array(rows)[:, None], numbers]
        return found

    def _know(self, rows: list[int], numbers: Positions, classes: list[LoadClass]) -> None:
        self._make_room(0, int(np.maximum.reduce(numbers, initial=-1)) + 1)
        is_new = np.isnan(self._bounds[np.array(rows)[:, None], numbers])
        if np.logical_or.reduce(is_new, axis=None):
            for row, of_row in zip(rows, is_new, strict=True):
                for number in sorted(set(numbers[of_row].tolist())):
                    self._ask(row, number, classes[number])

    def catch_up(self) -> bool:
        """Forget what predictions have changed; False when everything must be forgotten."""
        if len(self._answers) > CELLS_MAX:
            return False
        pairs = self._changes.since(self._seen)
        self._seen = self._changes.count
        for victim, other in pairs or ():
            if other:
                self._forget(victim, other)
                self._forget(other, victim)
            else:
                self._bounds[self._rows_of_key.get(victim, [])] = nan
                self._bounds[:, self._classes_of_key.get(victim, [])] = nan
        return pairs is not None

    def _forget(self, key: str, partner_key: str) -> None:
        rows, numbers = self._rows_of_key.get(key), self._classes_of_key.get(partner_key)
        if rows and numbers:
            self._bounds[np.array(rows)[:, None], numbers] = nan

    def _make_room(self, rows: int, numbers: int) -> None:
        before = self._bounds
        if rows <= before.shape[0] and numbers <= before.shape[1]:
            return
        size = _grown(before.shape[0], rows), _grown(before.shape[1], numbers)
        firsts, self._bounds, self._firsts = self._firsts, np.full(size, nan), np.zeros((GANG_NUMBERS, *size))
        self._bounds[: before.shape[0], : before.shape[1]] = before
        self._firsts[:, : before.shape[0], : before.shape[1]] = firsts

    def _ask(self, row: int, number: int, load: LoadClass) -> None:
        if number not in self._known_classes:
            self._known_classes.add(number)
            for key in {resident.request.key for resident in load.residents}:
                self._classes_of_key.setdefault(key, []).append(number)
        answer = _answer(self._requests[row], load, self.predictions)
        self._answers[row, number] = answer
        self._bounds[row, number] = answer.remaining_per_step_ms
        is_known = answer.options and answer.full_step_ms is not None
        self._firsts[:, row, number] = gang_option(*(answer.options[0][:3] if is_known else (None, 0.0, 0.0)))


def _grown(size: int, wanted: int) -> int:
    return size if wanted <= size else max(2 * size, wanted)


def answers_of(view: SchedulingView, columns: GpuArrays) -> PairAnswers:
    """Return the answers that are kept with the columns of a view."""
    kept = columns.notes.get(PairAnswers)
    if isinstance(kept, PairAnswers) and kept.predictions is view.predictions and kept.catch_up():
        return kept
    columns.notes[PairAnswers] = fresh = PairAnswers(view.predictions, view.index.prediction_changes)
    return fresh


def _answer(request: JobRequest, load: LoadClass, predictions: Predictions) -> PairAnswer:
    if len(load.residents) != 1 or load.is_releasing:
        return NOTHING
    occupied_gpu = OccupiedGpu(
        entry=GpuView(gpu=load.gpu, node_id=""),
        partner=load.residents[0],
        memory_free_bytes=load.gpu.memory_bytes - load.memory_used_bytes,
        predictions=predictions,
        partner_remaining_ms=lambda: None,
    )
    return answer_pair(request, occupied_gpu, own_steps_ms(request, predictions, load.gpu.device))

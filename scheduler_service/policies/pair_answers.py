"""What a job could do beside the one job of a load class, kept from round to round as long as predictions stand.

Where sharing pays follows from two numbers: how long the running job still needs (r), and how many steps the new one
has left (n). For one pair and one sub-batch it pays if and only if r > n x c, with a constant c of the pair; so one
comparison per GPU tells who cannot share at all, and only the others are weighed.

Source:
    The SJF-BSBF paper, Theorem 1 and Eq. 18-23. With xi = 1 + slowdown, s the time of a step at the sub-batch and f at
    the full batch, the sum of both ends is less than with waiting, n f + 2 r,
    where the new job ends first (n s xi_A <= r xi_B):  if r > n (s (2 xi_A - xi_A / xi_B) - f),
    where the running one does:                         if r (2 - 2 xi_B + xi_B / xi_A) > n (s - f).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.capacity import samples_per_gpu
from scheduler_service.core.gpu_columns import GpuColumns, LoadClass, Positions
from scheduler_service.core.prediction_store import PredictionStore
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.core.step_times import step_ms_of
from scheduler_service.core.view import GpuView, Predictions, SchedulingView
from scheduler_service.policies.pair_sharing import sub_batches_of
from scheduler_service.policies.pair_sums import gang_option
from scheduler_service.policies.placement import shape_of
from scheduler_service.policies.sharing_spot import Partner, Spot

CELLS_MAX = 2_000_000
"""Answers kept; with more shapes and classes than that everything is asked anew."""
ROUNDING_RATIO = 1e-6
"""How far below its bound a remaining time still counts as one that may pay: the weighing itself decides."""
GAIN_MIN = 1e-9


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """What a job of one shape may do on a GPU of one load class.

    Attributes:
        full_step_ms: One optimizer step alone with the whole batch at once; infinite = unknown.
        options: (time of a step, own slowdown, slowdown of the partner) of every sub-batch that may join.
    """

    full_step_ms: float
    options: tuple[tuple[float, float, float], ...]

    @property
    def rest_per_step_ms(self) -> float:
        """How long the partner must at least still need for every step that the job has left; infinite = never pays."""
        return min((_rest_per_step_ms(self.full_step_ms, *option) for option in self.options), default=inf)


def _rest_per_step_ms(full_ms: float, step_ms: float, own: float, other: float) -> float:
    own_pace, other_pace = 1 + own, 1 + other
    if step_ms < full_ms:
        return -1.0  # not a pair of lines any more: it is always weighed
    gain = 2 - 2 * other_pace + other_pace / own_pace
    bound = (step_ms - full_ms) / gain if gain > GAIN_MIN else inf
    if bound * other_pace > step_ms * own_pace:
        bound = step_ms * (2 * own_pace - own_pace / other_pace) - full_ms
    return bound * (1 - ROUNDING_RATIO)


NOTHING = PairAnswer(inf, ())


class PairAnswers:
    """The answers of one table of columns.

    Args:
        predictions: What the answers follow from.
    """

    def __init__(self, predictions: Predictions) -> None:
        self.predictions = predictions
        self._seen = predictions.changes.count if isinstance(predictions, PredictionStore) else 0
        self._rows: dict[object, int] = {}
        self._requests: list[JobRequest] = []
        self._rows_of_key: dict[str, list[int]] = {}
        self._classes_of_key: dict[str, list[int]] = {}
        self._known_classes: set[int] = set()
        self._answers: dict[tuple[int, int], PairAnswer] = {}
        self._bounds = np.full((8, 64), nan)
        self._firsts = np.zeros((5, 8, 64))

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
        """Return `PairAnswer.rest_per_step_ms` of a shape, by class."""
        self._know([row], numbers, classes)
        found: NDArray[np.float64] = self._bounds[row, numbers]
        return found

    def firsts(self, rows: list[int], numbers: Positions, classes: list[LoadClass]) -> NDArray[np.float64]:
        """Return `pair_sums.gang_option` of the first possible sub-batch, by shape and class."""
        self._know(rows, numbers, classes)
        found: NDArray[np.float64] = self._firsts[:, np.array(rows)[:, None], numbers]
        return found

    def _know(self, rows: list[int], numbers: Positions, classes: list[LoadClass]) -> None:
        self._make_room(0, int(numbers.max(initial=-1)) + 1)
        is_new = np.isnan(self._bounds[np.array(rows)[:, None], numbers])
        if is_new.any():
            for row, of_row in zip(rows, is_new, strict=True):
                for number in sorted(set(numbers[of_row].tolist())):
                    self._ask(row, number, classes[number])

    def catch_up(self) -> bool:
        """Forget what predictions have changed; False when everything must be forgotten."""
        if not isinstance(self.predictions, PredictionStore) or len(self._answers) > CELLS_MAX:
            return False
        changes = self.predictions.changes
        pairs = changes.since(self._seen)
        self._seen = changes.count
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
            self._bounds[np.ix_(np.array(rows), np.array(numbers))] = nan

    def _make_room(self, rows: int, numbers: int) -> None:
        before = self._bounds
        if rows <= before.shape[0] and numbers <= before.shape[1]:
            return
        size = _grown(before.shape[0], rows), _grown(before.shape[1], numbers)
        firsts, self._bounds, self._firsts = self._firsts, np.full(size, nan), np.zeros((5, *size))
        self._bounds[: before.shape[0], : before.shape[1]] = before
        self._firsts[:, : before.shape[0], : before.shape[1]] = firsts

    def _ask(self, row: int, number: int, load: LoadClass) -> None:
        if number not in self._known_classes:
            self._known_classes.add(number)
            for key in {resident.request.key for resident in load.residents}:
                self._classes_of_key.setdefault(key, []).append(number)
        answer = _answer(self._requests[row], load, self.predictions)
        self._answers[row, number] = answer
        self._bounds[row, number] = answer.rest_per_step_ms
        self._firsts[:, row, number] = gang_option(*(answer.options[0] if answer.options else (inf, 0.0, 0.0)))


def _grown(size: int, wanted: int) -> int:
    return size if wanted <= size else max(2 * size, wanted)


def answers_of(view: SchedulingView, columns: GpuColumns) -> PairAnswers:
    """Return the answers that are kept with the columns of a view."""
    kept = columns.notes.get(PairAnswers)
    if isinstance(kept, PairAnswers) and kept.predictions is view.predictions and kept.catch_up():
        return kept
    columns.notes[PairAnswers] = fresh = PairAnswers(view.predictions)
    return fresh


def _answer(request: JobRequest, load: LoadClass, predictions: Predictions) -> PairAnswer:
    if len(load.residents) != 1 or load.is_releasing:
        return NOTHING
    prediction, gpus = predictions.job(request.key, load.gpu.device), request.gpus
    samples = samples_per_gpu(request, gpus)
    full_ms = step_ms_of(request, prediction, gpus=gpus, sub_batch=samples)
    if full_ms is None:
        return NOTHING
    spot = Spot(
        entry=GpuView(gpu=load.gpu, node_id=""),
        partner=Partner(resident=load.residents[0], steps_done=0, gpus=1),
        memory_free_bytes=load.gpu.memory_bytes - load.memory_used_bytes,
        predictions=predictions,
    )
    options: list[tuple[float, float, float]] = []
    for sub_batch in sub_batches_of(samples):
        resident = spot.admit(request, sub_batch)
        step_ms = step_ms_of(request, prediction, gpus=gpus, sub_batch=sub_batch)
        if not isinstance(resident, Reason) and step_ms is not None:
            options.append((step_ms, *spot.slowdowns(resident)))
    return PairAnswer(full_ms, tuple(options))

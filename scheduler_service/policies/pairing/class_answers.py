"""The answers about pairs as arrays, by the shape of a job and the load class of the GPU: for all GPUs at once.

Source:
    The SJF-BSBF paper, Theorem 1; see `pair_answers` for the bound and `pair_sums` for the sums of gangs.
"""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.change_log import ChangeLog
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, LoadClass, Positions
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import GpuView, SchedulingView
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.pairing.occupied_gpu import OccupiedGpu
from scheduler_service.policies.pairing.pair_answers import KnownAnswers, PairAnswer, known_answers_of
from scheduler_service.policies.pairing.pair_sums import GANG_NUMBERS, gang_option

CELLS_MAX = 2_000_000
"""Answers kept; with more shapes and classes than that everything is asked anew."""
NOTHING = PairAnswer()


class PairAnswers:
    """The answers that belong to one set of arrays.

    Args:
        known: Answers one by one, up to date.
        changes: Reports what of predictions has changed.
    """

    def __init__(self, known: KnownAnswers, changes: ChangeLog) -> None:
        self.known, self._changes = known, changes
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
        if self._seen == self._changes.count:
            return True
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
        answer = self._answer(row, load)
        self._answers[row, number] = answer
        self._bounds[row, number] = answer.remaining_per_step_ms
        is_known = answer.options and answer.full_step_ms is not None
        self._firsts[:, row, number] = gang_option(*(answer.options[0][:3] if is_known else (None, 0.0, 0.0)))

    def _answer(self, row: int, load: LoadClass) -> PairAnswer:
        if len(load.residents) != 1 or load.is_releasing:
            return NOTHING
        occupied_gpu = OccupiedGpu(
            entry=GpuView(gpu=load.gpu, node_id=""),
            partner=load.residents[0],
            memory_free_bytes=load.gpu.memory_bytes - load.memory_used_bytes,
            predictions=self.known.predictions,
            partner_remaining_ms=lambda: None,
        )
        return self.known.answer(self._requests[row], occupied_gpu)


def _grown(size: int, wanted: int) -> int:
    return size if wanted <= size else max(2 * size, wanted)


def answers_of(view: SchedulingView, arrays: GpuArrays) -> PairAnswers:
    """Return the answers that are kept with the arrays of a view."""
    kept, known = arrays.notes.get(PairAnswers), known_answers_of(view)
    if isinstance(kept, PairAnswers) and kept.known.predictions is view.predictions and kept.catch_up():
        kept.known = known
        return kept
    arrays.notes[PairAnswers] = fresh = PairAnswers(known, view.index.prediction_changes)
    return fresh

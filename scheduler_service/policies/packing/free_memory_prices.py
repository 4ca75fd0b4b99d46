"""What load classes cost shapes of jobs that are packed by free memory, kept from decision to decision.

Only classes that a GPU is in are asked about, and after a change of predictions only those again whose answer follows
from the pair, or the key, that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from scheduler_service.core.change_log import ChangeLog, Pair
from scheduler_service.core.cluster_view.gpu_arrays import GpuArrays, LoadClass, Positions
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import JobRequest, Reason
from scheduler_service.policies.placement.class_prices import Nearness

CELLS_MAX = 2_000_000
"""Prices kept; with more shapes and classes than that all are forgotten."""

Ask = Callable[[LoadClass], float | Reason]
"""What a class costs a job, less being better, or why the job cannot come there."""


class FreeMemoryPrices:
    """The prices that belong to one set of arrays.

    Args:
        changes: Reports what of predictions has changed.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes, self._seen = changes, changes.count
        self._rows: dict[object, int] = {}
        self._nearness: list[Nearness] = []
        self._rows_of_key: dict[str, list[int]] = {}
        self._classes_of_key: dict[str, list[int]] = {}
        self._classes_of_pair: dict[Pair, list[int]] = {}
        self._is_open = np.zeros(64, dtype=np.bool_)
        self._classes_seen = 0
        self._costs = np.full((8, 64), nan)

    def catch_up(self) -> bool:
        """Forget what predictions have changed; False when everything must be forgotten."""
        if self._costs.size > CELLS_MAX:
            return False
        if self._seen == self._changes.count:
            return True
        changed, self._seen = self._changes.since(self._seen), self._changes.count
        for key, other in changed or ():
            if other:
                self._forget_pair(key, other)
            else:
                self._costs[self._rows_of_key.get(key, [])] = nan
                self._costs[:, self._classes_of_key.get(key, [])] = nan
        return changed is not None

    def is_open(self, classes: Sequence[LoadClass]) -> NDArray[np.bool_]:
        """Return by number which classes could take some job."""
        self._look_at_new(classes)
        return self._is_open

    def costs_of(
        self, request: JobRequest, numbers: Positions, classes: Sequence[LoadClass], ask: Ask
    ) -> NDArray[np.float64]:
        """Return by number what these classes cost a shape of job; infinite = it cannot come there."""
        self._look_at_new(classes)
        row = self._row_of(request)
        costs: NDArray[np.float64] = self._costs[row]
        for number in numbers[np.isnan(costs[numbers])].tolist():
            found: float | Reason = ask(classes[number]) if self._is_open[number] else inf
            if isinstance(found, Reason):
                self._nearness[row].put(number, found)
                found = inf
            costs[number] = found
        return costs

    def nearness_of(self, request: JobRequest) -> Nearness:
        """Return how near to a start a shape of job is on the classes that refused it when they were last asked."""
        return self._nearness[self._row_of(request)]

    def _row_of(self, request: JobRequest) -> int:
        shape = shape_of(request)
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = len(self._nearness)
            self._nearness.append(Nearness())
            self._rows_of_key.setdefault(request.key, []).append(row)
            if row >= len(self._costs):
                self._costs = np.concatenate((self._costs, np.full_like(self._costs, nan)))
        return row

    def _look_at_new(self, classes: Sequence[LoadClass]) -> None:
        """Note what classes hold that were not there before; they only become more."""
        missing = len(classes) - len(self._is_open)
        if missing > 0:
            more = max(missing, len(self._is_open))
            self._is_open = np.concatenate((self._is_open, np.zeros(more, dtype=np.bool_)))
            self._costs = np.concatenate((self._costs, np.full((len(self._costs), more), nan)), axis=1)
        for number in range(self._classes_seen, len(classes)):
            keys = sorted([resident.request.key for resident in classes[number].residents])
            for key in dict.fromkeys(keys):
                self._classes_of_key.setdefault(key, []).append(number)
            for pair in dict.fromkeys(combinations(keys, 2)):
                self._classes_of_pair.setdefault(pair, []).append(number)
            self._is_open[number] = is_open(classes[number])
        self._classes_seen = len(classes)

    def _forget_pair(self, key: str, other: str) -> None:
        """Forget what two keys cost each other, and any third that would come to both."""
        for comes, is_there in ((key, other), (other, key)):
            rows, numbers = self._rows_of_key.get(comes), self._classes_of_key.get(is_there)
            if rows and numbers:
                self._costs[np.array(rows)[:, None], numbers] = nan
        numbers = self._classes_of_pair.get((key, other) if key <= other else (other, key))
        if numbers:
            self._costs[:, numbers] = nan


def is_open(load: LoadClass) -> bool:
    """Say whether such a GPU could take some job."""
    return not load.is_releasing and load.memory_used_bytes < load.gpu.memory_bytes


def prices_of(view: SchedulingView, arrays: GpuArrays) -> FreeMemoryPrices:
    """Return the prices that are kept with the arrays of a view."""
    changes = view.index.prediction_changes
    name = (FreeMemoryPrices, id(changes), view.opportunistic_tau_ratio)
    kept = arrays.notes.get(name)
    if isinstance(kept, FreeMemoryPrices) and kept.catch_up():
        return kept
    arrays.notes[name] = fresh = FreeMemoryPrices(changes)
    return fresh

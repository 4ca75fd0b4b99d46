"""The applications of the profiles: batch bounds, epochs, and how much progress a batch of a size makes.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/applications.py and simulator.py: progress
    is counted in steps at the initial batch size, and a larger batch gains less than its size.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path

from cotenant_simulator.pollux_rules.csv_rows import group_lines, read_rows
from cotenant_simulator.pollux_rules.errors import ProfileError
from cotenant_simulator.pollux_rules.step_times import StepTimes

_BOUNDS = (
    "application",
    "init_batch_size",
    "max_batch_size",
    "min_local_batch_size",
    "max_local_batch_size",
    "epochs_table_used",
    "forced_max_gpus",
)
_VALIDATION_FILE = "validation.csv"
_VALIDATION = ("application", "batch_size", "epoch", "progress", "iteration", "metric", "grad_sqr", "grad_var")


@dataclass(frozen=True, slots=True)
class Training:
    """What was measured at one batch size, an entry per epoch.

    Attributes:
        progress: Steps at the initial batch size that the epochs so far are worth.
        iterations: Steps taken so far.
        squares: |g|^2 of the gradient.
        variances: tr(Var[g]) of the gradient at the initial batch size.
    """

    progress: list[float]
    iterations: list[int]
    squares: list[float]
    variances: list[float]


@dataclass(frozen=True)
class Application:
    """One application of the profiles.

    Attributes:
        name: Its name.
        initial_batch: Samples per step that its progress is counted in.
        batch_max: Largest samples per step.
        local_samples_min: Fewest samples per GPU and pass.
        local_samples_max: Most samples per GPU and pass.
        epochs: Epochs until it is done.
        gpus_forced_max: Most GPUs under policies that choose the count; None = no such limit.
        trainings: By batch size, ascending.
        step_times: Of all applications.
    """

    name: str
    initial_batch: int
    batch_max: int
    local_samples_min: int
    local_samples_max: int
    epochs: int
    gpus_forced_max: int | None
    trainings: dict[int, Training]
    step_times: StepTimes
    _gains: dict[tuple[int, int], float] = field(default_factory=dict)

    @cached_property
    def goals(self) -> list[float]:
        """Progress that completes each epoch: the least over all batch sizes."""
        columns = (training.progress for training in self.trainings.values())
        return [min(column) for column in zip(*columns, strict=True)]

    @cached_property
    def _batches(self) -> list[int]:
        return list(self.trainings)

    def gain(self, batch: int, epochs_done: int) -> float:
        """Return the progress of one step of `batch` samples in the epoch after `epochs_done`.

        Raises:
            ProfileError: The batch lies outside of the measured ones.
        """
        key = (batch, epochs_done)
        found = self._gains.get(key)
        if found is None:
            square, variance = self.gradient(batch, epochs_done)
            found = (variance + square) / (variance / (batch / self.initial_batch) + square)
            self._gains[key] = found
        return found

    def gradient(self, batch: int, epochs_done: int) -> tuple[float, float]:
        """Return (|g|^2, tr(Var[g])) in the epoch after `epochs_done`, linear between the measured batch sizes.

        Raises:
            ProfileError: The batch lies outside of the measured ones.
        """
        low, high, part = self._between(batch)
        before, after = self.trainings[low], self.trainings[high]
        return (
            before.squares[epochs_done] + part * (after.squares[epochs_done] - before.squares[epochs_done]),
            before.variances[epochs_done] + part * (after.variances[epochs_done] - before.variances[epochs_done]),
        )

    def iterations(self, batch: int, epochs_done: int) -> float:
        """Return the steps that `epochs_done` epochs (at least 1) take at a batch size.

        Raises:
            ProfileError: The batch lies outside of the measured ones.
        """
        low, high, part = self._between(batch)
        before = self.trainings[low].iterations[epochs_done - 1]
        return before + part * (self.trainings[high].iterations[epochs_done - 1] - before)

    def _between(self, batch: int) -> tuple[int, int, float]:
        batches = self._batches
        if not batches[0] <= batch <= batches[-1]:
            raise ProfileError(
                f"{self.name}: gradient statistics are known for batches of {batches[0]} to {batches[-1]}, not {batch}"
            )
        high = batches[bisect_left(batches, batch)]
        if high == batch:
            return high, high, 0.0
        low = batches[bisect_left(batches, batch) - 1]
        return low, high, (batch - low) / (high - low)


def read_applications(folder: Path) -> dict[str, Application]:
    """Read the profiles.

    Args:
        folder: The folder with applications.csv, validation.csv, placements.csv and unmeasured.csv.

    Raises:
        ProfileError: A file is missing, incomplete or unreadable.
    """
    step_times = StepTimes(folder)
    trainings = _read_trainings(folder)
    applications = {}
    for name, *bounds, forced in read_rows(folder / "applications.csv", _BOUNDS, ProfileError):
        measured = trainings.get(name)
        if measured is None:
            raise ProfileError(f"{name} of applications.csv has no rows in {folder / _VALIDATION_FILE}")
        try:
            initial, largest, local_min, local_max, epochs = (int(value) for value in bounds)
            forced_max = int(forced) if forced else None
        except ValueError as problem:
            raise ProfileError(f"{name} of {folder / 'applications.csv'}: {problem}") from problem
        shortest = min(len(training.progress) for training in measured.values())
        if not (1 <= initial <= largest and 1 <= local_min <= local_max and 1 <= epochs <= shortest):
            raise ProfileError(
                f"{name} of {folder / 'applications.csv'}: batch bounds must ascend and be positive, and the epochs "
                f"({epochs}) must be among the {shortest} of {_VALIDATION_FILE}"
            )
        applications[name] = Application(
            name, initial, largest, local_min, local_max, epochs, forced_max, measured, step_times
        )
    if not applications:
        raise ProfileError(f"{folder / 'applications.csv'} names no application")
    return applications


def _read_trainings(folder: Path) -> dict[str, dict[int, Training]]:
    """Read the statistics of every application, batch sizes ascending."""
    path = folder / _VALIDATION_FILE
    found: dict[str, dict[int, Training]] = {}
    rows: dict[tuple[str, int], list[tuple[int, float, int, float, float]]] = {}
    for line in (line for lines in group_lines(path, _VALIDATION, ProfileError).values() for line in lines):
        name, batch, epoch, progress, iteration, _, square, variance = line.split(",")
        try:
            row = (int(epoch), float(progress), int(iteration), float(square), float(variance))
            rows.setdefault((name, int(batch)), []).append(row)
        except ValueError as problem:
            raise ProfileError(f"{path}: the row {line!r} holds something else than numbers: {problem}") from problem
    for (name, batch_size), of_batch in sorted(rows.items()):
        found.setdefault(name, {})[batch_size] = _training(f"{path}: {name} at batch {batch_size}", of_batch)
    for name, trainings in found.items():
        epochs = {len(training.progress) for training in trainings.values()}
        if len(epochs) > 1:
            raise ProfileError(f"{path}: {name} has another number of epochs at another batch size")
    return found


def _training(what: str, rows: list[tuple[int, float, int, float, float]]) -> Training:
    rows.sort()
    if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
        raise ProfileError(f"{what}: the epochs must count from 1 without a gap")
    if any(not all(isfinite(value) and value >= 0 for value in row) or row[3] + row[4] <= 0 for row in rows):
        raise ProfileError(f"{what}: progress and gradient statistics must be finite and not negative")
    return Training(
        [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], [row[4] for row in rows]
    )

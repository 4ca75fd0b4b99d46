"""The most likely coefficients of step times on all device types, given measured rows and priors.

Every site (a set's rows of one device, whatever the campaign) has a host, a speed and a script of its own, which are
fitted along and thrown away, so that one fast machine does not make a device look fast, nor a script that reads its
input in every step make every small network look slow. Three campaigns of one site are one witness, not three. Errors
beyond two deviations count less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from predictor_service.cross_device.step_physics import (
    COEFFICIENTS,
    PRIORS,
    SCRIPT_MS,
    SUCCESSOR_DEVIATION,
    SUCCESSORS,
    StepKind,
    StepParts,
    StepTerms,
    log_derivatives,
    step_parts,
    terms_of,
)
from predictor_service.cross_device.step_work import StepWork
from predictor_service.features.graphs.affine import FloatArray
from predictor_service.learning.cross_device_rows import StepRow, work_of_rows

_ERROR_DEVIATION: Final = 0.25
_HOST_DEVIATION: Final = 1.0
_SPEED_DEVIATION: Final = 0.5
_ROUNDS: Final = 40
_HALVINGS: Final = 8
_SETTLED: Final = 1e-3
"""Of the logarithm of how likely everything is."""
_FAR: Final = 2.0
"""Deviations beyond which errors count less."""
_LONGEST_STEP: Final = 0.5
_SCRIPTS: Final = 4
"""Of a site: one that trains and one that infers, each in whole and in half precision, see `scripts_of`."""
_HALF: Final = frozenset({"fp16", "bf16"})
Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTable:
    """Rows in the arrays that are fitted."""

    work: StepWork
    kinds: Sequence[StepKind]
    terms: StepTerms
    log_ms: FloatArray
    site_names: Sequence[str]
    sites: np.ndarray[tuple[int], np.dtype[np.intp]]
    scripts: np.ndarray[tuple[int], np.dtype[np.intp]]
    groups: np.ndarray[tuple[int], np.dtype[np.intp]]
    weights: FloatArray


def tabulate_rows(rows: Sequence[StepRow]) -> StepTable:
    """Puts measured rows into arrays; every device weighs less than its rows, and more the more it has."""
    work, kinds = work_of_rows(rows), [row.kind for row in rows]
    devices = np.unique([row.device for row in rows], return_inverse=True)[1]
    counts = np.bincount(devices)[devices]
    weights = counts**-0.25
    site_names, sites = np.unique([row.site for row in rows], return_inverse=True)
    return StepTable(
        work=work,
        kinds=kinds,
        terms=terms_of(work, kinds),
        log_ms=np.log([row.step_ms for row in rows]),
        site_names=site_names.tolist(),
        sites=sites,
        scripts=scripts_of(rows, sites),
        groups=np.unique([row.group for row in rows], return_inverse=True)[1],
        weights=weights / weights.mean(),
    )


def scripts_of(rows: Sequence[StepRow], sites: Places) -> Places:
    """The script of each row; those that train have even numbers.

    A script that holds all in 16 bits copies half as much input to the device, which slow hosts need longer for than
    the device needs for a small network.
    """
    each = [2 * (row.kind.precision in _HALF) + (not row.kind.is_training) for row in rows]
    return np.asarray(_SCRIPTS * sites + each, dtype=np.intp)


class FittedSteps(NamedTuple):
    """The most likely coefficients, and what is left of each row's logarithm with its machine taken out.

    Attributes:
        logs: Of the coefficients.
        residuals: Shape (rows,).
        hosts: What the host of each machine deviates by, shape (machines,).
        speeds: What each machine takes longer, as a logarithm, shape (machines,).
        scripts_ms: What each script does beside the step, see `scripts_of`, shape (4 x machines,).
    """

    logs: FloatArray
    residuals: FloatArray
    hosts: FloatArray
    speeds: FloatArray
    scripts_ms: FloatArray


class _Guess(NamedTuple):
    """What is fitted, in one array: logarithms of coefficients, then hosts, speeds and scripts of machines."""

    all: FloatArray
    machines: int

    @property
    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The array taken apart."""
        first, second, third = (len(COEFFICIENTS) + each * self.machines for each in range(3))
        return self.all[:first], self.all[first:second], self.all[second:third], self.all[third:]


def fit_coefficients(rows: StepTable) -> FittedSteps:
    """Finds what rows and priors make most likely."""
    machines = int(rows.sites.max()) + 1
    typical = np.log([prior.typical for prior in PRIORS.values()])
    centre = np.concatenate([typical, np.zeros(2 * machines), np.full(_SCRIPTS * machines, np.log(SCRIPT_MS.typical))])
    deviations = [prior.deviation for prior in PRIORS.values()]
    spreads = ((machines, _HOST_DEVIATION), (machines, _SPEED_DEVIATION), (_SCRIPTS * machines, SCRIPT_MS.deviation))
    precisions = np.diag(np.concatenate([deviations, *(np.full(count, each) for count, each in spreads)]) ** -2.0)
    _relate_successors(precisions)
    search = _Search(rows, centre, precisions)
    now = _Guess(centre.copy(), machines)
    loss = search.loss(now)
    for _ in range(_ROUNDS):
        before, (now, loss) = loss, search.go_on(now, loss)
        if before - loss < _SETTLED:
            break
    logs, hosts, speeds, scripts = now.parts
    return FittedSteps(logs, _time_guess(rows, now).residuals, hosts, speeds, np.exp(scripts))


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The search for what rows and priors make most likely.

    Where a term reaches the least that it can take, its coefficients tell nothing beyond: a whole step there jumps
    from one side to the other for ever. So each step is halved until what it leads to is more likely.
    """

    rows: StepTable
    centre: FloatArray
    precisions: FloatArray

    def loss(self, guess: _Guess) -> float:
        """Minus the logarithm of how likely a guess is, but for a constant."""
        off = np.abs(_time_guess(self.rows, guess).residuals) / _ERROR_DEVIATION
        apart = guess.all - self.centre
        of_rows = np.where(off <= _FAR, off**2 / 2, _FAR * off - _FAR**2 / 2)
        return float((self.rows.weights * of_rows).sum() + apart @ self.precisions @ apart / 2)

    def go_on(self, guess: _Guess, loss: float) -> tuple[_Guess, float]:
        """A guess that is more likely, and its loss; the same where none is found."""
        slopes, residuals = _linearise(self.rows, guess)
        trust = self.rows.weights / (_ERROR_DEVIATION * np.maximum(_ERROR_DEVIATION, np.abs(residuals) / _FAR))
        step = np.linalg.solve(
            (slopes * trust[:, None]).T @ slopes + self.precisions,
            slopes.T @ (trust * residuals) - self.precisions @ (guess.all - self.centre),
        )
        step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        for _ in range(_HALVINGS):
            trial = _Guess(guess.all + step, guess.machines)
            if (found := self.loss(trial)) < loss:
                return trial, found
            step /= 2
        return guess, loss


def _relate_successors(precisions: FloatArray) -> None:
    """Adds to the priors' precisions, in place, that generations compute like those that they were developed from."""
    for pair in SUCCESSORS:
        before, after = (COEFFICIENTS.index(f"compute_{each.value}") for each in pair)
        precisions[[before, after], [before, after]] += SUCCESSOR_DEVIATION**-2.0
        precisions[[before, after], [after, before]] -= SUCCESSOR_DEVIATION**-2.0


class _Timed(NamedTuple):
    """Steps as a guess times them: their parts, what scripts do beside them, and what is left of each logarithm."""

    parts: StepParts
    script_ms: FloatArray
    residuals: FloatArray


def _time_guess(rows: StepTable, guess: _Guess) -> _Timed:
    logs, hosts, speeds, scripts = guess.parts
    script_ms = np.exp(scripts[rows.scripts])
    parts = step_parts(rows.terms, logs, hosts[rows.sites], script_ms)
    return _Timed(parts, script_ms, rows.log_ms - np.log(parts.total_ms) - speeds[rows.sites])


def _linearise(rows: StepTable, now: _Guess) -> tuple[FloatArray, FloatArray]:
    """Derivatives of the logarithms of all times by everything that is fitted, and what is left of each."""
    logs, (parts, script_ms, residuals) = now.parts[0], _time_guess(rows, now)
    by_coefficient, by_host = log_derivatives(rows.terms, logs, parts)
    slopes = np.concatenate([by_coefficient, np.zeros((len(residuals), (2 + _SCRIPTS) * now.machines))], axis=1)
    places, first = np.arange(len(residuals)), len(COEFFICIENTS)
    slopes[places, first + rows.sites] = by_host
    slopes[places, first + now.machines + rows.sites] = 1.0
    slopes[places, first + 2 * now.machines + rows.scripts] = script_ms / parts.total_ms
    return slopes, residuals

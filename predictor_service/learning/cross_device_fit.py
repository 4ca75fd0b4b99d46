"""Fits the model of step times of all device types, and finds how wide its ranges must be.

Coefficients are the most likely ones given their priors; every site (a set's rows of one device, whatever the campaign)
has a host, a speed and a script of its own, which are fitted along and thrown away, so that one fast machine does not
make a device look fast, nor a script that reads its input in every step make every small network look slow. Three
campaigns of one site are one witness, not three. Errors beyond two deviations count less. The correction learns what
remains of each kind of network within a machine.

Widths come from devices left out one by one: what the model of the others misses of a device's rows, each device as
heavy as any other, however many rows it has. A device whose generation taught nothing is farther off than one with
relatives: its widths come from generations left out one by one, each as heavy as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from predictor_service.cross_device.known_networks import NO_NETWORKS, KnownNetworks
from predictor_service.cross_device.step_correction import StepCorrection, kernel, traits_of
from predictor_service.cross_device.step_model import (
    CONVOLUTIONAL,
    FOLDS,
    LEVELS,
    OTHER,
    CrossDeviceStep,
    fold_of_family,
)
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
from predictor_service.features.affine import FloatArray
from predictor_service.learning.cross_device_rows import StepRow, hash_rows, work_of_rows

_ERROR_DEVIATION: Final = 0.25
_HOST_DEVIATION: Final = 0.4
_SPEED_DEVIATION: Final = 0.25
_ROUNDS: Final = 40
_HALVINGS: Final = 8
_SETTLED: Final = 1e-3
"""Of the logarithm of how likely everything is."""
_FAR: Final = 2.0
"""Deviations beyond which errors count less."""
_LONGEST_STEP: Final = 0.5
# Of the correction: its own size, and what networks of one kind differ by beyond it.
_CORRECTION_VARIANCE: Final = 0.05
_NOISE_VARIANCE: Final = 0.04
_GROUP_SHRINKAGE: Final = 2.0
_CENTRES: Final = 200
_PARTS_LEAST: Final = 5
"""Of fewer parts left out the worst one alone would be the range of nine tenths."""
_NETWORK_SHRINKAGE: Final = 1.0
"""Devices that a network's time is taken to have been measured on beside those that did, at what is expected of it."""
_SAME_NETWORK_DECIMALS: Final = 1
_LEVELS: Final[FloatArray] = np.array(LEVELS)
_Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
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


def fit_step_model(
    rows: Sequence[StepRow], *, networks: Sequence[StepRow] = (), with_widths: bool = True
) -> CrossDeviceStep:
    """Fits the model.

    Args:
        rows: Measured steps of at least three device types.
        networks: Further ones of the same machines, of which only what each network adds is learned.
        with_widths: Whether to leave devices and generations out one by one; without it ranges are as wide as nothing.
    """
    table = _tabulate(rows)
    fitted = _fit_coefficients(table)
    correction = _fit_correction(table, fitted.residuals)
    model = CrossDeviceStep(
        logs=fitted.logs,
        correction=correction,
        networks=_fit_networks([*rows, *networks], table, fitted, correction),
        widths=_NO_WIDTHS,
        unseen_widths=_NO_WIDTHS,
        script_ms=_typical_scripts(table, fitted),
        devices=tuple(sorted({row.device for row in rows})),
        rows_sha256=hash_rows(rows),
    )
    if not with_widths:
        return model
    return replace(model, widths=find_widths(rows, networks), unseen_widths=find_unseen_widths(rows, networks))


def _typical_scripts(table: _Rows, fitted: _Fitted) -> tuple[float, float]:
    """What scripts that train, and that infer, do beside a step: the mean over those that were measured."""
    measured = np.unique(table.scripts)

    def typical_ms(first: int) -> float:
        each = fitted.scripts_ms[measured[measured % 2 == first]]
        return float(np.exp(np.log(each).mean())) if len(each) else SCRIPT_MS.typical

    return typical_ms(0), typical_ms(1)


def fit_step_folds(rows: Sequence[StepRow]) -> tuple[CrossDeviceStep, ...]:
    """Fits the models that have not seen every fifth family, and so know no network of it; see `load_step_folds`."""
    left_in = ([row for row in rows if fold_of_family(row.family) != fold] for fold in range(FOLDS))
    return tuple(replace(fit_step_model(each, with_widths=False), networks=NO_NETWORKS) for each in left_in)


def find_widths(rows: Sequence[StepRow], networks: Sequence[StepRow] = ()) -> Mapping[str, FloatArray]:
    """Half widths at `LEVELS` by kind of network for devices of generations that taught; see `fit_step_model`.

    Left out are devices whose generation still teaches; all of them where fewer than five have relatives.
    """
    generations = {row.device: _generation_of(row) for row in rows}
    related = [device for device in generations if list(generations.values()).count(generations[device]) > 1]
    chosen = related if len(related) >= _PARTS_LEAST else list(generations)
    return _widths([_miss_by_kind(rows, networks, lambda row: row.device, name) for name in sorted(chosen)])


def find_unseen_widths(rows: Sequence[StepRow], networks: Sequence[StepRow] = ()) -> Mapping[str, FloatArray]:
    """The same for devices of a generation that taught nothing."""
    generations = sorted({_generation_of(row) for row in rows})
    return _widths([_miss_by_kind(rows, networks, _generation_of, name) for name in generations])


def _generation_of(row: StepRow) -> str:
    return row.kind.device.generation.value


def _miss_by_kind(
    rows: Sequence[StepRow], networks: Sequence[StepRow], part_of: Callable[[StepRow], str], name: str
) -> dict[str, FloatArray]:
    """How far off the rows of one part are by the model of all others, absolute logarithms by kind of network."""
    left_out = [row for row in rows if part_of(row) == name]
    others, known_elsewhere = ([row for row in each if part_of(row) != name] for each in (rows, networks))
    model = fit_step_model(others, networks=known_elsewhere, with_widths=False)
    missed, convolves = _missed(model, left_out), _convolves(work_of_rows(left_out))
    return {CONVOLUTIONAL: missed[convolves], OTHER: missed[~convolves]}


def log_errors(model: CrossDeviceStep, rows: Sequence[StepRow]) -> FloatArray:
    """Logarithms of measured over expected, shape (rows,)."""
    expected = model.time_ms(work_of_rows(rows), [row.kind for row in rows])
    return np.asarray(np.log([row.step_ms for row in rows]) - np.log(expected), dtype=np.float64)


def _missed(model: CrossDeviceStep, rows: Sequence[StepRow]) -> FloatArray:
    """How wide the range of each row must be to hold it, as a logarithm: what `estimate` holds anyway is none."""
    kinds, measured = [row.kind for row in rows], np.array([row.step_ms for row in rows])
    bare_ms = model.bare_ms(work_of_rows(rows), kinds)
    most_ms = bare_ms + [model.script_of(kind) for kind in kinds]
    off = np.abs(np.log(measured / model.with_script(bare_ms, kinds)))
    return np.where((bare_ms <= measured) & (measured <= most_ms), 0.0, off)


def _convolves(work: StepWork) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    convolution = work.convolution_flops_per_sample + work.depthwise_flops_per_sample
    return np.asarray(convolution > work.product_flops_per_sample)


def _widths(errors: Sequence[Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
    """Quantiles with every part left out as heavy as any other; of a kind that few have, those of all kinds."""
    every = [each for part in errors for each in part.values() if len(each)]
    of_kind = {kind: [part[kind] for part in errors if len(part[kind])] for kind in (CONVOLUTIONAL, OTHER)}
    return {
        kind: _weighted_quantiles(parts if len(parts) >= _PARTS_LEAST else every) for kind, parts in of_kind.items()
    }


def _weighted_quantiles(parts: Sequence[FloatArray]) -> FloatArray:
    """The levels' quantiles, half a part more than there are counted as beyond all."""
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in parts])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / (len(parts) + 0.5)
    places = np.minimum(np.searchsorted(reached, _LEVELS), len(values) - 1)
    return np.asarray(values[order][places], dtype=np.float64)


def _tabulate(rows: Sequence[StepRow]) -> _Rows:
    work, kinds = work_of_rows(rows), [row.kind for row in rows]
    devices = np.unique([row.device for row in rows], return_inverse=True)[1]
    counts = np.bincount(devices)[devices]
    weights = counts**-0.25
    site_names, sites = np.unique([row.site for row in rows], return_inverse=True)
    return _Rows(
        work=work,
        kinds=kinds,
        terms=terms_of(work, kinds),
        log_ms=np.log([row.step_ms for row in rows]),
        site_names=site_names.tolist(),
        sites=sites,
        scripts=_scripts_of(rows, sites),
        groups=np.unique([row.group for row in rows], return_inverse=True)[1],
        weights=weights / weights.mean(),
    )


def _scripts_of(rows: Sequence[StepRow], sites: _Places) -> _Places:
    """The script of each row: a site has one that trains, by even numbers, and one that infers."""
    return np.asarray(2 * sites + [not row.kind.is_training for row in rows], dtype=np.intp)


class _Fitted(NamedTuple):
    """The most likely coefficients, and what is left of each row's logarithm with its machine taken out.

    Attributes:
        logs: Of the coefficients.
        residuals: Shape (rows,).
        hosts: What the host of each machine deviates by, shape (machines,).
        speeds: What each machine takes longer, as a logarithm, shape (machines,).
        scripts_ms: What each script does beside the step, see `_scripts_of`, shape (2 x machines,).
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


def _fit_coefficients(rows: _Rows) -> _Fitted:
    machines = int(rows.sites.max()) + 1
    typical = np.log([prior.typical for prior in PRIORS.values()])
    centre = np.concatenate([typical, np.zeros(2 * machines), np.full(2 * machines, np.log(SCRIPT_MS.typical))])
    deviations = [prior.deviation for prior in PRIORS.values()]
    spreads = ((machines, _HOST_DEVIATION), (machines, _SPEED_DEVIATION), (2 * machines, SCRIPT_MS.deviation))
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
    return _Fitted(logs, _time_guess(rows, now).residuals, hosts, speeds, np.exp(scripts))


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The search for what rows and priors make most likely.

    Where a term reaches the least that it can take, its coefficients tell nothing beyond: a whole step there jumps
    from one side to the other for ever. So each step is halved until what it leads to is more likely.
    """

    rows: _Rows
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


def _time_guess(rows: _Rows, guess: _Guess) -> _Timed:
    logs, hosts, speeds, scripts = guess.parts
    script_ms = np.exp(scripts[rows.scripts])
    parts = step_parts(rows.terms, logs, hosts[rows.sites], script_ms)
    return _Timed(parts, script_ms, rows.log_ms - np.log(parts.total_ms) - speeds[rows.sites])


def _linearise(rows: _Rows, now: _Guess) -> tuple[FloatArray, FloatArray]:
    """Derivatives of the logarithms of all times by everything that is fitted, and what is left of each."""
    logs, (parts, script_ms, residuals) = now.parts[0], _time_guess(rows, now)
    by_coefficient, by_host = log_derivatives(rows.terms, logs, parts)
    slopes = np.concatenate([by_coefficient, np.zeros((len(residuals), 4 * now.machines))], axis=1)
    places, first = np.arange(len(residuals)), len(COEFFICIENTS)
    slopes[places, first + rows.sites] = by_host
    slopes[places, first + now.machines + rows.sites] = 1.0
    slopes[places, first + 2 * now.machines + rows.scripts] = script_ms / parts.total_ms
    return slopes, residuals


def _fit_networks(rows: Sequence[StepRow], table: _Rows, fitted: _Fitted, correction: StepCorrection) -> KnownNetworks:
    """What each network takes beyond its kind, every device with one vote and one vote for nothing."""
    place_of = dict(zip(table.site_names, range(len(table.site_names)), strict=True))
    known = [row for row in rows if row.site in place_of]
    work, kinds, machines = work_of_rows(known), [row.kind for row in known], [place_of[row.site] for row in known]
    script_ms = fitted.scripts_ms[_scripts_of(known, np.array(machines))]
    parts = step_parts(terms_of(work, kinds), fitted.logs, fitted.hosts[machines], script_ms)
    traits = traits_of(work, kinds)
    left = np.log([row.step_ms for row in known]) - np.log(parts.total_ms) - fitted.speeds[machines]
    left -= correction.log_ratio(traits)
    groups = np.unique([row.group for row in known], return_inverse=True)[1]
    left -= (np.bincount(groups, weights=left) / (np.bincount(groups) + _GROUP_SHRINKAGE))[groups]
    points = correction.standardise(traits)
    names, firsts, networks = np.unique(
        np.round(points, _SAME_NETWORK_DECIMALS), axis=0, return_index=True, return_inverse=True
    )
    devices = np.unique([row.device for row in known], return_inverse=True)[1]
    sums, counts = np.zeros((2, len(names), int(devices.max()) + 1))
    np.add.at(sums, (networks.reshape(-1), devices), left)
    np.add.at(counts, (networks.reshape(-1), devices), 1.0)
    by_device = sums / np.maximum(counts, 1.0)
    return KnownNetworks(
        points=points[firsts], logs=by_device.sum(axis=1) / ((counts > 0).sum(axis=1) + _NETWORK_SHRINKAGE)
    )


def _fit_correction(rows: _Rows, residuals: FloatArray) -> StepCorrection:
    """What remains of each kind of network once machine, precision and mode are taken out, shrunk."""
    sums, counts = np.bincount(rows.groups, weights=residuals), np.bincount(rows.groups)
    within = residuals - (sums / (counts + _GROUP_SHRINKAGE))[rows.groups]
    traits = traits_of(rows.work, rows.kinds)
    sizes = traits[:, : len(_LEAST_DEVIATIONS)]
    empty = StepCorrection(
        means=sizes.mean(axis=0),
        deviations=np.maximum(sizes.std(axis=0), _LEAST_DEVIATIONS),
        centres=np.zeros((0, traits.shape[1])),
        weights=np.zeros(0),
    )
    points = empty.standardise(traits)
    centres = _spread_out(points)
    near, among = kernel(points, centres), kernel(centres, centres)
    left = near.T @ near / _NOISE_VARIANCE + (among + 1e-6 * np.eye(len(centres))) / _CORRECTION_VARIANCE
    weights = np.linalg.solve(left, near.T @ within / _NOISE_VARIANCE)
    return replace(empty, centres=centres, weights=weights.astype(np.float64))


def _spread_out(points: FloatArray) -> FloatArray:
    """Points far from each other: always the one farthest from those chosen before."""
    chosen = [0]
    distances = ((points - points[0]) ** 2).sum(axis=1)
    while len(chosen) < min(_CENTRES, len(points)) and float(distances.max()) > _LEAST_DISTANCE:
        chosen.append(int(distances.argmax()))
        distances = np.minimum(distances, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    return points[chosen]


_LEAST_DISTANCE: Final = 0.05
_LEAST_DEVIATIONS: Final[FloatArray] = np.full(7, 0.1)
_NO_WIDTHS: Final[Mapping[str, FloatArray]] = {kind: np.zeros(len(LEVELS)) for kind in (CONVOLUTIONAL, OTHER)}

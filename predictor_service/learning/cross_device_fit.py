"""Fits the model of step times of all device types, and finds how wide its ranges must be.

Coefficients come from `cross_device_coefficients`. The correction learns what remains of each kind of network within a
machine.

Widths come from devices left out one by one: what the model of the others misses of a device's rows, each device as
heavy as any other, however many rows it has. A device whose generation taught nothing is farther off than one with
relatives: its widths come from generations left out one by one, each as heavy as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

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
    SCRIPT_MS,
    step_parts,
    terms_of,
)
from predictor_service.cross_device.step_work import StepWork
from predictor_service.features.graphs.affine import FloatArray
from predictor_service.learning.cross_device_coefficients import (
    FittedSteps,
    StepTable,
    fit_coefficients,
    scripts_of,
    tabulate_rows,
)
from predictor_service.learning.cross_device_rows import StepRow, hash_rows, work_of_rows

# Of the correction: its own size, and what networks of one kind differ by beyond it.
_CORRECTION_VARIANCE: Final = 0.05
_NOISE_VARIANCE: Final = 0.04
_GROUP_SHRINKAGE: Final = 2.0
_CENTRES: Final = 200
_PARTS_LEAST: Final = 5
"""Of fewer parts left out the worst one alone would be the range of nine tenths."""
_LEAST_SIDE: Final = 0.2
"""Share of a range that is below, or above, at least."""
_NETWORK_SHRINKAGE: Final = 1.0
"""Devices that a network's time is taken to have been measured on beside those that did, at what is expected of it."""
_SAME_NETWORK_DECIMALS: Final = 1
_LEVELS: Final[FloatArray] = np.array(LEVELS)


def fit_step_model(
    rows: Sequence[StepRow], *, networks: Sequence[StepRow] = (), with_widths: bool = True
) -> CrossDeviceStep:
    """Fits the model.

    Args:
        rows: Measured steps of at least three device types.
        networks: Further ones of the same machines, of which only what each network adds is learned.
        with_widths: Whether to leave devices and generations out one by one; without it ranges are as wide as nothing.
    """
    table = tabulate_rows(rows)
    fitted = fit_coefficients(table)
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


def _typical_scripts(table: StepTable, fitted: FittedSteps) -> tuple[float, float]:
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
    """How far ranges reach at `LEVELS` by kind of network for devices of generations that taught; see `fit_step_model`.

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
    """How far off the rows of one part are by the model of all others, logarithms by kind of network."""
    left_out = [row for row in rows if part_of(row) == name]
    others, known_elsewhere = ([row for row in each if part_of(row) != name] for each in (rows, networks))
    model = fit_step_model(others, networks=known_elsewhere, with_widths=False)
    missed, convolves = _missed(model, left_out), _convolves(work_of_rows(left_out))
    return {CONVOLUTIONAL: missed[convolves], OTHER: missed[~convolves]}


def _missed(model: CrossDeviceStep, rows: Sequence[StepRow]) -> FloatArray:
    """How far the range of each row must reach to hold it, as a logarithm: what `estimate` holds anyway is none."""
    kinds, measured = [row.kind for row in rows], np.array([row.step_ms for row in rows])
    bare_ms = model.bare_ms(work_of_rows(rows), kinds)
    most_ms = bare_ms + [model.script_of(kind) for kind in kinds]
    off = np.log(measured / model.with_script(bare_ms, kinds))
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
    """How far ranges reach below and above at the levels, half a part more than there are counted as beyond all.

    Labs are slow by more than others are fast, so a range reaches farther up than down: by as much as what was measured
    is above, and below, what was expected.
    """
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in parts])
    sides = np.array([(weights * np.maximum(-values, 0.0)).sum(), (weights * np.maximum(values, 0.0)).sum()])
    shares = np.maximum(sides / max(float(sides.sum()), _LEAST_SIDE), _LEAST_SIDE)
    below, above = 2.0 * shares / shares.sum()
    apart = np.where(values < 0.0, -values / below, values / above)
    order = np.argsort(apart)
    reached = np.cumsum(weights[order]) / (len(parts) + 0.5)
    places = np.minimum(np.searchsorted(reached, _LEVELS), len(values) - 1)
    return np.stack([below * apart[order][places], above * apart[order][places]])


def _fit_networks(
    rows: Sequence[StepRow], table: StepTable, fitted: FittedSteps, correction: StepCorrection
) -> KnownNetworks:
    """What each network takes beyond its kind, every device with one vote and one vote for nothing."""
    place_of = dict(zip(table.site_names, range(len(table.site_names)), strict=True))
    known = [row for row in rows if row.site in place_of]
    work, kinds, machines = work_of_rows(known), [row.kind for row in known], [place_of[row.site] for row in known]
    script_ms = fitted.scripts_ms[scripts_of(known, np.array(machines))]
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


def _fit_correction(rows: StepTable, residuals: FloatArray) -> StepCorrection:
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
_NO_WIDTHS: Final[Mapping[str, FloatArray]] = {kind: np.zeros((2, len(LEVELS))) for kind in (CONVOLUTIONAL, OTHER)}

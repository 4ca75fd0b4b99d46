"""The figures of a report, each a function of dataset rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cotenant.profile_schema import PairRow, SoloRow
from cotenant_profiler.load_curve import LoadCurve, fit_load_curve

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceFigures:
    """The figures from the rows of one device and campaign.

    Attributes:
        device: Device type.
        campaign: Name of the campaign.
        utilization_ratio: Mean utilization of every job alone, shape (jobs,).
        load_ratio: Summed utilization of the jobs of every pair row, shape (rows,).
        slowdown_ratio: Slowdown of the victim of the same row, shape (rows,).
        predicted_ratio: The same by an additive table that has not seen the row's jobs together, NaN where unknown.
        repeat_deviation: Standard deviation of every repeated slowdown.
        curve: Line and parabola through load and slowdown.
        accepted: Accepted runs.
        rejected: Rejected and failed runs.
    """

    device: str
    campaign: str
    utilization_ratio: FloatArray
    load_ratio: FloatArray
    slowdown_ratio: FloatArray
    predicted_ratio: FloatArray
    repeat_deviation: FloatArray
    curve: LoadCurve
    accepted: int
    rejected: int

    @property
    def predicted_error_mean(self) -> float | None:
        """Mean absolute error of `predicted_ratio`; None without a prediction."""
        errors = np.abs(self.predicted_ratio - self.slowdown_ratio)
        return float(np.nanmean(errors)) if np.isfinite(errors).any() else None


def gather_figures(solo: Sequence[SoloRow], pairs: Sequence[PairRow]) -> list[DeviceFigures]:
    """Return the figures of every device and campaign of a dataset, in alphabetical order."""
    keys = sorted({(row.device, row.campaign) for row in solo})
    return [
        _figures(
            device,
            campaign,
            [row for row in solo if (row.device, row.campaign) == (device, campaign)],
            [row for row in pairs if (row.device, row.campaign) == (device, campaign)],
        )
        for device, campaign in keys
    ]


def _figures(device: str, campaign: str, solo: Sequence[SoloRow], pairs: Sequence[PairRow]) -> DeviceFigures:
    utilization = _mean_utilization(solo)
    rows = [row for row in pairs if _is_usable(row, utilization)]
    load = np.array([sum(utilization[key] for key in (row.victim_job_key, *row.other_job_keys)) for row in rows])
    slowdown = np.array([row.slowdown_ratio for row in rows], dtype=np.float64)
    runs = {(row.run_id, row.status) for row in solo} | {(row.run_id, row.status) for row in pairs}
    return DeviceFigures(
        device=device,
        campaign=campaign,
        utilization_ratio=np.array(sorted(utilization.values())),
        load_ratio=load,
        slowdown_ratio=slowdown,
        predicted_ratio=_leave_group_out(rows),
        repeat_deviation=np.array(_repeat_deviations(rows)),
        curve=fit_load_curve(load.tolist(), slowdown.tolist()),
        accepted=sum(status == "ok" for _, status in runs),
        rejected=sum(status != "ok" for _, status in runs),
    )


def _mean_utilization(solo: Sequence[SoloRow]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in solo:
        if row.status == "ok" and row.utilization_ratio is not None:
            values.setdefault(row.job_key, []).append(row.utilization_ratio)
    return {key: statistics.fmean(ratios) for key, ratios in values.items()}


def _is_usable(row: PairRow, utilization: Mapping[str, float]) -> bool:
    known = all(key in utilization for key in (row.victim_job_key, *row.other_job_keys))
    return row.status == "ok" and row.slowdown_ratio is not None and known


def _repeat_deviations(rows: Sequence[PairRow]) -> list[float]:
    repeated: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for row in rows:
        # Rows of a job co-located with a copy of itself come from one run: they are not repetitions.
        if row.slowdown_ratio is not None and row.victim_job_key not in row.other_job_keys:
            repeated.setdefault((row.victim_job_key, row.other_job_keys), []).append(row.slowdown_ratio)
    return [statistics.stdev(values) for values in repeated.values() if len(values) > 1]


def _leave_group_out(rows: Sequence[PairRow]) -> FloatArray:
    """Predict every row by sensitivity plus effects, fitted without all rows of the same group of jobs."""
    names = sorted({key for row in rows for key in (row.victim_job_key, *row.other_job_keys)})
    columns = np.array([_effects(row, names) for row in rows]).reshape(len(rows), 2 * len(names))
    measured = np.array([row.slowdown_ratio for row in rows], dtype=np.float64)
    groups = [tuple(sorted((row.victim_job_key, *row.other_job_keys))) for row in rows]
    predicted = np.full(len(rows), np.nan)
    for group in set(groups):
        held_out = np.array([item == group for item in groups])
        train = columns[~held_out]
        # A job that was measured in no other group has no effect that could be known.
        known = ~((columns[held_out] > 0) & (train.sum(axis=0) == 0)).any(axis=1)
        if len(train) and known.all():
            ridge = np.vstack((train, 0.1 * np.eye(columns.shape[1])))
            target = np.concatenate((measured[~held_out], np.zeros(columns.shape[1])))
            predicted[held_out] = columns[held_out] @ np.linalg.lstsq(ridge, target, rcond=None)[0]
    return predicted


def _effects(row: PairRow, names: Sequence[str]) -> list[float]:
    victim = [float(name == row.victim_job_key) for name in names]
    others = [float(row.other_job_keys.count(name)) for name in names]
    return victim + others

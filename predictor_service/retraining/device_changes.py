"""Whether the jobs of a device whose alarm is on all changed alike, since when, and by how much.

An alarm says that predictions no longer hold, not why. A device that changed (a driver, a clock, a disk behind it)
moves what all of its jobs take by about one factor, from one day on, and goes on doing so; wrong labels are scattered
over jobs and days. So the newest windows are compared with what the served version says of their jobs: the day is where
two levels, the served one before and one that all share behind it, explain the windows best, and it is a change only
where no more than a tenth of the jobs lie far from the new level, each job counted once. Jobs of families that the
served version has not learned from on that device are no witnesses: what it errs on them may be its own fault.

The level is the median of the older half of the windows behind the day, every family counted once; the newer half is
what a new version is judged by, see `gate.compare_newest`.

What cannot be told apart: if every machine of a device type reports three times too much, that looks like a change of
the device. It moves that target of that device type and nothing else, and `models rollback` takes it back. Where only
some machines do, their jobs disagree with the others', and nothing is moved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.fitting.answers import forecast_known
from predictor_service.learning.learning_task import FloatArray
from predictor_service.profile_store.measurement_window import MeasurementWindow, StoredMeasurementWindow
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.retraining.batch_check import CONTRADICTING_RATIO_MAX, contradiction_limit
from predictor_service.retraining.collected_rows import CollectedProfiles
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.drift import MEMORY_BOUND, ROWS_MIN, DriftReport
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.selection.targets import MEMORY, STEP, TARGETS_BY_NAME, UTILIZATION, Target

JOBS_MIN: Final = 5
SHIFT_MIN: Final = 0.05
"""Less is what measuring again changes; of shares, and of sizes and times in the logarithm."""
SHIFT_MAX: Final[Mapping[str, float]] = {"share": 0.5, "log_ratio": math.log(5.0)}
"""More, by the scale of the target, is no changed device but a wrong unit, or a job that ran elsewhere."""
_DAYS_TRIED: Final = 200
_FAR: Final = 1.0
"""A window further off than this counts no more: one wrong unit must not move the day."""
_MEASURED: Final[Mapping[str, str]] = {
    STEP.name: "step_ms",
    UTILIZATION.name: "utilization_ratio",
    MEMORY.name: "memory_peak_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChange:
    """A change, and what judges it.

    Attributes:
        change: What it is.
        newest: What was measured of each job in the newer half of the windows behind it, a median, and what the served
            version says of it; a row's name is the job's key.
    """

    change: DeviceChange
    newest: HeldOutRows


class _Known(NamedTuple):
    """What the served version says of a job."""

    predicted: float
    family: str


class _Off(NamedTuple):
    """A window: how far it lies from what is served, in the scale of `DeviceChange.shift`."""

    at_ms: int
    job_key: str
    off: float


def alarming_targets(report: DriftReport) -> frozenset[tuple[str, str]]:
    """Device type and target of every alarm that is on; the bound of memory is memory."""
    return frozenset(
        (item.device, MEMORY.name if item.target == MEMORY_BOUND else item.target)
        for item in report.targets
        if item.is_alarming
    )


def find_changes(
    collected: CollectedProfiles,
    champion: ServedVersion,
    held_out: HeldOut,
    alarming: Collection[tuple[str, str]],
    datasets: Sequence[str],
) -> list[FoundChange]:
    """Looks for changes where an alarm is on.

    Args:
        collected: What running jobs taught, restated by the changes that are known.
        champion: The served version.
        held_out: Its held-out rows.
        alarming: Device type and target of each alarm.
        datasets: Names of the data sets that a change that is found is younger than.
    """
    if collected.dataset is None:
        return []
    found = []
    for name, target_name in sorted(alarming):
        device, target = find_device_type(name), TARGETS_BY_NAME[target_name]
        model = champion.devices.get(device.name, {}).get(target_name) if device else None
        if device is None or model is None:
            continue
        known = _ask(collected.dataset, device, model, held_out)
        windows = list(_off(collected.alone, target, device, known))
        since, shift = _judge(windows, known, contradiction_limit(model))
        if SHIFT_MIN < abs(shift) < SHIFT_MAX[target.scale]:
            change = DeviceChange(
                device=device.name, target=target_name, at_ms=since[0].at_ms, shift=shift, datasets=tuple(datasets)
            )
            found.append(FoundChange(change=change, newest=_witnesses(since[len(since) // 2 :], known, target)))
    return found


def _ask(dataset: Dataset, device: DeviceType, model: ServedTarget, held_out: HeldOut) -> Mapping[str, _Known]:
    """What is served of every job of a family that the model learned from, by job key."""
    taught = held_out.get(device.name, {}).get(model.target.name)
    families = frozenset(name for names in taught.groups for name in names) if taught else frozenset[str]()
    rows = select_rows([dataset], model.target, device).learned
    rows = rows.subset([place for place, job in enumerate(rows.jobs) if job.family in families])
    if not len(rows):
        return {}
    values = forecast_known(model, rows).value.tolist()
    return {job.job_key: _Known(value, job.family) for job, value in zip(rows.jobs, values, strict=True)}


def _off(
    windows: Iterable[StoredMeasurementWindow], target: Target, device: DeviceType, known: Mapping[str, _Known]
) -> Iterator[_Off]:
    for item in windows:
        window = item.window
        if window is None or window.job.key not in known or find_device_type(window.device) != device:
            continue
        measured = _measured(window, target)
        if measured is not None and math.isfinite(measured) and measured > 0:
            yield _Off(item.at_ms, window.job.key, _distance(target, measured, known[window.job.key].predicted))


def _measured(window: MeasurementWindow, target: Target) -> float | None:
    name = _MEASURED.get(target.name)
    value = None if name is None else getattr(window, name)
    return None if value is None else float(value)


def _distance(target: Target, measured: float, predicted: float) -> float:
    return measured - predicted if target.scale == "share" else math.log(measured / max(predicted, 1e-9))


def _judge(windows: Iterable[_Off], known: Mapping[str, _Known], limit: float) -> tuple[Sequence[_Off], float]:
    """Windows behind the day, oldest first, and the level that their jobs share; 0 where they share none."""
    windows = sorted(windows)
    if len(windows) < ROWS_MIN:
        return windows, 0.0
    since = windows[_first_behind(np.array([window.off for window in windows])) :]
    shift = _level(since[: len(since) // 2], known)
    jobs = [abs(off - shift) for off in _by_job(since).values()]
    is_common = len(jobs) >= JOBS_MIN and sum(off > limit for off in jobs) <= CONTRADICTING_RATIO_MAX * len(jobs)
    return since, shift if is_common else 0.0


def _first_behind(off: FloatArray) -> int:
    """Place of the first window behind the day that explains the windows best."""
    last = len(off) - ROWS_MIN
    places = sorted({round(float(place)) for place in np.linspace(0, last, min(last + 1, _DAYS_TRIED))})
    before = np.concatenate([[0.0], np.cumsum(np.minimum(np.abs(off), _FAR))])
    unexplained = [
        float(before[place] + np.minimum(np.abs(off[place:] - np.median(off[place:])), _FAR).sum()) for place in places
    ]
    return places[int(np.argmin(unexplained))]


def _level(windows: Iterable[_Off], known: Mapping[str, _Known]) -> float:
    """Median over families of the medians of their jobs."""
    families = defaultdict[str, list[float]](list)
    for job_key, off in _by_job(windows).items():
        families[known[job_key].family].append(off)
    return median(median(values) for values in families.values())


def _by_job(windows: Iterable[_Off]) -> dict[str, float]:
    jobs = defaultdict[str, list[float]](list)
    for window in windows:
        jobs[window.job_key].append(window.off)
    return {job_key: median(values) for job_key, values in jobs.items()}


def _witnesses(windows: Iterable[_Off], known: Mapping[str, _Known], target: Target) -> HeldOutRows:
    jobs = _by_job(windows)
    served = [known[job_key].predicted for job_key in jobs]
    measured = [_measured_at(target, off, each) for off, each in zip(jobs.values(), served, strict=True)]
    return HeldOutRows(
        row_ids=tuple(jobs),
        measured=tuple(measured),
        predicted=tuple(served),
        groups=tuple((known[job_key].family,) for job_key in jobs),
    )


def _measured_at(target: Target, off: float, predicted: float) -> float:
    """Reverses `_distance`."""
    return predicted + off if target.scale == "share" else max(predicted, 1e-9) * math.exp(off)

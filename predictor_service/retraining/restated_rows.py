"""Rows, windows and outcomes that were measured before a device changed, as they would be measured today.

What a job takes grew or shrank with its device; how jobs differ did not. So hundreds of old rows go on teaching the
latter, and the few new ones the former. Slowdowns are ratios of times of the same days and stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cotenant.profile_schema import SoloRow
from predictor_service.outcome_journal import PredictionEntry, RecordedOutcome
from predictor_service.profile_store.measurement_window import MeasurementWindow, StoredMeasurementWindow
from predictor_service.registry.device_change import DeviceChange, restate
from predictor_service.retraining.datasets import Dataset
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, STEP, UTILIZATION

_OF_ROWS: Final[Mapping[str, str]] = {
    "step_ms_mean": STEP.name,
    "step_ms_p50": STEP.name,
    "step_ms_p95": STEP.name,
    "utilization_ratio": UTILIZATION.name,
    "sm_activity_ratio": SM_ACTIVITY.name,
    "memory_peak_bytes": MEMORY.name,
    "memory_reserved_bytes": MEMORY.name,
    "memory_context_bytes": MEMORY.name,
}
_OF_WINDOWS: Final[Mapping[str, str]] = {
    "window_ms": STEP.name,
    "utilization_ratio": UTILIZATION.name,
    "sm_activity_ratio": SM_ACTIVITY.name,
    "memory_peak_bytes": MEMORY.name,
}
_OF_OUTCOMES: Final[Mapping[str, str]] = {
    "step_ms_mean": STEP.name,
    "utilization_ratio": UTILIZATION.name,
    "memory_peak_bytes": MEMORY.name,
}


def restate_dataset(dataset: Dataset, changes: Sequence[DeviceChange]) -> Dataset:
    """Restates the rows of jobs alone of a data set that was there before."""
    since = [change for change in changes if dataset.name in change.datasets]
    if not since:
        return dataset
    solo = tuple(dataclasses.replace(row, **_restate_fields(row, _OF_ROWS, since)) for row in dataset.solo)
    return dataclasses.replace(dataset, solo=solo)


def restate_window(item: StoredMeasurementWindow, changes: Sequence[DeviceChange]) -> StoredMeasurementWindow:
    """Restates what was measured in a window by the changes after its report."""
    since = _after(changes, item.at_ms)
    if item.window is None or not since:
        return item
    window = dataclasses.replace(item.window, **_restate_fields(item.window, _OF_WINDOWS, since))
    return dataclasses.replace(item, window=window)


def restate_outcomes(
    recorded: Iterable[RecordedOutcome], changes: Sequence[DeviceChange]
) -> Iterator[tuple[PredictionEntry, Mapping[str, object]]]:
    """Restates outcomes of jobs that ran alone by the changes after their report.

    Args:
        recorded: Oldest first.
        changes: All changes of the served version.

    Yields:
        Each outcome after its prediction, in the same order.
    """
    for at_ms, entry, outcome in recorded:
        since = _after(changes, at_ms) if entry.kind == "job" else ()
        yield entry, {**outcome, **_restate(outcome, _OF_OUTCOMES, entry.device, since)} if since else outcome


def _after(changes: Sequence[DeviceChange], at_ms: int) -> Sequence[DeviceChange]:
    return [change for change in changes if change.at_ms > at_ms]


def _restate_fields(
    item: SoloRow | MeasurementWindow, targets: Mapping[str, str], changes: Sequence[DeviceChange]
) -> dict[str, Any]:
    return _restate({name: getattr(item, name) for name in targets}, targets, item.device, changes)


def _restate(
    figures: Mapping[str, Any], targets: Mapping[str, str], device: str, changes: Sequence[DeviceChange]
) -> dict[str, Any]:
    """Those of the figures that follow a target and were measured; whole numbers stay whole."""
    restated = {}
    for name, target in targets.items():
        value = figures.get(name)
        if value is not None:
            today = restate(value, changes, device=device, target=target)
            restated[name] = round(today) if isinstance(value, int) else today
    return restated

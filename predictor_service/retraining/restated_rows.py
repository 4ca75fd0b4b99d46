"""Rows and windows that were measured before a device changed, as they would be measured today.

What a job takes grew or shrank with its device; how jobs differ did not. So hundreds of old rows go on teaching the
latter, and the few new ones the former. Slowdowns are ratios of times of the same days and stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cotenant.profile_schema import SoloRow
from predictor_service.profile_store.measurement_window import MeasurementWindow
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


def restate_dataset(dataset: Dataset, changes: Sequence[DeviceChange]) -> Dataset:
    """Restates the rows of jobs alone of a data set that was there before."""
    since = [change for change in changes if dataset.name in change.datasets]
    if not since:
        return dataset
    solo = tuple(dataclasses.replace(row, **_restate(row, _OF_ROWS, since)) for row in dataset.solo)
    return dataclasses.replace(dataset, solo=solo)


def restate_window(window: MeasurementWindow, at_ms: int, changes: Sequence[DeviceChange]) -> MeasurementWindow:
    """Restates what was measured in a window.

    Args:
        window: As it was reported.
        at_ms: When.
        changes: Those after it count.
    """
    since = [change for change in changes if change.at_ms > at_ms]
    return dataclasses.replace(window, **_restate(window, _OF_WINDOWS, since)) if since else window


def _restate(
    item: SoloRow | MeasurementWindow, targets: Mapping[str, str], changes: Sequence[DeviceChange]
) -> dict[str, Any]:
    restated = {}
    for name, target in targets.items():
        value = getattr(item, name)
        if value is not None:
            today = restate(value, changes, device=item.device, target=target)
            restated[name] = round(today) if isinstance(value, int) else today
    return restated

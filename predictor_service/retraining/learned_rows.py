"""Which measured rows of all datasets a version learns from, judges new rows by and counts, one target at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.fitting.known_rows import name_rows
from predictor_service.fitting.learnable_rows import LearnableRows, select_learnable
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import pool_learning_tasks
from predictor_service.retraining.collected_rows import NAME as COLLECTED
from predictor_service.retraining.datasets import Dataset
from predictor_service.selection.targets import SLOWDOWN, TARGETS_BY_NAME, Target


def select_rows(
    datasets: Sequence[Dataset], target: Target, device: DeviceType, *, is_public: bool = False, share_mode: str = ""
) -> LearnableRows:
    """Selects the rows of a device type; whatever is not returned is counted.

    Slowdowns in turns say little of those under MPS, nor the reverse: pairs that shared the device one way are taken.

    Args:
        datasets: At least one.
        target: What was measured.
        device: Of the rows.
        is_public: See `select_learnable`; of what is published all pairs are one set.
        share_mode: The way of sharing that is wanted; empty = that of the most pairs.
    """
    read = pool_learning_tasks(datasets, target, device.name)
    rows = select_learnable(read.learning_task, is_public=is_public)
    if target is SLOWDOWN and not is_public:
        rows = _of_one_way(rows, share_mode)
    return replace(rows, left_out=Counter(rows.left_out) + Counter(read.excluded))


def way_of(learning_task: LearningTask) -> str:
    """Returns how the pairs of all rows shared the device; empty = in several ways, or there is none."""
    ways = {job.labels["share_mode"] for job in learning_task.jobs}
    return ways.pop() if len(ways) == 1 else ""


def _of_one_way(rows: LearnableRows, share_mode: str) -> LearnableRows:
    ways = [job.labels["share_mode"] for job in rows.learned.jobs]
    wanted = share_mode or max(sorted(set(ways), reverse=True), key=ways.count, default="")
    others = Counter(f"their jobs shared the device by {way}, not by {wanted}" for way in ways if way != wanted)
    kept = rows.learned.subset([place for place, way in enumerate(ways) if way == wanted])
    return replace(rows, learned=kept, left_out=Counter(rows.left_out) + others)


def name_collected(datasets: Sequence[Dataset], device_name: str, target_name: str) -> dict[str, str]:
    """Names of the rows, see `name_rows`, that running jobs taught of a target, by job key.

    Args:
        datasets: The one among them that is called `COLLECTED` counts.
        device_name: Device type.
        target_name: Name with its unit.
    """
    device, collected = find_device_type(device_name), [each for each in datasets if each.name == COLLECTED]
    if device is None or not collected:
        return {}
    rows = select_rows(collected, TARGETS_BY_NAME[target_name], device).learned
    return {job.job_key: name for job, name in zip(rows.jobs, name_rows(rows), strict=True)}

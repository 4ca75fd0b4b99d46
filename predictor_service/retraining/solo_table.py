"""Measured rows of jobs alone, joined with their features: what the regressors of one device type learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import SoloRow
from predictor_service.errors import CallerError
from predictor_service.features.devices import DeviceType
from predictor_service.features.job_features import FEATURES, JobFeatures, build_features
from predictor_service.features.job_settings import check_settings
from predictor_service.regressors.interface import FloatArray
from predictor_service.retraining.datasets import Dataset
from predictor_service.selection.targets import MEMORY, SM_ACTIVITY, STEP, UTILIZATION, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloExample:
    """One usable row with what the regressors see of it."""

    row: SoloRow
    features: JobFeatures

    def measured(self, target: Target) -> float | None:
        """The measured value of a target; None when the row lacks it."""
        return _MEASURED[target.name](self.row)

    def analytical_estimate(self, target: Target) -> float:
        """What physics says of a target."""
        if target is STEP:
            return self.features.roofline_ms
        if target is MEMORY:
            return self.features.analytical_memory_bytes
        return self.features.utilization_ceiling_ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetTable:
    """Arrays of one target; the first axis is the row.

    Attributes:
        columns: Shape (rows, columns), 32-bit as served.
        measured: In the target's unit.
        analytical_estimate: In the target's unit.
        groups: Family of each row.
        job_keys: Job of each row.
        features: Whole vectors, shape (rows, len(FEATURES)).
    """

    columns: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    measured: FloatArray
    analytical_estimate: FloatArray
    groups: tuple[frozenset[str], ...]
    job_keys: tuple[str, ...]
    features: FloatArray


def collect_examples(datasets: Iterable[Dataset], device: DeviceType) -> tuple[list[SoloExample], Counter[str]]:
    """Joins the rows of one device type with their graphs.

    Returns:
        Usable examples, and how many rows were left out by reason.
    """
    examples, left_out = [], Counter[str]()
    for dataset in datasets:
        for row in dataset.solo:
            if row.device != device.name:
                continue
            example = _example(dataset, row, device)
            if isinstance(example, str):
                left_out[example] += 1
            else:
                examples.append(example)
    return examples, left_out


def build_table(examples: Sequence[SoloExample], target: Target, indices: Sequence[int]) -> TargetTable:
    """Builds the arrays of one target from the examples that have it.

    Args:
        examples: Of one device type.
        target: What to learn.
        indices: Places of the target's columns in the feature vector.
    """
    usable = [(example, value) for example in examples if (value := example.measured(target)) is not None]
    vectors = np.array([example.features.values for example, _ in usable]).reshape(len(usable), len(FEATURES))
    return TargetTable(
        columns=vectors[:, list(indices)].astype(np.float32),
        measured=np.array([value for _, value in usable], dtype=np.float64),
        analytical_estimate=np.array([example.analytical_estimate(target) for example, _ in usable], dtype=np.float64),
        groups=tuple(frozenset({example.row.family}) for example, _ in usable),
        job_keys=tuple(example.row.job_key for example, _ in usable),
        features=vectors,
    )


def _example(dataset: Dataset, row: SoloRow, device: DeviceType) -> SoloExample | str:
    """An example, or the reason why the row is none."""
    if row.status != "ok":
        return f"status {row.status}"
    if row.gpus != 1:
        return "more than one device"
    if row.sub_batch != row.batch:  # its step has several passes, the features of its part are those of one
        return "its batch was divided"
    graph = dataset.graphs.get(row.graph_sha256 or "")
    if graph is None:
        return "without its graph"
    try:
        settings = check_settings(
            JobSettings(
                global_batch_size=row.batch,
                mode=row.mode,
                precision=row.precision,
                optimizer="sgd" if row.mode == "infer" else row.optimizer,
                input_wait_ratio=row.input_wait_ratio,
                host_memory_bytes=row.host_memory_bytes,
                disk_read_bytes_per_s=row.disk_read_bytes_per_s,
                network_bytes_per_s=row.network_bytes_per_s,
            )
        )
        return SoloExample(row=row, features=build_features(graph.at_batch(row.sub_batch), settings, device))
    except CallerError as error:
        return error.message


def _memory_bytes(row: SoloRow) -> float | None:
    """What the device cannot give to others: the allocator's peak and the context."""
    allocator_bytes = row.memory_reserved_bytes or row.memory_peak_bytes
    return None if not allocator_bytes else float(allocator_bytes + (row.memory_context_bytes or 0))


_MEASURED: Final[Mapping[str, Callable[[SoloRow], float | None]]] = {
    UTILIZATION.name: lambda row: row.utilization_ratio,
    SM_ACTIVITY.name: lambda row: row.sm_activity_ratio,
    MEMORY.name: _memory_bytes,
    STEP.name: lambda row: row.step_ms_mean,
}

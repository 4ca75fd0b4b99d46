"""What is known of two co-located jobs, as one vector per ordered pair. The same function trains and serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

PAIR_COLUMNS: Final = (
    "victim_utilization_ratio",
    "other_utilization_ratio",
    "utilization_sum_ratio",
    "utilization_excess_ratio",
    "other_to_victim_utilization_ratio",
    "log_victim_step_ms",
    "log_other_step_ms",
    "log_other_to_victim_step_ratio",
    "victim_memory_ratio",
    "other_memory_ratio",
    "victim_input_wait_ratio",
    "other_input_wait_ratio",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloFigures:
    """What jobs do alone on a device; all arrays have shape (jobs,).

    Attributes:
        utilization_ratio: 0 to 1.
        step_ms: Above 0.
        memory_bytes: Peak.
        input_wait_ratio: 0 to below 1.
    """

    utilization_ratio: FloatArray
    step_ms: FloatArray
    memory_bytes: FloatArray
    input_wait_ratio: FloatArray


def fair_share_slowdowns(jobs: SoloFigures, victim: IndexArray, other: IndexArray) -> FloatArray:
    """Slowdown if two jobs took turns on the device whenever both want it.

    Each part of the victim's step that uses the device takes twice as long while the other one wants the device too,
    which it does for its own share of the time.

    Args:
        jobs: Figures of all jobs.
        victim: Index of the job whose slowdown is wanted, shape (pairs,).
        other: Index of the co-located job, shape (pairs,).

    Returns:
        Ratios from 0 to 1, shape (pairs,).
    """
    return np.asarray(jobs.utilization_ratio[victim] * jobs.utilization_ratio[other])


def excess_slowdowns(jobs: SoloFigures, victim: IndexArray, other: IndexArray) -> FloatArray:
    """Slowdown if two jobs shared the device without ever waiting while it is free: what exceeds it is shared.

    It is at most that of fair turns, which two jobs that know nothing of each other take.

    Args:
        jobs: Figures of all jobs.
        victim: Index of the job whose slowdown is wanted, shape (pairs,).
        other: Index of the co-located job, shape (pairs,).

    Returns:
        Ratios from 0 to 1, shape (pairs,).

    Source: Yeung et al., "Horus" (2021): jobs that want less than one device together do not interfere.
    """
    return np.asarray(np.maximum(jobs.utilization_ratio[victim] + jobs.utilization_ratio[other] - 1.0, 0.0))


def build_pair_features(
    jobs: SoloFigures, victim: IndexArray, other: IndexArray, device_memory_bytes: int
) -> npt.NDArray[np.float32]:
    """Builds one vector per ordered pair.

    Args:
        jobs: Figures of all jobs.
        victim: Index of the job whose slowdown is wanted, shape (pairs,).
        other: Index of the co-located job, shape (pairs,).
        device_memory_bytes: Memory of the device that they share.

    Returns:
        Shape (pairs, len(PAIR_COLUMNS)), in the order of `PAIR_COLUMNS`.
    """
    utilization, log_step = jobs.utilization_ratio, np.log(jobs.step_ms)
    memory_ratio = jobs.memory_bytes / device_memory_bytes
    total = utilization[victim] + utilization[other]
    columns = (
        utilization[victim],
        utilization[other],
        total,
        np.maximum(total - 1.0, 0.0),
        utilization[other] / np.maximum(utilization[victim], 0.01),
        log_step[victim],
        log_step[other],
        log_step[other] - log_step[victim],
        memory_ratio[victim],
        memory_ratio[other],
        jobs.input_wait_ratio[victim],
        jobs.input_wait_ratio[other],
    )
    return np.stack(columns, axis=1).astype(np.float32)

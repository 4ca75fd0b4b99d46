"""Measured pairs, joined with what both jobs do alone: what the slowdown model of one device type learns from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cotenant.profile_schema import PairRow
from predictor_service.features.devices import DeviceType
from predictor_service.features.pair_features import (
    IndexArray,
    SoloFigures,
    build_pair_features,
    fair_share_slowdowns,
)
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.solo_table import SoloExample
from predictor_service.selection.targets import MEMORY, STEP, UTILIZATION, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloKnowledge:
    """What one job does alone."""

    family: str
    utilization_ratio: float
    step_ms: float
    memory_bytes: float
    input_wait_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTable:
    """Ordered pairs of one device type.

    Attributes:
        job_keys: Jobs that appear, in the order of the indices.
        victim: Index of each row's victim, shape (rows,).
        other: Index of each row's other job, shape (rows,).
        measured: Slowdown ratios, shape (rows,).
        groups: Families of both jobs of each row.
    """

    job_keys: tuple[str, ...]
    victim: IndexArray
    other: IndexArray
    measured: FloatArray
    groups: tuple[frozenset[str], ...]


def know_jobs(
    examples: Sequence[SoloExample], replacements: Mapping[Target, Mapping[str, float]] | None = None
) -> dict[str, SoloKnowledge]:
    """Averages the measurements of every job.

    Args:
        examples: Of one device type.
        replacements: By target and job key, values that stand in for measured ones (predictions).

    Returns:
        By job key; jobs that lack a figure are left out.
    """
    by_job: dict[str, list[SoloExample]] = {}
    for example in examples:
        by_job.setdefault(example.row.job_key, []).append(example)
    known = {}
    for key, members in by_job.items():
        figures = [_figure(members, target, key, replacements or {}) for target in (UTILIZATION, STEP, MEMORY)]
        if None not in figures:
            utilization_ratio, step_ms, memory_bytes = (value or 0.0 for value in figures)
            known[key] = SoloKnowledge(
                family=members[0].row.family,
                utilization_ratio=utilization_ratio,
                step_ms=step_ms,
                memory_bytes=memory_bytes,
                input_wait_ratio=members[0].row.input_wait_ratio,
            )
    return known


def _figure(
    members: Sequence[SoloExample], target: Target, key: str, replacements: Mapping[Target, Mapping[str, float]]
) -> float | None:
    replacement = replacements.get(target, {}).get(key)
    if replacement is not None:
        return replacement
    values = [value for member in members if (value := member.measured(target)) is not None]
    return float(np.mean(values)) if values else None


def build_pair_table(
    datasets: Iterable[Dataset], device: DeviceType, known: Mapping[str, SoloKnowledge]
) -> tuple[PairTable, int]:
    """Collects the ordered pairs of one device type.

    Returns:
        The table, and how many measured pairs were left out because a job's solo figures are not known.
    """
    rows = [row for dataset in datasets for row in dataset.pairs if _is_pair(row, device)]
    usable = [row for row in rows if row.victim_job_key in known and row.other_job_keys[0] in known]
    keys = tuple(sorted({key for row in usable for key in (row.victim_job_key, row.other_job_keys[0])}))
    index = {key: place for place, key in enumerate(keys)}
    table = PairTable(
        job_keys=keys,
        victim=np.array([index[row.victim_job_key] for row in usable], dtype=np.intp),
        other=np.array([index[row.other_job_keys[0]] for row in usable], dtype=np.intp),
        measured=np.array([row.slowdown_ratio for row in usable], dtype=np.float64),
        groups=tuple(
            frozenset({known[row.victim_job_key].family, known[row.other_job_keys[0]].family}) for row in usable
        ),
    )
    return table, len(rows) - len(usable)


def pair_columns(table: PairTable, known: Mapping[str, SoloKnowledge], device: DeviceType) -> FeatureArray:
    """Builds the columns of a table from one way of knowing the jobs."""
    return build_pair_features(_figures(table, known), table.victim, table.other, device.memory_bytes)


def pair_analytical_estimate(table: PairTable, known: Mapping[str, SoloKnowledge]) -> FloatArray:
    """Slowdowns of a table's rows if the jobs took turns fairly."""
    return fair_share_slowdowns(_figures(table, known), table.victim, table.other)


def _figures(table: PairTable, known: Mapping[str, SoloKnowledge]) -> SoloFigures:
    jobs = [known[key] for key in table.job_keys]
    return SoloFigures(
        utilization_ratio=np.array([job.utilization_ratio for job in jobs]),
        step_ms=np.array([job.step_ms for job in jobs]),
        memory_bytes=np.array([job.memory_bytes for job in jobs]),
        input_wait_ratio=np.array([job.input_wait_ratio for job in jobs]),
    )


def _is_pair(row: PairRow, device: DeviceType) -> bool:
    return row.status == "ok" and row.device == device.name and len(row.other_job_keys) == 1

"""Estimators of jobs asked about before, by everything but the batch: another batch is then read, not computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DeviceType
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.memory_of_others import memory_model_of_others
from predictor_service.inference.version_cache import VersionCache
from predictor_service.registry.served_version import ServedVersion
from predictor_service.selection.targets import MEMORY

ESTIMATORS_MAX: Final = 1_024
"""Each holds at most 21 feature vectors in one table and two curves, about 20 KiB."""
NODES_MAX: Final = 200_000

_Key = tuple[MeasuredGraph, *tuple[object, ...]]


class EstimatorCache:
    """Makes each estimator once; safe for many threads.

    Args:
        estimators_max: How many are kept; 0 = none, every question is computed again.
    """

    def __init__(self, estimators_max: int = ESTIMATORS_MAX) -> None:
        self._kept = VersionCache[_Key, JobEstimator](estimators_max, NODES_MAX)
        self._work = VersionCache[_Key, JobWork](estimators_max, NODES_MAX)

    def find(
        self,
        graph: MeasuredGraph,
        settings: JobSettings,
        device: DeviceType,
        version: ServedVersion | None,
        confidence: float,
    ) -> JobEstimator:
        """Returns the estimator of a job; one that is kept answers exactly as a new one would."""
        if settings.precision == "tf32" and not device.has_units_for("tf32"):
            settings = replace(settings, precision="fp32")
        shared = _key(graph, settings, device, confidence)
        key = (*shared, settings.input_wait_ratio)
        kept = self._kept.find(key, version)
        if kept is not None:
            return kept
        work = self._work.find(shared, version)
        if work is None:
            models = version.devices.get(device.name, {}) if version else {}
            measured = tuple(version.devices) if version else ()
            others = memory_model_of_others(version)
            on_measured = others and JobWork(
                graph, _as_kept_in_memory(settings), others.device, {MEMORY.name: others.model}
            )
            work = JobWork(graph, settings, device, models, measured, on_measured=on_measured)
            self._work.keep(shared, work, graph.description.nodes, version)
        made = JobEstimator(work, settings.input_wait_ratio, confidence)
        self._kept.keep(key, made, graph.description.nodes, version)
        return made


def _as_kept_in_memory(settings: JobSettings) -> JobSettings:
    """TF32 shortens what is multiplied, not what is kept."""
    return replace(settings, precision="fp32") if settings.precision == "tf32" else settings


def _key(graph: MeasuredGraph, settings: JobSettings, device: DeviceType, confidence: float) -> _Key:
    """All that an estimator depends on but the input wait; a graph is itself, whatever dimensions it was bound to."""
    return (
        graph,
        settings.mode,
        settings.precision,
        settings.optimizer,
        settings.host_memory_bytes,
        settings.disk_read_bytes_per_s,
        settings.network_bytes_per_s,
        settings.channels_last,
        settings.activation_checkpointing,
        settings.ddp_bucket_bytes,
        settings.sharded_ranks,
        settings.gathered_ratio,
        device.name,
        device.memory_bytes,
        # Of a generic type: what its driver says of it.
        device.peak("fp32"),
        device.memory_bytes_per_s,
        confidence,
    )

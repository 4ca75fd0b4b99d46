"""Estimators of jobs asked about before, by everything but the batch: another batch is then read, not computed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from predictor_service.features.devices import DeviceType
from predictor_service.features.job_settings import JobSettings
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.registry.served_version import ServedVersion

ESTIMATORS_MAX: Final = 1_024
"""Each holds at most 21 feature vectors and two curves, about 30 KiB."""
NODES_MAX: Final = 200_000
"""Operators of the graphs behind them, so that what the graph library let go does not live on here."""

_Key = tuple[MeasuredGraph, *tuple[object, ...]]


class KeptEstimators:
    """Makes each estimator once; the least recently used leave. Safe for many threads.

    Args:
        estimators_max: How many are kept; 0 = none, every question is computed anew.
    """

    def __init__(self, estimators_max: int = ESTIMATORS_MAX) -> None:
        self._estimators_max = estimators_max
        self._lock = threading.Lock()
        self._version: ServedVersion | None = None
        self._kept: OrderedDict[_Key, JobEstimator] = OrderedDict()
        self._nodes = 0

    def find(
        self,
        graph: MeasuredGraph,
        settings: JobSettings,
        device: DeviceType,
        version: ServedVersion | None,
        confidence: float,
    ) -> JobEstimator:
        """Returns the estimator of a job; one that is kept answers exactly as a new one would."""
        key = _key(graph, settings, device, confidence)
        with self._lock:
            if version is not self._version:  # another model: nothing that the old one said is ever read again
                self._kept.clear()
                self._nodes = 0
                self._version = version
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        models = version.devices.get(device.name, {}) if version else {}
        made = JobEstimator(graph, settings, device, models, confidence)
        with self._lock:
            if version is self._version and key not in self._kept:
                self._kept[key] = made
                self._nodes += graph.description.nodes
                self._make_room()
        return made

    def _make_room(self) -> None:
        while self._kept and (len(self._kept) > self._estimators_max or self._nodes > NODES_MAX):
            (graph, *_), _ = self._kept.popitem(last=False)
            self._nodes -= graph.description.nodes


def _key(graph: MeasuredGraph, settings: JobSettings, device: DeviceType, confidence: float) -> _Key:
    """Everything that an estimator depends on; a graph is itself, whatever dimensions were bound to measure it."""
    return (
        graph,
        settings.mode,
        settings.precision,
        settings.optimizer,
        settings.input_wait_ratio,
        settings.host_memory_bytes,
        settings.disk_read_bytes_per_s,
        settings.network_bytes_per_s,
        device.name,
        device.memory_bytes,
        confidence,
    )

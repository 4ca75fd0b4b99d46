"""The profile store as Prometheus sees it: counted when asked, so that nothing has to be kept in step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from predictor_service.profile_store.store import ProfileStore


class ProfileMetrics(Collector):
    """How much is kept, and what was refused; nothing while the store cannot be read.

    Args:
        store: Of the service.
    """

    def __init__(self, store: ProfileStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yields what is there now."""
        try:
            status = self._store.status()
        except (OSError, sqlite3.Error):
            return
        prefix = "cotenant_predictor_profiles"
        yield GaugeMetricFamily(prefix, "Measurement windows of running jobs that are kept.", value=status.windows)
        yield GaugeMetricFamily(f"{prefix}_bytes", "Size of the profile store.", value=status.file_bytes)
        refused = CounterMetricFamily(f"{prefix}_refused", "Measurement windows that were not kept.", labels=["reason"])
        for reason, windows in status.refused.items():
            refused.add_metric([reason], windows)
        yield refused

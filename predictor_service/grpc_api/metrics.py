"""Counters for Prometheus, and the page that shows them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from cotenant.metrics_page import MetricsPage

BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000)


class RequestCounts(Collector):
    """Requests begun and answered, under one lock; safe for many threads.

    The library's own counters take a lock for each of five figures, which costs a call more than its deadline, its
    repetition and its place in the queue together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._answered: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._places: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS_MS) + 1))
        self._total_ms: defaultdict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Counts a request that is under way from now on."""
        with self._lock:
            self._begun += 1

    def end(self, method: str, code: str, duration_ms: float) -> None:
        """Counts its answer."""
        place = bisect_left(BOUNDS_MS, duration_ms)
        with self._lock:
            self._answered[method, code] += 1
            self._places[method][place] += 1
            self._total_ms[method] += duration_ms

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Yields what was counted, as Prometheus reads it."""
        with self._lock:
            begun, answered, total_ms = self._begun, dict(self._answered), dict(self._total_ms)
            places = {method: list(counts) for method, counts in self._places.items()}
        requests = CounterMetricFamily("cotenant_predictor_requests", "Requests answered.", labels=["method", "code"])
        for labels, count in answered.items():
            requests.add_metric(labels, count)
        yield requests
        seconds = HistogramMetricFamily("cotenant_predictor_request_seconds", "Time to an answer.", labels=["method"])
        for method, counts in places.items():
            seconds.add_metric([method], _cumulative(counts), total_ms[method] / 1000)
        yield seconds
        under_way = begun - sum(answered.values())
        yield GaugeMetricFamily("cotenant_predictor_requests_under_way", "Requests under way.", value=under_way)


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each holds what is below its bound."""
    bounds = [*(str(bound_ms / 1000) for bound_ms in BOUNDS_MS), "+Inf"]
    return [(bound, float(sum(counts[: place + 1]))) for place, bound in enumerate(bounds)]


class ServiceMetrics:
    """What is counted; one registry per server, so that tests may run several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestCounts()
        self.registry.register(self.requests)
        self.model = Gauge(
            "cotenant_predictor_model_info", "1 for the version that answers.", ["version"], registry=self.registry
        )


def serve_metrics(address: str, registry: CollectorRegistry, failure: Callable[[], str]) -> MetricsPage:
    """Serves these metrics.

    Args:
        address: HOST:PORT.
        registry: Of what is shown.
        failure: Returns why the service is not ready; empty = it is.

    Raises:
        InputError: The address is none, or another program has it.
    """
    return MetricsPage(address, show=lambda: (CONTENT_TYPE_LATEST, generate_latest(registry)), failure=failure)

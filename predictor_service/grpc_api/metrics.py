"""Counters for Prometheus, and the page that serves them with /healthz on loopback."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from predictor_service.errors import InvalidRequestError

StartResponse = Callable[..., Any]
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


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    """Answers clients that send while another one is silent."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Logs no line per scrape, and closes connections of silent clients."""

    timeout = 10.0

    def handle(self) -> None:
        """Answers one request."""
        with suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


class MetricsServer:
    """Serves /metrics and /healthz in a thread of its own.

    Args:
        metrics: What to show.
        host: Address to bind; loopback unless the operator decided otherwise.
        port: 0 = any free one.
        is_healthy: Asked for every /healthz.

    Raises:
        InvalidRequestError: The address cannot be bound.
    """

    def __init__(self, metrics: ServiceMetrics, host: str, port: int, is_healthy: Callable[[], bool]) -> None:
        page: Callable[[dict[str, Any], StartResponse], Iterable[bytes]] = make_wsgi_app(metrics.registry)

        def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != "/healthz":
                return page(environ, start_response)
            healthy = is_healthy()
            start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"ok\n" if healthy else b"not serving\n"]

        try:
            self._server = make_server(host, port, answer, _ThreadingServer, _QuietHandler)
        except OSError as error:
            raise InvalidRequestError(
                f"{host}:{port} cannot be bound ({error.strerror})", remedy="choose another metrics address"
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

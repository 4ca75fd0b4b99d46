"""Counters for Prometheus, and the page that serves them with /healthz on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

StartResponse = Callable[..., Any]
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class ServiceMetrics:
    """What is counted; one registry per server, so that tests may run several."""

    def __init__(self) -> None:
        self._children: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "cotenant_predictor_requests", "Requests answered.", ["method", "code"], registry=self.registry
        )
        self.seconds = Histogram(
            "cotenant_predictor_request_seconds",
            "Time to an answer.",
            ["method"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.under_way = Gauge("cotenant_predictor_requests_under_way", "Requests under way.", registry=self.registry)
        self.model = Gauge(
            "cotenant_predictor_model_info", "1 for the version that answers.", ["version"], registry=self.registry
        )

    def count(self, method: str, code: str, duration_ms: float) -> None:
        """Counts an answered request; the two series of a method and code are looked up once."""
        children = self._children.get((method, code))
        if children is None:
            children = self.requests.labels(method, code), self.seconds.labels(method)
            self._children[method, code] = children
        children[0].inc()
        children[1].observe(duration_ms / 1000)


class _QuietHandler(WSGIRequestHandler):
    """Logs no line per scrape."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class MetricsServer:
    """Serves /metrics and /healthz in a thread of its own.

    Args:
        metrics: What to show.
        host: Address to bind; loopback unless the operator decided otherwise.
        port: 0 = any free one.
        is_healthy: Asked for every /healthz.
    """

    def __init__(self, metrics: ServiceMetrics, host: str, port: int, is_healthy: Callable[[], bool]) -> None:
        page: Callable[[dict[str, Any], StartResponse], Iterable[bytes]] = make_wsgi_app(metrics.registry)

        def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            if environ.get("PATH_INFO") != "/healthz":
                return page(environ, start_response)
            healthy = is_healthy()
            start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"ok\n" if healthy else b"not serving\n"]

        self._server = make_server(host, port, answer, handler_class=_QuietHandler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

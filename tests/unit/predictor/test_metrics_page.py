"""The page for Prometheus answers everybody, whoever else is connected."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from predictor_service.errors import InvalidRequestError
from predictor_service.grpc_api.metrics import MetricsServer, ServiceMetrics


@pytest.fixture
def page() -> Iterator[MetricsServer]:
    page = MetricsServer(ServiceMetrics(), "127.0.0.1", 0, is_healthy=lambda: True)
    yield page
    page.close()


def test_who_connects_and_says_nothing_keeps_nobody_waiting(page: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as silent:
        silent.sendall(b"GET /met")
        with urlopen(f"http://127.0.0.1:{page.port}/healthz", timeout=20) as answer:
            assert answer.read() == b"ok\n"
        with urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=20) as answer:
            assert b"cotenant_predictor_requests" in answer.read()


def test_an_address_that_is_taken_is_named(page: MetricsServer) -> None:
    with pytest.raises(InvalidRequestError, match=f"127.0.0.1:{page.port} cannot be bound"):
        MetricsServer(ServiceMetrics(), "127.0.0.1", page.port, is_healthy=lambda: True)

"""The page for Prometheus answers every client, whatever else is connected."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from cotenant.client_errors import InputError
from cotenant.tls_settings import check_metrics_exposure
from predictor_service.errors import InvalidRequestError
from predictor_service.grpc_api.metrics import MetricsServer, ServiceMetrics


@pytest.fixture
def page() -> Iterator[MetricsServer]:
    page = MetricsServer(ServiceMetrics(), "127.0.0.1", 0, is_healthy=lambda: True)
    yield page
    page.close()


def test_a_silent_connection_keeps_no_client_waiting(page: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as silent:
        silent.sendall(b"GET /met")
        with urlopen(f"http://127.0.0.1:{page.port}/healthz", timeout=90) as answer:
            assert answer.read() == b"ok\n"
        with urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=90) as answer:
            assert b"cotenant_predictor_requests" in answer.read()


def test_an_address_that_is_taken_is_named(page: MetricsServer) -> None:
    with pytest.raises(InvalidRequestError, match=f"127.0.0.1:{page.port} cannot be bound"):
        MetricsServer(ServiceMetrics(), "127.0.0.1", page.port, is_healthy=lambda: True)


def test_a_foreign_address_of_metrics_needs_the_same_promise_as_the_scheduler_s(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    command = [sys.executable, "-m", "predictor_service", "serve", "--address", "127.0.0.1:0"]
    command += ["--state-dir", str(state_dir), "--metrics-address", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "metrics are plain HTTP" in done.stderr
    assert "--insecure" in done.stderr
    assert "Traceback" not in done.stderr
    assert not state_dir.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "host.example", "169.254.1.1"])
def test_the_promise_is_asked_for_wherever_others_could_listen(host: str) -> None:
    with pytest.raises(InputError, match="plain HTTP"):
        check_metrics_exposure(host, insecure=False)
    check_metrics_exposure(host, insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_metrics_on_loopback_need_no_promise(host: str) -> None:
    check_metrics_exposure(host, insecure=False)

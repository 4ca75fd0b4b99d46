"""The page for Prometheus answers every client, whatever else is connected."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from cotenant.addresses import split_address
from cotenant.client_errors import InputError
from cotenant.metrics_page import MetricsPage
from cotenant.tls_settings import check_metrics_exposure
from predictor_service.grpc_api.metrics import ServiceMetrics, serve_metrics
from tests.support.loaded_programs import run_program


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    page = serve_metrics("127.0.0.1:0", ServiceMetrics().registry, str)
    yield page
    page.stop()


def test_a_silent_connection_keeps_no_client_waiting(page: MetricsPage) -> None:
    with socket.create_connection(split_address(page.address)) as silent:
        silent.sendall(b"GET /met")
        with urlopen(f"http://{page.address}/healthz", timeout=90) as answer:
            assert answer.read() == b"ok\n"
        with urlopen(f"http://{page.address}/metrics", timeout=90) as answer:
            assert b"cotenant_predictor_requests" in answer.read()


def test_an_address_that_is_taken_is_named(page: MetricsPage) -> None:
    with pytest.raises(InputError, match=rf"{page.address} cannot be served \(Address already in use\)"):
        serve_metrics(page.address, ServiceMetrics().registry, str)


def test_a_service_that_is_not_ready_says_why_and_lives(page: MetricsPage) -> None:
    assert page.answer("/readyz")[::2] == (200, b"ok\n")
    draining = serve_metrics("127.0.0.1:0", ServiceMetrics().registry, lambda: "draining")
    try:
        assert draining.answer("/readyz")[::2] == (503, b"draining\n")
        assert draining.answer("/healthz")[::2] == draining.answer("/livez")[::2] == (200, b"ok\n")
        assert draining.answer("/")[0] == 404
    finally:
        draining.stop()


@pytest.mark.parametrize(
    ("failure", "words"), [("", "the service does not answer"), ("a policy is late", "a policy is")]
)
def test_a_state_that_nobody_can_look_at_in_time_is_no_answer_of_its_service(failure: str, words: str) -> None:
    def look(call: Callable[[], object]) -> None:
        raise TimeoutError

    page = MetricsPage("127.0.0.1:0", show=lambda: ("text/plain", b""), failure=lambda: failure, look=look)
    try:
        answers = [page.answer(path) for path in ("/metrics", "/healthz", "/readyz")]
        assert [status for status, _, _ in answers] == [503] * 3
        assert all(content.decode().startswith(words) for _, _, content in answers)
    finally:
        page.stop()


def test_a_foreign_address_of_metrics_needs_the_same_promise_as_the_scheduler_s(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    arguments = ["serve", "--address", "127.0.0.1:0", "--state-dir", str(state_dir), "--metrics-address", "0.0.0.0:0"]
    done = run_program("predictor_service", arguments, folder=Path.cwd(), environment=os.environ, timeout_s=240.0)
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

"""The health check distinguishes a program that serves from one that does not."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from deploy.health_check import main


@pytest.fixture
def health_server() -> Iterator[tuple[str, health.HealthServicer]]:
    """A server with nothing but the health service; yields its address and the servicer."""
    servicer = health.HealthServicer()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(grace=None).wait()


class HealthPage(http.server.BaseHTTPRequestHandler):
    """Answers /healthz with 200 and everything else with 503."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def page_address() -> Iterator[str]:
    """A web server with a health page; yields its address."""
    with http.server.HTTPServer(("127.0.0.1", 0), HealthPage) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_serving_program_is_healthy(health_server: tuple[str, health.HealthServicer]) -> None:
    assert main([health_server[0]]) == 0


def test_a_draining_program_is_not_healthy_and_the_reason_is_said(
    health_server: tuple[str, health.HealthServicer], capsys: pytest.CaptureFixture[str]
) -> None:
    address, servicer = health_server
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert main([address]) == 1
    assert capsys.readouterr().err == f"{address} reports NOT_SERVING\n"


def test_no_server_at_the_address_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:1"]) == 1
    assert "127.0.0.1:1: UNAVAILABLE" in capsys.readouterr().err


def test_a_health_page_counts_only_with_status_200(page_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{page_address}/healthz"]) == 0
    assert main([f"{page_address}/elsewhere"]) == 1
    assert "503" in capsys.readouterr().err


def test_a_missing_address_is_answered_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage:" in capsys.readouterr().err

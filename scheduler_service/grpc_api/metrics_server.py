"""/metrics, /healthz and /readyz over plain HTTP, on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cotenant.addresses import split_address
from cotenant.tls_settings import check_metrics_exposure
from scheduler_service.errors import SettingsError

T = TypeVar("T")
# A loop that does not answer for so long is not healthy.
_ANSWER_TIMEOUT_S = 5.0
_SOCKET_TIMEOUT_S = 10.0


class MetricsServer:
    """Answers from threads; whatever looks at the state is called in the loop's own thread.

    Args:
        address: host:port; port 0 takes a free one.
        failure: Returns why the service is not ready; empty = it is.

    Raises:
        InputError: The address is none, or others could reach it.
        SettingsError: Another program has it.
    """

    def __init__(
        self, *, address: str, registry: CollectorRegistry, failure: Callable[[], str], insecure: bool = False
    ) -> None:
        host, port = split_address(address)
        check_metrics_exposure(address, insecure=insecure)
        self._loop = asyncio.get_running_loop()
        self._registry = registry
        self._failure = failure
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as error:
            raise SettingsError(f"{address} cannot be served: {error}; is another program using it?") from error
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a path."""
        text = "text/plain; charset=utf-8"
        try:
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, self._in_loop(lambda: generate_latest(self._registry))
            if path in ("/healthz", "/livez"):
                return 200, text, self._in_loop(lambda: b"ok\n")
            if path == "/readyz":
                failure = self._in_loop(self._failure)
                return (503, text, f"{failure}\n".encode()) if failure else (200, text, b"ok\n")
        except FutureTimeoutError:
            return 503, text, b"the scheduler's loop does not answer\n"
        return 404, text, b"known paths: /metrics /healthz /livez /readyz\n"

    def _in_loop(self, call: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(call()))
        return answer.result(timeout=_ANSWER_TIMEOUT_S)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SOCKET_TIMEOUT_S

            def do_GET(self) -> None:
                status, content_type, body = owner.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a scrape every few seconds is no news."""

        return Handler

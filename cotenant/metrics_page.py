"""What a service shows to Prometheus and to probes over plain HTTP: /metrics, /healthz (also /livez) and /readyz."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from cotenant.addresses import split_address
from cotenant.errors import InputError

TEXT: Final = "text/plain; charset=utf-8"
_SOCKET_TIMEOUT_S: Final = 10.0


class MetricsPage:
    """Serves from threads of its own, so that a silent client keeps no other one waiting.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        show: Returns content type and text of /metrics.
        failure: Returns why the service is not ready; empty = it is.
        look: Makes these calls, e.g. in the thread that owns the state, in bounded time.

    Attributes:
        address: As it was bound.

    Raises:
        InputError: The address is none, or another program has it.
    """

    def __init__(
        self,
        address: str,
        *,
        show: Callable[[], tuple[str, bytes]],
        failure: Callable[[], str],
        look: Callable[[Callable[[], object]], object] = lambda call: call(),
    ) -> None:
        host, port = split_address(address)
        self._show, self._failure, self._look = show, failure, look
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as error:
            raise InputError(
                f"{address} cannot be served ({error.strerror}); is another program using it?",
                remedy="choose another --metrics-address",
            ) from error
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
        answers = {"/metrics": self._metrics, "/healthz": self._health, "/livez": self._health, "/readyz": self._ready}
        if path not in answers:
            return 404, TEXT, b"known paths: /metrics /healthz /livez /readyz\n"
        found: list[tuple[int, str, bytes]] = []
        try:
            self._look(lambda: found.append(answers[path]()))
        except TimeoutError:
            # Its owner may stand still for a reason that another thread knows.
            return 503, TEXT, f"{self._failure() or 'the service does not answer'}\n".encode()
        return found[0]

    def _metrics(self) -> tuple[int, str, bytes]:
        return 200, *self._show()

    def _health(self) -> tuple[int, str, bytes]:
        return 200, TEXT, b"ok\n"

    def _ready(self) -> tuple[int, str, bytes]:
        failure = self._failure()
        return (503, TEXT, f"{failure}\n".encode()) if failure else self._health()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SOCKET_TIMEOUT_S

            def do_GET(self) -> None:
                status, content_type, body = owner.answer(self.path.partition("?")[0])
                # A client that no longer waits is no news.
                with suppress(ConnectionError, TimeoutError):
                    self.send_response(status)
                    self.send_header("Content-Type", content_type)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a scrape every few seconds is no news."""

        return Handler

"""The extender over HTTP: POST /filter and /prioritize, GET /healthz."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from cotenant.addresses import is_loopback, split_address
from cotenant.engines.kubernetes.extender import Extender
from cotenant.errors import InputError, ProgramError

BODY_BYTES_MAX: Final = 32 * 2**20
REQUESTS_AT_ONCE_MAX: Final = 16
_SOCKET_TIMEOUT_S: Final = 10.0


class _QuietServer(ThreadingHTTPServer):
    """A server to which a caller that no longer waits is no news."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (as socketserver declares it)
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class ExtenderServer:
    """Serves from threads of its own.

    Args:
        address: HOST:PORT; port 0 takes a free one.
        extender: Answers.
        insecure: Others than this machine may ask.

    Raises:
        InputError: The address is none, or others could reach it.
        ProgramError: Another program has it.
    """

    def __init__(self, address: str, extender: Extender, *, insecure: bool = False) -> None:
        host, port = split_address(address)
        if not insecure and not is_loopback(address):
            raise InputError(
                f"the extender speaks plain HTTP, and {address} can be reached from other machines",
                remedy="listen on loopback with --address, or give --insecure and let kube-scheduler alone reach it",
            )
        self._extender = extender
        self._places = threading.BoundedSemaphore(REQUESTS_AT_ONCE_MAX)
        try:
            self._server = _QuietServer((host, port), self._handler())
        except OSError as error:
            raise ProgramError(f"{address} cannot be served: {error.strerror}; is another program using it?") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="extender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and document for a request."""
        try:
            arguments = json.loads(body)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return 400, {"Error": "ExtenderArgs are a JSON object"}
        if path == "/filter":
            return 200, self._extender.filter(arguments)
        if path == "/prioritize":
            return 200, self._extender.prioritize(arguments)
        return 404, {"Error": "known paths: /filter /prioritize /healthz"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SOCKET_TIMEOUT_S
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                is_known = self.path == "/healthz"
                self._send(200 if is_known else 404, {"ok": is_known})

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                    self.close_connection = True
                    self._send(413, {"Error": f"say a Content-Length up to {BODY_BYTES_MAX}"})
                    return
                body = self.rfile.read(int(length))
                if not owner._places.acquire(blocking=False):
                    self._send(503, {"Error": "too many requests at once"})
                    return
                try:
                    self._send(*owner.answer(self.path, body))
                finally:
                    owner._places.release()

            def _send(self, status: int, document: Any) -> None:  # noqa: ANN401 (any JSON document)
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: what went wrong is told by the extender."""

        return Handler

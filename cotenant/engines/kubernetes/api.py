"""Requests to the API server: the only way in which cotenant reads Kubernetes and tells it anything."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from cotenant.engines.errors import EngineDeniedError, EngineForbiddenError, EngineRefusedError, EngineUnreachableError
from cotenant.engines.kubernetes.access import ClusterAccess
from cotenant.engines.kubernetes.values import Row, rows_of, text_of
from cotenant.errors import InputError

TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 256 * 2**20
ROWS_PER_PAGE: Final = 500
PAGES_MAX: Final = 1_000
_SHOWN_CHARACTERS_MAX: Final = 300
_GONE: Final = 410
_DENIED: Final = frozenset({401, 403})
_BUSY: Final = frozenset({408, 429})


class KubernetesApi(Protocol):
    """Answers requests."""

    def list_rows(self, path: str, query: Mapping[str, str]) -> list[Row]:
        """Return all objects of a list, however many pages it has.

        Raises:
            EngineDeniedError: The API server does not let us read it.
            EngineUnreachableError: It does not answer.
        """

    def get(self, path: str) -> Row:
        """Return one object.

        Raises:
            EngineRefusedError: There is none, or we may not see it.
            EngineUnreachableError: The API server does not answer.
        """

    def order(self, method: str, path: str, body: Row, content_type: str = "application/json") -> Row:
        """Change something; return the answer.

        Raises:
            EngineRefusedError: It is not done.
            EngineUnreachableError: The API server does not answer; whether it is done shows at the next reading.
        """


class ServedApi:
    """A `KubernetesApi` over HTTPS; each request takes 30 s at most between two pieces of its answer.

    Args:
        access: Where, and who we are.
        timeout_s: Longest silence.
    """

    def __init__(self, access: ClusterAccess, *, timeout_s: float = TIMEOUT_S) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Give the connection up; the next request opens another one."""
        with self._lock:
            self._drop()

    def list_rows(self, path: str, query: Mapping[str, str]) -> list[Row]:
        """Return all objects of a list."""
        rows = self._pages(path, query)
        if rows is None:
            rows = self._pages(path, query)
        if rows is not None:
            return rows
        raise EngineUnreachableError(f"{path} changes faster than it can be listed")

    def get(self, path: str) -> Row:
        """Return one object."""
        status, answer = self._ask("GET", path)
        return _accepted(status, answer, f"GET {path}")

    def order(self, method: str, path: str, body: Row, content_type: str = "application/json") -> Row:
        """Change something."""
        data = json.dumps(body).encode()
        status, answer = self._ask(method, path, data, content_type)
        return _accepted(status, answer, f"{method} {path}")

    def _pages(self, path: str, query: Mapping[str, str]) -> list[Row] | None:
        """Return the rows of all pages; None = the list expired between two of them."""
        rows: list[Row] = []
        # Without a resourceVersion: what a cache of the API server has may be older than our own last order.
        wanted = {**query, "limit": str(ROWS_PER_PAGE)}
        for _ in range(PAGES_MAX):
            status, answer = self._ask("GET", f"{path}?{urlencode(wanted)}")
            if status == _GONE:
                return None
            if status != 200:
                kind = EngineDeniedError if status in _DENIED else EngineUnreachableError
                raise kind(_said(status, answer, f"GET {path}"), remedy=_remedy(status))
            rows += rows_of(answer, "items")
            wanted["continue"] = text_of(answer, "metadata", "continue")
            if not wanted["continue"]:
                return rows
        raise EngineUnreachableError(f"{path} has more than {PAGES_MAX * ROWS_PER_PAGE:,} entries")

    def _ask(self, method: str, path: str, body: bytes = b"", content_type: str = "") -> tuple[int, Row]:
        with self._lock:
            for is_again in (False, True):
                is_fresh = self._connection is None
                try:
                    return self._exchange(method, path, body, content_type)
                except InputError as error:
                    raise EngineUnreachableError(error.message) from error
                except (http.client.HTTPException, OSError) as error:
                    self._drop()
                    # A kept connection that the other side has closed says nothing about the server.
                    if is_fresh or is_again or method != "GET":
                        raise self._unreachable(error) from error
        raise EngineUnreachableError("the API server does not answer")

    def _exchange(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Row]:
        if self._connection is None:
            self._connection = self._open()
        headers = {"Accept": "application/json", "User-Agent": "cotenant"}
        if content_type:
            headers["Content-Type"] = content_type
        if token := self._access.read_token():
            headers["Authorization"] = f"Bearer {token}"
        self._connection.request(method, f"{self._access.path}{path}", body=body or None, headers=headers)
        response = self._connection.getresponse()
        data = response.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"more than {ANSWER_BYTES_MAX // 2**20} MiB in one answer")
        return response.status, _parsed(data, response.status)

    def _open(self) -> http.client.HTTPConnection:
        access = self._access
        if access.tls is None:
            return http.client.HTTPConnection(access.host, access.port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(access.host, access.port, timeout=self._timeout_s, context=access.tls)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unreachable(self, error: Exception) -> EngineUnreachableError:
        return EngineUnreachableError(
            f"the API server at {self._access.host}:{self._access.port} does not answer: {_plain(str(error))}",
            remedy="see that `kubectl get nodes` works with the same kubeconfig",
        )


def _accepted(status: int, answer: Row, request: str) -> Row:
    if 200 <= status < 300:
        return answer
    if status >= 500 or status in _BUSY:
        raise EngineUnreachableError(_said(status, answer, request))
    kind = EngineForbiddenError if status in _DENIED else EngineRefusedError
    raise kind(_said(status, answer, request), remedy=_remedy(status))


def _said(status: int, answer: Row, request: str) -> str:
    return f"{request}: {status} {_plain(text_of(answer, 'message')) or 'without a word'}"


def _remedy(status: int) -> str:
    if status == 401:
        return "its token or certificate is not known there, or has expired"
    if status == 403:
        return "its account lacks a right: see the roles in deploy/kubernetes (docs/kubernetes.md)"
    return ""


def _parsed(data: bytes, status: int) -> Row:
    try:
        document: Any = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    # Something in between answers in its own words, when it fails.
    if status >= 300:
        return {"message": data[:_SHOWN_CHARACTERS_MAX].decode(errors="replace")}
    raise http.client.HTTPException("its answer is no JSON object")


def _plain(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:_SHOWN_CHARACTERS_MAX]

"""Same request_id and same body: same answer. Same request_id and another body: a conflict. Bounded by bytes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from google.protobuf.message import Message

from predictor_service.errors import DeadlineError, RequestConflictError, invalid_field

ANSWERS_BYTES_MAX: Final = 64 << 20
ANSWERS_MAX: Final = 10_000
REQUEST_ID_CHARACTERS_MAX: Final = 128

Answer = TypeVar("Answer", bound=Message | bytes)


@dataclass(slots=True)
class _Remembered:
    body_sha256: bytes
    answer: Future[Message | bytes]
    size_bytes: int = 0


class RepeatedRequests:
    """Remembers answers by method and request_id; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[str, str], _Remembered] = OrderedDict()
        self._bytes = 0

    def answer(
        self, method: str, request_id: str, body: Message, wait_s: float, produce: Callable[[], Answer]
    ) -> Answer:
        """Returns the answer of an equal earlier request, or produces it.

        Args:
            method: Methods do not share ids.
            request_id: Empty = do not remember.
            body: The request.
            wait_s: How long to wait for an equal request that is under way, seconds.
            produce: Makes the answer; what it raises is not remembered.

        Raises:
            RequestConflictError: The id was used with another body.
            InvalidRequestError: The id is too long.
            DeadlineError: The equal request did not finish in time.
        """
        if not request_id:
            return produce()
        if len(request_id) > REQUEST_ID_CHARACTERS_MAX:
            raise invalid_field("request_id", "it is too long", "use a UUID")
        key = (method, request_id)
        body_sha256 = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
        with self._lock:
            earlier = self._answers.get(key)
            if earlier is None:
                mine = _Remembered(body_sha256, Future())
                self._answers[key] = mine
        if earlier is not None:
            return cast("Answer", _repeat(earlier, body_sha256, request_id, wait_s))
        return self._produce(key, mine, produce)

    def _produce(self, key: tuple[str, str], mine: _Remembered, produce: Callable[[], Answer]) -> Answer:
        try:
            answer = produce()
        except BaseException as error:
            with self._lock:
                self._answers.pop(key, None)
            mine.answer.set_exception(error)
            raise
        mine.answer.set_result(answer)
        with self._lock:
            mine.size_bytes = len(answer) if isinstance(answer, bytes) else answer.ByteSize()
            self._bytes += mine.size_bytes
            self._make_room()
        return answer

    def _make_room(self) -> None:
        while self._bytes > ANSWERS_BYTES_MAX or len(self._answers) > ANSWERS_MAX:
            oldest, remembered = next(iter(self._answers.items()))
            if not remembered.answer.done():
                return
            del self._answers[oldest]
            self._bytes -= remembered.size_bytes


def _repeat(earlier: _Remembered, body_sha256: bytes, request_id: str, wait_s: float) -> Message | bytes:
    if earlier.body_sha256 != body_sha256:
        raise RequestConflictError(
            f"request_id {request_id!r} was used with another body",
            remedy="use a new UUID for every new request",
            details={"field": "request_id"},
        )
    try:
        return earlier.answer.result(timeout=wait_s)
    except TimeoutError:
        raise DeadlineError(
            "an equal request is still under way", remedy="ask again with the same request_id"
        ) from None

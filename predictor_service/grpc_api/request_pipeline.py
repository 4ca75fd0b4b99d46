"""Everything that is the same for all calls: admission, deadlines, repetition, errors, metrics, one log line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from cotenant.system_clock import steady_ms
from predictor_service.errors import DeadlineError, PredictorError, ServiceError
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.repeated_requests import RepeatedRequests
from predictor_service.grpc_api.status_codes import STATUS_CODES, status_of

DEFAULT_DEADLINE_S: Final = 30.0
SLOW_MS: Final = 1_000
"""Answers that take longer are logged although they are in order."""

BRIEF_METHODS: Final = frozenset({"PredictJob"})
"""They hold the interpreter's lock nearly all of their time; see `shared_core`."""

Answer = TypeVar("Answer", bound=Message | bytes)
_logger = logging.getLogger(__name__)


class RequestPipeline:
    """Answers calls one by one.

    Args:
        metrics: Where they are counted.
        queue: Knows which calls came when too many were waiting.
    """

    def __init__(self, metrics: ServiceMetrics, queue: AdmissionQueue) -> None:
        self._metrics = metrics
        self._queue = queue
        self._repeated = RepeatedRequests()

    def answer(
        self,
        context: grpc.ServicerContext,
        method: str,
        request: Message | None,
        produce: Callable[[], Answer],
    ) -> Answer:
        """Produces the answer of one call, or aborts it with a rich status.

        Args:
            context: The call.
            method: Short name, for metrics and log.
            request: Its message; None where the caller sends several.
            produce: Makes the answer.
        """
        if method in BRIEF_METHODS:
            return self._answer(context, method, request, produce)
        with self._queue.core.left():
            return self._answer(context, method, request, produce)

    def _answer(
        self, context: grpc.ServicerContext, method: str, request: Message | None, produce: Callable[[], Answer]
    ) -> Answer:
        started_ms = steady_ms()
        self._metrics.requests.begin()
        code = grpc.StatusCode.OK
        try:
            return self._admit(context, method, request, produce)
        except PredictorError as error:
            code = STATUS_CODES[type(error)]
            _abort(context, error)
        except Exception:
            if not context.is_active():  # the caller went away; what broke is the call, not the service
                code = grpc.StatusCode.CANCELLED
                raise
            code = grpc.StatusCode.INTERNAL
            _logger.exception("call_failed", extra={"method": method})
            _abort(context, ServiceError("the predictor failed inside", remedy="see its log"))
        finally:
            self._note(method, code, steady_ms() - started_ms)

    def _admit(
        self, context: grpc.ServicerContext, method: str, request: Message | None, produce: Callable[[], Answer]
    ) -> Answer:
        self._queue.check_admitted()
        remaining_s = context.time_remaining()
        wait_s = DEFAULT_DEADLINE_S if remaining_s is None else min(remaining_s, DEFAULT_DEADLINE_S)
        if wait_s <= 0:
            raise DeadlineError("the deadline passed while the request waited", remedy="allow more time")
        if request is None:
            with self._queue.streams.admitted(context):
                return produce()
        return self._repeated.answer(method, getattr(request, "request_id", ""), request, wait_s, produce)

    def _note(self, method: str, code: grpc.StatusCode, duration_ms: int) -> None:
        self._metrics.requests.end(method, code.name, duration_ms)
        if code is grpc.StatusCode.OK:
            self._queue.note_duration(duration_ms)
        # A line for every answer would cost a tenth of it and hide what matters: metrics count the ordinary ones.
        level = logging.DEBUG if code is grpc.StatusCode.OK and duration_ms < SLOW_MS else logging.INFO
        if _logger.isEnabledFor(level):
            _logger.log(level, "call_answered", extra={"method": method, "code": code.name, "duration_ms": duration_ms})


def _abort(context: grpc.ServicerContext, error: PredictorError) -> NoReturn:
    context.abort_with_status(rpc_status.to_status(status_of(error)))
    raise AssertionError("unreachable: abort_with_status raises")

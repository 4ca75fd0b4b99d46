"""Passes on what agents measured of running jobs: to the predictor, which keeps it; nothing here looks into it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Iterable

import grpc

from cotenant.v1 import prediction_pb2, prediction_pb2_grpc, resources_pb2

_log = logging.getLogger(__name__)

WINDOWS_PER_HEARTBEAT_MAX = 20
WINDOW_BYTES_MAX = 4_096
WINDOWS_PER_CALL = 500
WINDOWS_KEPT_MAX = 10_000
"""Some 5 MB; the oldest leave when the predictor is away for long."""
INTERVAL_S = 1.0
# The predictor may be able to take them later; every other answer is final.
_LATER = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED})


class MeasurementWindowRelay:
    """Measurement windows on their way to the predictor.

    Args:
        channel: To the predictor; None: there is none, and nothing is kept.
        deadline_s: Of one call.
    """

    def __init__(self, channel: grpc.aio.Channel | None, *, deadline_s: float) -> None:
        self._stub = prediction_pb2_grpc.PredictionServiceStub(channel) if channel is not None else None
        self._deadline_s = deadline_s
        self._waiting: deque[resources_pb2.MeasurementWindow] = deque(maxlen=WINDOWS_KEPT_MAX)

    def note(self, windows: Iterable[resources_pb2.MeasurementWindow]) -> None:
        """Take what a heartbeat carried; more or larger ones than the contract allows are dropped."""
        if self._stub is None:
            return
        for _, window in zip(range(WINDOWS_PER_HEARTBEAT_MAX), windows, strict=False):
            if window.ByteSize() <= WINDOW_BYTES_MAX:
                self._waiting.append(window)

    async def run(self) -> None:
        """Pass them on in batches until cancelled; what fails for now is kept for the next turn."""
        while self._stub is not None:
            await asyncio.sleep(INTERVAL_S)
            if self._waiting:
                await self._send([self._waiting.popleft() for _ in range(min(len(self._waiting), WINDOWS_PER_CALL))])

    async def _send(self, batch: list[resources_pb2.MeasurementWindow]) -> None:
        request = prediction_pb2.RecordMeasurementWindowsRequest(
            request_id=str(uuid.uuid4()), measurement_windows=batch
        )
        try:
            answer = await self._stub.RecordMeasurementWindows(request, timeout=self._deadline_s)  # type: ignore[union-attr]
        except grpc.aio.AioRpcError as error:
            is_kept = error.code() in _LATER
            found = {"windows": len(batch), "status": error.code().name}
            _log.warning("windows_delayed" if is_kept else "windows_dropped", extra=found)
            if is_kept:
                self._waiting.extendleft(reversed(batch[: WINDOWS_KEPT_MAX - len(self._waiting)]))
            return
        if answer.refused:
            reasons = sorted({refused.reason for refused in answer.refused})
            _log.info("windows_refused", extra={"windows": len(answer.refused), "reasons": reasons})

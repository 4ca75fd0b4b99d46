"""Asks the predictor; a predictor that is down or refuses is an event like any other, never an exception."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from cotenant.tls_probe import TlsMismatch
from cotenant.v1 import prediction_pb2, prediction_pb2_grpc
from scheduler_service.adapters.predictor import prediction_messages
from scheduler_service.core.commands import (
    PairMember,
    RecordOutcome,
    RefreshPairs,
    RequestLossFit,
    RequestPairPredictions,
    RequestPrediction,
    RequestSpeedFit,
    RequestTaskSpeedFit,
)
from scheduler_service.core.events import (
    Event,
    PairPredictionsArrived,
    PairPredictionsFailed,
    PairsRefreshed,
    PredictionArrived,
    PredictionFailed,
)
from scheduler_service.core.fit_events import LossFitted, SpeedFitted, TaskSpeedFitted
from scheduler_service.core.predictions.pair_refreshes import changed_pairs
from scheduler_service.core.records import JobPrediction, MemoryRange, PairPrediction
from scheduler_service.errors import PredictorError

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
FitQuestion = RequestSpeedFit | RequestTaskSpeedFit | RequestLossFit
Question = RequestPrediction | RequestPairPredictions | RefreshPairs | FitQuestion

UNKNOWN_DEVICE = "UNKNOWN_DEVICE"
"""Code of the failure about a device type of which the predictor knows nothing, or not which one is meant."""

# Calls under way at once; further ones wait here, not in the predictor.
CONCURRENT_CALLS_MAX = 8
OUTCOMES_PER_CALL = 1_000
OUTCOMES_KEPT_MAX = 10_000
OUTCOMES_INTERVAL_S = 1.0
# Whether it answers at all is looked at this often, and for so long.
HEALTH_INTERVAL_S = 10.0
# One that is back, as after an upgrade or at the start of all programs, is not to be called away for long.
HEALTH_AWAY_INTERVAL_S = 1.0
HEALTH_DEADLINE_S = 5.0
# A question about n members is answered with n x n numbers, of which only the new ones' rows and columns are wanted.
PAIR_MEMBERS_MAX = 100
# Answers about 500 x 500 pairs take some 4 MB.
_MESSAGE_BYTES_MAX = 32 * 1024 * 1024
_RETRY_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "cotenant.v1.PredictionService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def open_channel(
    address: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    """Open a channel with bounded retries on UNAVAILABLE and quick reconnection after a restart of the predictor.

    Args:
        address: host:port.
        credentials: None = plain text.
        interceptors: What shows a token with every call.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.service_config", json.dumps(_RETRY_CONFIG)),
        ("grpc.enable_retries", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)


class PredictorClient:
    """One predictor behind a channel.

    Args:
        channel: None: there is no predictor, and every question fails at once with that reason.
        deadline_s: Of one call, retries included.
        look: Looks at the port that does not answer for a disagreement about TLS; blocks for seconds at most.

    Attributes:
        fault: Why it does not answer, as `watch` found last; None = it does, or nobody has looked.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel | None,
        *,
        deadline_s: float,
        look: Callable[[], TlsMismatch | None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._look = look
        self._stub = prediction_pb2_grpc.PredictionServiceStub(channel) if channel is not None else None
        self._deadline_s = deadline_s
        self._calls = asyncio.Semaphore(CONCURRENT_CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: deque[RecordOutcome] = deque(maxlen=OUTCOMES_KEPT_MAX)
        self._telling = asyncio.Lock()
        self._are_delayed = False
        self.fault: PredictorError | None = None

    async def watch(self) -> None:
        """Look again and again whether the predictor answers, until cancelled; a change is logged."""
        while self._channel is not None:
            before, self.fault = self.fault, await self._health(self._channel)
            if self.fault is not None and before is None:
                _log.warning("predictor_away", extra={"code": self.fault.code, "reason": self.fault.message})
            elif self.fault is None and before is not None:
                _log.info("predictor_back")
            await asyncio.sleep(HEALTH_INTERVAL_S if self.fault is None else HEALTH_AWAY_INTERVAL_S)

    async def _health(self, channel: grpc.aio.Channel) -> PredictorError | None:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]  # the stubs lack it
                health_pb2.HealthCheckRequest(), timeout=HEALTH_DEADLINE_S
            )
        except grpc.aio.AioRpcError as error:
            # What answers so does answer.
            return None if error.code() is grpc.StatusCode.UNIMPLEMENTED else await self._explained(error)
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return None
        return PredictorError("the predictor says that it does not serve", code="PREDICTOR_UNAVAILABLE")

    def request(self, command: Question, deliver: Callable[[Event], None]) -> None:
        """Ask in the background and hand the answer, good or bad, to `deliver` as an event with at_ms 0."""
        task = asyncio.get_running_loop().create_task(self._answer(command, deliver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: Question, deliver: Callable[[Event], None]) -> None:
        try:
            if isinstance(command, RequestPrediction):
                if not self._are_delayed:  # a question about a key may be due to what was noted of it
                    await self._send_noted()
                deliver(PredictionArrived(at_ms=0, prediction=await self.predict_job(command)))
            elif isinstance(command, RefreshPairs):
                pairs = tuple(await self._refreshed(command))
                deliver(PairsRefreshed(at_ms=0, device=command.device, sharing=command.sharing, pairs=pairs))
            elif isinstance(command, FitQuestion):
                deliver(await self._fitted(command))
            else:
                deliver(PairPredictionsArrived(at_ms=0, pairs=await self.predict_pairs(command)))
        except PredictorError as error:
            deliver(_failure(command, error))

    async def predict_job(self, command: RequestPrediction) -> JobPrediction:
        """Ask about one key.

        Raises:
            PredictorError: No usable answer within the deadline.
        """
        return await self._predict(command, prediction_messages.job_prediction)

    async def predict_memory(self, command: RequestPrediction, *, deadline_s: float | None = None) -> MemoryRange:
        """Ask how much memory a job takes at the smallest micro-batch named, else at its batch.

        Raises:
            PredictorError: No usable answer within the deadline.
        """
        return await self._predict(command, prediction_messages.memory_range, deadline_s)

    async def _predict(
        self,
        command: RequestPrediction,
        read: Callable[[RequestPrediction, prediction_pb2.PredictJobResponse], Answer],
        deadline_s: float | None = None,
    ) -> Answer:
        try:
            async with self._calls:
                answer = await self._connected().PredictJob(
                    prediction_messages.job_question(command), timeout=deadline_s or self._deadline_s
                )
            if answer.device_is_generic:
                # Peaks of an unknown type are no ground to place anything on: jobs run alone there.
                raise PredictorError(f"nothing is known of device type {command.device!r}", code=UNKNOWN_DEVICE)
            return read(command, answer)
        except grpc.aio.AioRpcError as error:
            raise await self._explained(error) from error
        except (ValueError, KeyError) as error:
            raise PredictorError(f"the predictor's answer is unusable: {error}", code="BAD_ANSWER") from error

    async def _fitted(self, command: FitQuestion) -> SpeedFitted | TaskSpeedFitted | LossFitted:
        try:
            async with self._calls:
                if isinstance(command, RequestSpeedFit):
                    asked = prediction_messages.speed_question(command)
                    speeds = await self._connected().FitSpeedModel(asked, timeout=self._deadline_s)
                    return prediction_messages.fitted_speeds(command, speeds)
                if isinstance(command, RequestTaskSpeedFit):
                    asked = prediction_messages.task_speed_question(command)
                    speeds = await self._connected().FitSpeedModel(asked, timeout=self._deadline_s)
                    return prediction_messages.fitted_task_speeds(command, speeds)
                question = prediction_messages.loss_question(command)
                answer = await self._connected().FitLossCurve(question, timeout=self._deadline_s)
                return prediction_messages.fitted_end(command, answer)
        except grpc.aio.AioRpcError as error:
            raise await self._explained(error) from error
        except ValueError as error:
            raise PredictorError(f"the predictor's answer is unusable: {error}", code="BAD_ANSWER") from error

    async def _explained(self, error: grpc.aio.AioRpcError) -> PredictorError:
        mismatch = None
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            mismatch = await asyncio.to_thread(self._look)
        if mismatch is None:
            return _translate(error)
        return PredictorError(f"TLS mismatch: {mismatch.cause}; {mismatch.remedy}", code="PREDICTOR_UNAVAILABLE")

    async def predict_pairs(
        self, command: RequestPairPredictions, *, deadline_s: float | None = None
    ) -> tuple[PairPrediction, ...]:
        """Ask about the pairs that have a new key in them, each key with a copy of itself included.

        Raises:
            PredictorError: No usable answer within the deadline.
        """
        found: dict[tuple[str, str, int, int], PairPrediction] = {}
        wanted = set(command.new_keys) or {member.key for member in command.members}
        for members in pair_questions(command):
            question = replace(command, members=members)
            for pair in await self._predict_matrix(question, deadline_s or self._deadline_s):
                if pair.victim_key in wanted or pair.other_key in wanted:
                    sizes = pair.micro_batch_size, pair.other_micro_batch_size
                    found[pair.victim_key, pair.other_key, *sizes] = pair
        return tuple(found.values())

    async def _refreshed(self, command: RefreshPairs) -> Iterator[PairPrediction]:
        """Ask once more; everything without a new answer is left out."""
        answered = await self._predict_matrix(command, self._deadline_s) if command.members else ()
        return changed_pairs(command.known, {(pair.victim_key, pair.other_key): pair for pair in answered})

    async def _predict_matrix(
        self, command: RequestPairPredictions | RefreshPairs, deadline_s: float
    ) -> tuple[PairPrediction, ...]:
        try:
            async with self._calls:
                answer = await self._connected().PredictPairs(
                    prediction_messages.pairs_question(command), timeout=deadline_s
                )
            return tuple(prediction_messages.pair_predictions(command.device, answer, command.members, command.sharing))
        except grpc.aio.AioRpcError as error:
            raise await self._explained(error) from error
        except (ValueError, KeyError) as error:
            raise PredictorError(f"the predictor's answer is unusable: {error}", code="BAD_ANSWER") from error

    def record(self, command: RecordOutcome) -> None:
        """Note an outcome; `send_outcomes` passes it on. The oldest leave when the predictor is away for long."""
        self._outcomes.append(command)

    async def send_outcomes(self) -> None:
        """Pass noted outcomes on in batches until cancelled; what fails is kept for the next turn."""
        while self._stub is not None:
            await asyncio.sleep(OUTCOMES_INTERVAL_S)
            self._are_delayed = False
            await self._send_noted()

    async def _send_noted(self) -> None:
        """Pass the oldest noted outcomes on; returns once what another task passes on has arrived, too."""
        async with self._telling:
            batch = [self._outcomes.popleft() for _ in range(min(len(self._outcomes), OUTCOMES_PER_CALL))]
            if not batch or self._stub is None or self._are_delayed:
                self._outcomes.extendleft(reversed(batch))
                return
            try:
                await self._stub.RecordOutcomes(prediction_messages.outcomes_message(batch), timeout=self._deadline_s)
            except grpc.aio.AioRpcError as error:
                _log.warning("outcomes_delayed", extra={"outcomes": len(batch), "status": error.code().name})
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    self._are_delayed = True
                    self._outcomes.extendleft(reversed(batch))

    async def close(self) -> None:
        """End calls under way and close the channel."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    def _connected(self) -> prediction_pb2_grpc.PredictionServiceAsyncStub:
        if self._stub is None:
            raise PredictorError(
                "no predictor is configured; start the scheduler with --predictor", code="NO_PREDICTOR"
            )
        return self._stub


def pair_questions(command: RequestPairPredictions) -> Iterator[tuple[PairMember, ...]]:
    """Split a question into ones of at most `PAIR_MEMBERS_MAX` members in which every wanted pair occurs."""
    new = set(command.new_keys) or {member.key for member in command.members}
    asking = [member for member in command.members if member.key in new]
    others = [member for member in command.members if member.key not in new]
    half = PAIR_MEMBERS_MAX // 2
    blocks = [tuple(asking[start : start + half]) for start in range(0, len(asking), half)]
    for number, block in enumerate(blocks):
        room = PAIR_MEMBERS_MAX - len(block)
        partners = [member for later in blocks[number + 1 :] for member in later] + others
        for start in range(0, max(len(partners), 1), room):
            yield block + tuple(partners[start : start + room])


def _failure(command: Question, error: PredictorError) -> Event:
    if isinstance(command, RefreshPairs):
        return PairsRefreshed(at_ms=0, device=command.device, sharing=command.sharing, code=error.code)
    if isinstance(command, RequestSpeedFit):
        return SpeedFitted(at_ms=0, key=command.key, device=command.device, code=error.code)
    if isinstance(command, RequestTaskSpeedFit):
        return TaskSpeedFitted(at_ms=0, key=command.key, device=command.device, code=error.code)
    if isinstance(command, RequestLossFit):
        return LossFitted(at_ms=0, job_id=command.job_id, code=error.code)
    if isinstance(command, RequestPrediction):
        return PredictionFailed(at_ms=0, key=command.key, device=command.device, code=error.code, message=error.message)
    keys = command.new_keys or tuple(member.key for member in command.members)
    return PairPredictionsFailed(
        at_ms=0,
        device=command.device,
        sharing=command.sharing,
        keys=keys,
        code=error.code,
        message=error.message,
    )


def _translate(error: grpc.aio.AioRpcError) -> PredictorError:
    """Take the stable reason where the predictor gives one, else the status."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return PredictorError("the predictor does not answer; is it running?", code="PREDICTOR_UNAVAILABLE")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PredictorError("the predictor did not answer in time", code="PREDICTOR_TIMEOUT")
    reason = ""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason = info.reason
    return PredictorError(f"the predictor refused: {error.details()}", code=reason or f"PREDICTOR_{error.code().name}")

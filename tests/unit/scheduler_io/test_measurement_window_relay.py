"""What agents measured reaches the predictor, also after an outage; what the contract does not allow is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import pytest

from cotenant.v1 import resources_pb2
from scheduler_service.adapters.agents import measurement_window_relay
from scheduler_service.adapters.agents.measurement_window_relay import (
    WINDOW_BYTES_MAX,
    WINDOWS_KEPT_MAX,
    WINDOWS_PER_HEARTBEAT_MAX,
    MeasurementWindowRelay,
)
from scheduler_service.adapters.predictor.predictor_client import open_channel
from tests.support.fake_predictor import FakePredictor


def windows(count: int, start: int = 0) -> list[resources_pb2.MeasurementWindow]:
    return [resources_pb2.MeasurementWindow(window_id=f"{number:032x}") for number in range(start, start + count)]


def relay_until(
    predictor: FakePredictor, noted: Sequence[Sequence[resources_pb2.MeasurementWindow]], is_done: Callable[[], bool]
) -> None:
    async def main() -> None:
        async with open_channel(predictor.address) as channel:
            relay = MeasurementWindowRelay(channel, deadline_s=5)
            for heartbeat in noted:
                relay.note(heartbeat)
            running = asyncio.create_task(relay.run())
            async with asyncio.timeout(60):
                while not is_done():  # noqa: ASYNC110 (the fake answers in threads of its own)
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement_window_relay, "INTERVAL_S", 0.01)


def test_windows_arrive_in_their_order() -> None:
    with FakePredictor() as predictor:
        relay_until(predictor, [windows(3), windows(2, start=3)], lambda: len(predictor.windows) == 5)
        assert [item.window_id for item in predictor.windows] == [f"{number:032x}" for number in range(5)]


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_what_the_predictor_cannot_take_now_is_sent_again_in_order(code: grpc.StatusCode) -> None:
    with FakePredictor() as predictor:
        failures = iter([code, code])
        predictor.failure = lambda: next(failures, None)
        relay_until(predictor, [windows(4)], lambda: len(predictor.windows) == 4)
        assert [item.window_id for item in predictor.windows] == [f"{number:032x}" for number in range(4)]


def test_what_the_predictor_refuses_is_not_sent_again() -> None:
    with FakePredictor() as predictor:
        asked: list[grpc.StatusCode] = []

        def refuse() -> grpc.StatusCode:
            asked.append(grpc.StatusCode.INVALID_ARGUMENT)
            return asked[-1]

        predictor.failure = refuse
        relay_until(predictor, [windows(4)], lambda: bool(asked))
        assert predictor.windows == []


def test_no_predictor_keeps_nothing() -> None:
    relay = MeasurementWindowRelay(None, deadline_s=1)
    relay.note(windows(3))
    asyncio.run(relay.run())
    assert not relay._waiting


def test_bounds_hold_however_much_an_agent_sends() -> None:
    async def main() -> None:
        async with open_channel("127.0.0.1:1") as channel:
            relay = MeasurementWindowRelay(channel, deadline_s=1)
            huge = resources_pb2.MeasurementWindow(window_id="x" * WINDOW_BYTES_MAX)
            relay.note([huge, *windows(100)])
            assert len(relay._waiting) == WINDOWS_PER_HEARTBEAT_MAX - 1
            for _ in range(WINDOWS_KEPT_MAX // WINDOWS_PER_HEARTBEAT_MAX + 10):
                relay.note(windows(100))
            assert len(relay._waiting) == WINDOWS_KEPT_MAX

    asyncio.run(main())

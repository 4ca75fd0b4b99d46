"""The line before the threads: its length is kept, and who comes when it is full learns when to come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait

import pytest

from predictor_service.errors import OverloadedError
from predictor_service.grpc_api.call_line import CallLine

WAIT_S = 30.0


@pytest.fixture
def line() -> Iterator[CallLine]:
    made = CallLine(threads=2, waiting_max=3)
    yield made
    made.shutdown()


def answer(line: CallLine, number: int, gate: threading.Event) -> int:
    line.check_admitted()
    gate.wait(WAIT_S)
    return number


def fill(line: CallLine, gate: threading.Event) -> list[Future[int]]:
    """Occupies both threads and all three places; they are answered 0 to 4 once the gate opens."""
    busy = threading.Barrier(3)

    def occupy(number: int) -> int:
        busy.wait(WAIT_S)
        return answer(line, number, gate)

    under_way = [line.submit(occupy, number) for number in range(2)]
    busy.wait(WAIT_S)
    waiting = [line.submit(answer, line, number, gate) for number in range(2, 5)]
    return [*under_way, *waiting]


def test_who_finds_the_line_full_is_refused_at_once_and_the_others_are_answered(line: CallLine) -> None:
    gate = threading.Event()
    admitted = fill(line, gate)
    refusals = [line.submit(answer, line, number, gate) for number in range(100)]
    for refusal in refusals:  # answered although nothing else can move
        error = refusal.exception(WAIT_S)
        assert isinstance(error, OverloadedError)
        assert 50 <= error.retry_after_ms <= 5_000
    gate.set()
    assert [future.result(WAIT_S) for future in admitted] == list(range(5))


def test_the_line_is_open_again_when_it_was_answered(line: CallLine) -> None:
    gate = threading.Event()
    admitted = fill(line, gate)
    gate.set()
    wait(admitted, WAIT_S)
    assert line.submit(answer, line, 7, gate).result(WAIT_S) == 7


def test_the_time_to_come_back_grows_with_what_calls_take(line: CallLine) -> None:
    def retry_ms() -> int:
        gate = threading.Event()
        admitted = fill(line, gate)
        error = line.submit(answer, line, 0, gate).exception(WAIT_S)
        gate.set()
        wait(admitted, WAIT_S)
        assert isinstance(error, OverloadedError)
        return error.retry_after_ms

    before = retry_ms()
    for _ in range(200):
        line.note_duration(1_000.0)
    assert before < 1_000 < retry_ms() <= 5_000

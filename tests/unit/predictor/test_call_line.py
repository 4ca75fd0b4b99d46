"""The line before the threads: its length is kept, and a caller that comes when it is full learns when to come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import pytest

from predictor_service.errors import OverloadedError
from predictor_service.grpc_api.admission_queue import AdmissionQueue, QueuedCall

WAIT_S = 90.0


@pytest.fixture
def line() -> Iterator[AdmissionQueue]:
    made = AdmissionQueue(threads=2, waiting_max=3)
    yield made
    made.shutdown()


def put(line: AdmissionQueue, call: Callable[[], int]) -> Future[int]:
    """Puts a call in line; the future has what it returned or raised."""
    result: Future[int] = Future()

    def settle() -> None:
        try:
            result.set_result(call())
        except OverloadedError as error:
            result.set_exception(error)

    line.submit(settle)
    return result


def answer(line: AdmissionQueue, number: int, gate: threading.Event) -> Callable[[], int]:
    def call() -> int:
        line.check_admitted()
        gate.wait(WAIT_S)
        return number

    return call


def fill(line: AdmissionQueue, gate: threading.Event) -> list[Future[int]]:
    """Occupies both threads and all three places; they are answered 0 to 4 once the gate opens."""
    busy = threading.Barrier(3)

    def occupy(number: int) -> int:
        busy.wait(WAIT_S)
        return answer(line, number, gate)()

    under_way = [put(line, lambda: occupy(0)), put(line, lambda: occupy(1))]
    busy.wait(WAIT_S)
    waiting = [put(line, answer(line, number, gate)) for number in range(2, 5)]
    return [*under_way, *waiting]


def test_a_caller_that_finds_the_line_full_is_refused_at_once_and_the_others_are_answered(line: AdmissionQueue) -> None:
    gate = threading.Event()
    admitted = fill(line, gate)
    refusals = [put(line, answer(line, number, gate)) for number in range(100)]
    for refusal in refusals:  # answered although nothing else can move
        error = refusal.exception(WAIT_S)
        assert isinstance(error, OverloadedError)
        assert 50 <= error.retry_after_ms <= 5_000
    gate.set()
    assert [future.result(WAIT_S) for future in admitted] == list(range(5))


def test_the_line_is_open_again_when_it_was_answered(line: AdmissionQueue) -> None:
    gate = threading.Event()
    admitted = fill(line, gate)
    gate.set()
    wait(admitted, WAIT_S)
    assert put(line, answer(line, 7, gate)).result(WAIT_S) == 7


def test_the_time_to_come_back_grows_with_what_calls_take(line: AdmissionQueue) -> None:
    def retry_ms() -> int:
        gate = threading.Event()
        admitted = fill(line, gate)
        error = put(line, answer(line, 0, gate)).exception(WAIT_S)
        gate.set()
        wait(admitted, WAIT_S)
        assert isinstance(error, OverloadedError)
        return error.retry_after_ms

    before = retry_ms()
    for _ in range(200):
        line.note_duration(1_000.0)
    assert before < 1_000 < retry_ms() <= 5_000


def test_a_callback_added_before_or_after_a_call_has_ended_runs_once(line: AdmissionQueue) -> None:
    gate, reported = threading.Event(), threading.Semaphore(0)
    placed = line.submit(gate.wait, WAIT_S)
    placed.add_done_callback(lambda call: reported.release())
    gate.set()
    assert reported.acquire(timeout=WAIT_S)
    placed.add_done_callback(lambda call: reported.release())
    assert reported.acquire(timeout=WAIT_S)
    assert not reported.acquire(blocking=False)


def test_two_threads_that_report_at_once_report_once() -> None:
    for _ in range(300):
        count: list[QueuedCall] = []
        placed = QueuedCall(lambda: None, ())
        runner = threading.Thread(target=placed.run)
        runner.start()
        placed.add_done_callback(count.append)
        runner.join(WAIT_S)
        assert len(count) == 1


def test_a_call_that_raises_costs_no_thread(line: AdmissionQueue, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("told to")

    ends = threading.Semaphore(0)
    for _ in range(4):
        line.submit(fail).add_done_callback(lambda call: ends.release())
    assert all(ends.acquire(timeout=WAIT_S) for _ in range(4))
    assert put(line, lambda: 5).result(WAIT_S) == 5
    assert "call_raised" in caplog.text


def test_what_stands_in_line_is_answered_before_the_threads_end() -> None:
    line, gate = AdmissionQueue(threads=1, waiting_max=8), threading.Event()
    calls = [put(line, answer(line, number, gate)) for number in range(5)]
    gate.set()
    line.shutdown()
    assert [call.result(0) for call in calls] == list(range(5))

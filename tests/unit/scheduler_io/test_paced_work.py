"""Long work beside the event loop pauses, loses nothing, and stops pausing when the scheduler ends."""

from __future__ import annotations

import time

import pytest

from scheduler_service.adapters.paced_work import PacedWork


def work_for(processor_ns: int) -> None:
    began_ns = time.thread_time_ns()
    while time.thread_time_ns() - began_ns < processor_ns:
        pass


@pytest.fixture
def pauses_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def test_every_entry_comes_once_and_in_order(pauses_s: list[float]) -> None:
    assert list(PacedWork()(range(1_000))) == list(range(1_000))


def test_it_pauses_three_times_as_long_as_was_worked(pauses_s: list[float]) -> None:
    began_ns = time.thread_time_ns()
    for _ in PacedWork()(range(10)):
        work_for(2_500_000)
    worked_s = (time.thread_time_ns() - began_ns) / 1e9
    assert len(pauses_s) == 10
    assert 3 * 0.025 <= sum(pauses_s) <= 3 * worked_s


def test_it_pauses_no_more_once_it_is_hurried(pauses_s: list[float]) -> None:
    pace = PacedWork()
    pace.hurry()
    for _ in pace(range(3)):
        work_for(2_500_000)
    assert pauses_s == []

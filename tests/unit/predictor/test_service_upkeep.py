"""What a service does between answers goes on whatever a disk or another program does to one part of it."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from predictor_service.commands.model_upkeep import repeat_until


def test_a_part_that_fails_costs_no_other_part_and_is_tried_and_reported_again_when_it_fails_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, rounds = threading.Event(), list[int]()
    failures: list[Exception] = [OSError("no room")] * 2 + [sqlite3.OperationalError("locked")]

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    def count() -> None:
        rounds.append(len(failures))
        if len(rounds) == 5:
            stop.set()

    repeat_until(stop, (fail, count), every_s=0.0)
    assert rounds == [2, 1, 0, 0, 0]
    assert [record.__dict__["reason"] for record in caplog.records] == ["no room", "locked"]


def test_a_fault_of_the_program_is_not_hidden() -> None:
    def break_down() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        repeat_until(threading.Event(), (break_down,), every_s=0.0)

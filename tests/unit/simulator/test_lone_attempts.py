"""What need not be done for jobs that have their GPUs for themselves, as nearly all have."""

from __future__ import annotations

from typing import NoReturn

import pytest

from cotenant_simulator.run.attempts import GpuOccupancy
from cotenant_simulator.run.machines import Machines
from tests.support.simulated_runs import ends_s, run, trace_job, trace_of


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("it was looked at")


def test_of_a_job_alone_no_neighbour_is_disturbed_or_slows_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [trace_job("wide", gpus=2, seconds=20), trace_job("late", at_s=5, seconds=10)]
    expected = ends_s(run(trace_of(*jobs), policy="fifo", cluster="1x2"))
    monkeypatch.setattr(Machines, "_disturb", refuse)
    monkeypatch.setattr(GpuOccupancy, "_slowdown", refuse)
    assert ends_s(run(trace_of(*jobs), policy="fifo", cluster="1x2")) == expected

"""How seldom a run lets garbage be collected, and that it leaves this as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cotenant_simulator.run.simulation import ALLOCATIONS_PER_COLLECTION
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event
from tests.support.simulated_runs import kind, simulation, trace_job, trace_of


@pytest.fixture
def _threshold_after() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_threshold_after")
@pytest.mark.parametrize(
    ("before", "during"), [(700, ALLOCATIONS_PER_COLLECTION), (10**6, 10**6), (0, 0)], ids=["own", "seldom", "off"]
)
def test_a_run_collects_seldom_and_leaves_it_as_it_was_even_where_it_breaks(before: int, during: int) -> None:
    seen: set[int] = set()

    def note(event: Event, commands: list[Command]) -> None:
        seen.add(gc.get_threshold()[0])
        if is_breaking:
            raise RuntimeError

    trace = trace_of(trace_job("j0", at_s=0, seconds=10, key="kind"), kinds={"kind": kind()}, slowdowns={})
    for is_breaking in (False, True):
        gc.set_threshold(before)
        run = simulation(trace, cluster="1x1", policy="fifo", observe=note)
        if is_breaking:
            with pytest.raises(RuntimeError):
                run.run()
        else:
            assert not run.run().unfinished
        assert gc.get_threshold()[0] == before
    assert seen == {during}

"""FIFO on one node against a queue of a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.fifo import Fifo
from tests.support.scheduling import job, node, pending, running, view

GPUS = 4


def queue_of_a_few_lines(widths: Sequence[int], free: int, *, overtaking: bool) -> set[int]:
    """Positions of the jobs that start; a job wider than the cluster waits for ever and blocks no other."""
    started = set()
    for position, width in enumerate(widths):
        if width <= free:
            started.add(position)
            free -= width
        elif width <= GPUS and not overtaking:
            break
    return started


@settings(deadline=None)
@given(
    widths=st.lists(st.integers(1, GPUS + 1), max_size=8),
    busy=st.integers(0, GPUS),
    overtaking=st.booleans(),
)
def test_fifo_starts_what_a_queue_of_a_few_lines_starts(widths: list[int], busy: int, overtaking: bool) -> None:
    machine = node("n0", GPUS)
    waiting = [
        pending(job(f"j{position}", gpus=width, global_batch_size=width), submitted_at_ms=position)
        for position, width in enumerate(widths)
    ]
    holding = [running(job(f"r{index}"), [machine.gpus[index].gpu_id]) for index in range(busy)]
    seen = view(nodes=[machine], waiting=waiting, holding=holding)
    decisions = list(unfolded(Fifo(overtaking=overtaking).decide(seen)))
    expected = queue_of_a_few_lines(widths, GPUS - busy, overtaking=overtaking)
    assert {one.job_id for one in decisions if isinstance(one, Start)} == {f"j{position}" for position in expected}
    assert len(decisions) == len(widths)

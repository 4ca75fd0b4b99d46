"""SJF on one node against a queue of a few lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.sjf import Sjf
from tests.support.scheduling import job, node, pending, prediction, running, store, view

GPUS = 4


def queue_of_a_few_lines(jobs: list[tuple[int, int]], free: int) -> list[int]:
    """Positions of (width, length) jobs that start, in the order in which they do."""
    started = []
    for _, position in sorted((length, position) for position, (_, length) in enumerate(jobs)):
        if jobs[position][0] <= free:
            started.append(position)
            free -= jobs[position][0]
    return started


@settings(deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(1, GPUS + 1), st.integers(1, 5)), max_size=8), busy=st.integers(0, GPUS))
def test_sjf_starts_what_a_queue_of_a_few_lines_starts(jobs: list[tuple[int, int]], busy: int) -> None:
    machine = node("n0", GPUS)
    waiting = [
        pending(
            job(f"j{position}", key="key", gpus=width, global_batch_size=width, steps_total=length),
            submitted_at_ms=position,
        )
        for position, (width, length) in enumerate(jobs)
    ]
    holding = [running(job(f"r{index}"), [machine.gpus[index].gpu_id]) for index in range(busy)]
    known = store([prediction("key", step_ms={(gpus, 1): 10.0 for gpus in range(1, GPUS + 2)})])
    decisions = list(unfolded(Sjf().decide(view(nodes=[machine], waiting=waiting, holding=holding, predictions=known))))
    expected = queue_of_a_few_lines(jobs, GPUS - busy)
    assert [one.job_id for one in decisions if isinstance(one, Start)] == [f"j{position}" for position in expected]
    assert len(decisions) == len(jobs)

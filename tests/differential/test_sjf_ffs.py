"""SJF-FFS on one node against a loop of a few lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.sjf_ffs import SjfFfs
from tests.support.scheduling import all_pairs, job, node, pending, prediction, running, store, view

GPUS = 4
KNOWN = store(
    [prediction("key", step_ms={(gpus, 1): 10.0 for gpus in range(1, GPUS + 2)})],
    all_pairs(["key"], 0.1),
)


def loop_of_a_few_lines(jobs: list[tuple[int, int]], counts: list[int]) -> dict[int, list[int]]:
    """GPUs of each (width, length) job that starts, by position; `counts` are the jobs on each GPU."""
    placed: dict[int, list[int]] = {}
    for _, position in sorted((length, position) for position, (_, length) in enumerate(jobs)):
        width = jobs[position][0]
        free = [gpu for gpu, count in enumerate(counts) if count == 0]
        single = [gpu for gpu, count in enumerate(counts) if count == 1]
        chosen = free[:width] if len(free) >= width else (single + free)[:width]
        if len(chosen) == width:
            placed[position] = chosen
            for gpu in chosen:
                counts[gpu] += 1
    return placed


@settings(deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, GPUS + 1), st.integers(1, 5)), max_size=8),
    counts=st.lists(st.integers(0, 2), min_size=GPUS, max_size=GPUS),
)
def test_sjf_ffs_starts_what_a_loop_of_a_few_lines_starts(jobs: list[tuple[int, int]], counts: list[int]) -> None:
    waiting = [
        pending(
            job(f"j{position}", key="key", gpus=width, global_batch_size=width, steps_total=length),
            submitted_at_ms=position,
        )
        for position, (width, length) in enumerate(jobs)
    ]
    holding = [
        running(job(f"r{gpu}.{place}", key="key"), [f"n0.{gpu}"])
        for gpu, count in enumerate(counts)
        for place in range(count)
    ]
    seen = view(nodes=[node("n0", GPUS)], waiting=waiting, holding=holding, predictions=KNOWN)
    started = {
        int(one.job_id[1:]): [int(part.gpu_id[-1]) for part in one.assignments]
        for one in unfolded(SjfFfs().decide(seen))
        if isinstance(one, Start)
    }
    assert started == loop_of_a_few_lines(jobs, counts)

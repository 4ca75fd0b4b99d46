"""The default scheduler against first fit on a number of free GPUs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.policies.kubernetes_default import KubernetesDefault, drawn_gpus
from tests.support.scheduling import job, node, pending, view


@settings(deadline=None)
@given(lists=st.lists(st.sets(st.integers(1, 6), min_size=1), max_size=10), gpus=st.integers(0, 12), seed=st.integers())
def test_jobs_start_in_order_wherever_their_drawn_number_is_free(lists: list[set[int]], gpus: int, seed: int) -> None:
    jobs = [
        job(f"j{index:02}", gpus=min(counts), global_batch_size=60, allowed_gpus=tuple(sorted(counts)))
        for index, counts in enumerate(lists)
    ]
    seen = view(nodes=[node("n0", gpus)], waiting=[pending(one) for one in jobs], seed=seed)
    decisions = unfolded(KubernetesDefault().decide(seen))
    started = {one.job_id: len(one.assignments) for one in decisions if isinstance(one, Start)}
    expected, free = {}, gpus
    for one in jobs:
        wanted = drawn_gpus(one, seed)
        if wanted <= free:
            expected[one.job_id] = wanted
            free -= wanted
    assert started == expected

"""SRTF until nothing changes any more, against the rule in one line: the shortest jobs run."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Start, Stop, unfolded
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.srtf import Srtf
from tests.support.scheduling import job, node, pending, prediction, running, store, view

GPUS = 4
KNOWN = store([prediction("key", step_ms={(gpus, 1): 10.0 for gpus in range(1, GPUS + 1)})])
ROUNDS_MAX = 30


def sized(position: int, steps: int, gpus: int = 1) -> JobRequest:
    return job(f"j{position}", key="key", gpus=gpus, global_batch_size=gpus, steps_total=steps)


def seen(jobs: list[JobRequest], placed: dict[str, list[str]]) -> SchedulingView:
    return view(
        nodes=[node("n0", GPUS)],
        waiting=[pending(one) for one in jobs if one.job_id not in placed],
        holding=[running(one, placed[one.job_id]) for one in jobs if one.job_id in placed],
        predictions=KNOWN,
    )


def settle(jobs: list[JobRequest], placed: dict[str, list[str]]) -> dict[str, list[str]]:
    """Carry decisions out, stops at once, until a round decides nothing new."""
    for _ in range(ROUNDS_MAX):
        now = seen(jobs, placed)
        plan = check_plan(
            now, {one.request.job_id: one for one in now.pending}, Srtf(preemption_gain_min_ms=0).decide(now)
        )
        assert plan.rejections == ()
        changes = [one for one in unfolded(plan.decisions) if isinstance(one, Start | Stop)]
        if not changes:
            return placed
        for one in changes:
            if isinstance(one, Stop):
                del placed[one.job_id]
            else:
                placed[one.job_id] = [part.gpu_id for part in one.assignments]
    raise AssertionError("jobs take turns for ever")


@settings(deadline=None)
@given(steps=st.lists(st.integers(1, 50), max_size=9, unique=True), running_first=st.integers(0, GPUS))
def test_jobs_for_one_gpu_settle_so_that_the_shortest_run(steps: list[int], running_first: int) -> None:
    jobs = [sized(position, length) for position, length in enumerate(steps)]
    placed = {one.job_id: [f"n0.{index}"] for index, one in enumerate(jobs[:running_first])}
    shortest = sorted(jobs, key=lambda one: one.steps_total)[:GPUS]
    assert settle(jobs, placed).keys() == {one.job_id for one in shortest}


@settings(deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, GPUS)), max_size=9))
def test_gangs_settle_and_no_job_waits_for_longer_ones_only(shapes: list[tuple[int, int]]) -> None:
    jobs = [sized(position, *shape) for position, shape in enumerate(shapes)]
    placed = settle(jobs, {})
    free = GPUS - sum(map(len, placed.values()))
    for one in jobs:
        if one.job_id not in placed:
            longer = sum(other.gpus for other in jobs if other.job_id in placed and other.steps_total > one.steps_total)
            assert free + longer < one.gpus

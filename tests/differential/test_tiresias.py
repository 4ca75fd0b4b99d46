"""Tiresias until nothing changes any more, against the rule in one line: the first in the order run."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Start, Stop, unfolded
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.policies.tiresias import Tiresias
from tests.support.scheduling import job, node, pending, running, view

GPUS = 4
LIMIT_MS = 1_000
NOW_MS = 10**9
POLICY = Tiresias(queue_limit_gpu_ms=LIMIT_MS, queues=3, run_min_ms=0, run_per_cost_ratio=0)
ROUNDS_MAX = 40

Shape = tuple[int, int]
"""GPU time so far in ms and GPUs."""


def seen(shapes: list[Shape], placed: dict[int, list[str]]) -> SchedulingView:
    return view(
        now_ms=NOW_MS,
        nodes=[node("n0", GPUS)],
        waiting=[
            pending(job(f"j{place}", gpus=gpus), submitted_at_ms=place, attained_gpu_ms=served_ms)
            for place, (served_ms, gpus) in enumerate(shapes)
            if place not in placed
        ],
        holding=[
            running(
                job(f"j{place}", gpus=gpus),
                placed[place],
                submitted_at_ms=place,
                started_at_ms=NOW_MS,
                attained_gpu_ms=served_ms,
            )
            for place, (served_ms, gpus) in enumerate(shapes)
            if place in placed
        ],
    )


def settle(shapes: list[Shape], placed: dict[int, list[str]]) -> dict[int, list[str]]:
    """Carry decisions out, stops at once, while time stands still."""
    for _ in range(ROUNDS_MAX):
        now = seen(shapes, placed)
        plan = check_plan(now, {one.request.job_id: one for one in now.pending}, POLICY.decide(now))
        assert plan.rejections == ()
        changes = [one for one in unfolded(plan.decisions) if isinstance(one, Start | Stop)]
        if not changes:
            return placed
        for one in changes:
            if isinstance(one, Stop):
                del placed[int(one.job_id[1:])]
            else:
                placed[int(one.job_id[1:])] = [part.gpu_id for part in one.assignments]
    raise AssertionError("jobs take turns for ever")


def ordered(shapes: list[Shape]) -> list[int]:
    def queue(served_ms: int) -> int:
        return (served_ms >= LIMIT_MS) + (served_ms >= 10 * LIMIT_MS)

    return sorted(range(len(shapes)), key=lambda place: (queue(shapes[place][0]), place))


@settings(deadline=None)
@given(served=st.lists(st.integers(0, 20_000), max_size=9), running_first=st.integers(0, GPUS))
def test_jobs_for_one_gpu_settle_so_that_the_first_in_order_run(served: list[int], running_first: int) -> None:
    shapes = [(served_ms, 1) for served_ms in served]
    placed = {place: [f"n0.{place}"] for place in range(min(running_first, len(shapes)))}
    assert set(settle(shapes, placed)) == set(ordered(shapes)[:GPUS])


@settings(deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, GPUS)), max_size=8))
def test_gangs_settle_as_the_walk_over_the_queues_says(shapes: list[Shape]) -> None:
    """On one node: each job that fits with those before it runs, and no later one keeps it from that."""
    left, walk = GPUS, set()
    for place in ordered(shapes):
        if shapes[place][1] <= left:
            left -= shapes[place][1]
            walk.add(place)
    assert set(settle(shapes, {})) == walk

"""Holds for the rest of a queue that name their reasons by shape of job."""

from __future__ import annotations

import random

import pytest

from scheduler_service.core.cluster_view.remaining_time_queue import GroupedQueue, RemainingTimeQueue, ServiceQueue
from scheduler_service.core.cluster_view.view import PendingJob
from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.jobs.job_shapes import shape_of
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.records import JobRequest, Reason, Share
from scheduler_service.policies.pairing import sharing_queue
from scheduler_service.policies.placement import length_queue
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, explained, job, pending, prediction, store, view


def test_jobs_of_one_shape_share_a_reason_and_the_others_read_the_common_one() -> None:
    wide, narrow = job("wide", gpus=4), job("narrow")
    reasons = {shape_of(wide): Reason(code="NO_FREE_GPU")}
    rest = HoldRest(queue=[], reason=Reason(code="CLUSTER_FULL"), reasons=reasons)
    assert [rest.reason_of(one).code for one in (wide, narrow)] == ["NO_FREE_GPU", "CLUSTER_FULL"]


@pytest.mark.parametrize("later", [Hold, HoldMany])
def test_nothing_more_is_decided_about_a_job_that_the_rest_holds(later: type[Decision]) -> None:
    reason, seen = Reason(code="NO_FREE_GPU"), view(waiting=[pending(job("a")), pending(job("b"))])
    named = {"job_ids": ("a",)} if later is HoldMany else {"job_id": "a"}
    decisions = [HoldRest(queue=seen.pending, reason=reason), later(reason=reason, **named)]
    plan = check_plan(seen, {one.request.job_id: one for one in seen.pending}, decisions)
    assert [one.reason.code for one in plan.rejections] == ["DECIDED_TWICE"]


def test_every_job_of_a_long_queue_reads_the_reason_of_its_shape() -> None:
    play = Play(policy="horus", gpus=4)
    play.submit("first", gpus=3, share=Share.NEVER)
    for number in range(length_queue.QUEUE_LONG_MIN):
        play.submit(f"wide-{number}", key="key", gpus=2, share=Share.NEVER)
    play.submit("huge", gpus=9, share=Share.NEVER)
    [rest] = play.engine._policy.decide(play.engine._view(explain=False))
    assert isinstance(rest, HoldRest)
    assert {play.code(f"wide-{number}") for number in range(length_queue.QUEUE_LONG_MIN)} == {"NO_FREE_GPU"}
    assert play.code("huge") == "GPUS_NOT_IN_CLUSTER"


def test_a_queue_by_service_keeps_levels_and_submission_as_jobs_come_change_and_go() -> None:
    queue = ServiceQueue([100.0])
    for job_id, at_ms, served_ms in (("a", 1, 0), ("b", 2, 100), ("c", 3, 0)):
        queue.put(pending(job(job_id, key="key"), submitted_at_ms=at_ms, attained_gpu_ms=served_ms))
    assert [queue.jobs_before((0, 3, "c")), queue.jobs_before((1, 2, "b"))] == [1, 2]
    queue.put(pending(job("a", key="key"), submitted_at_ms=1, attained_gpu_ms=500))
    assert queue.heads == {1: [(0.0, 3, "c")]}
    assert [queue.jobs_before((1, 1, "a")), queue.jobs_before((1, 2, "b"))] == [1, 2]
    queue.put(pending(job("a", key="key", gpus=2), submitted_at_ms=1, attained_gpu_ms=500))
    assert queue.heads == {1: [(0.0, 3, "c")], 2: [(1.0, 1, "a")]}
    assert queue.jobs_before((2, 0, "")) == 3
    queue.remove("c")
    queue.remove("never there")
    assert queue.heads == {1: [(1.0, 2, "b")], 2: [(1.0, 1, "a")]}


def drawn_jobs(seed: int) -> list[PendingJob]:
    generator = random.Random(seed)
    return [
        pending(
            job(
                f"j{number}",
                key=generator.choice(("known", "known", "other", "unknown")),
                gpus=generator.choice((1, 1, 2)),
                steps_total=generator.choice((0, 10, 20, 20, 30)),
            ),
            submitted_at_ms=generator.randrange(5),
            steps_done=generator.choice((0, 5)),
            attained_gpu_ms=generator.choice((0, 50, 100, 500)),
        )
        for number in range(60)
    ]


def order_of(queue: GroupedQueue) -> object:
    """Return all that is told of a queue, as it is after its first jobs have left one by one."""
    found: list[object] = []
    while queue.heads:
        found.append({gpus: [*heads] for gpus, heads in sorted(queue.heads.items())})
        if isinstance(queue, ServiceQueue):
            found.append(queue.jobs_before((1.0, 2, "")))
        first = min(heads[0] for heads in queue.heads.values())
        found.append([*queue.group_of(first).firsts_after(None, lambda length: False)])
        queue.remove(first[2])
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_that_is_filled_at_once_is_as_if_its_jobs_had_come_one_by_one(seed: int) -> None:
    jobs, known = drawn_jobs(seed), store([prediction("known"), prediction("other")])
    for make in (lambda: ServiceQueue([100.0]), lambda: RemainingTimeQueue([DEVICE], known)):
        one_by_one, at_once = make(), make()
        for one in jobs:
            one_by_one.put(one)
        at_once.fill(jobs)
        assert len(at_once) == len(jobs)
        assert order_of(at_once) == order_of(one_by_one)


def test_filling_a_queue_finds_what_equal_jobs_have_in_common_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def look(queue: RemainingTimeQueue, request: JobRequest) -> float:
        looked.append(request.key)
        return 1.0

    monkeypatch.setattr(RemainingTimeQueue, "_step_ms", look)
    queue = RemainingTimeQueue([DEVICE], store())
    queue.fill([pending(job(f"j{number}", key=f"key-{number % 3}", steps_total=number + 1)) for number in range(90)])
    assert sorted(looked) == ["key-0", "key-1", "key-2"]


def test_a_queue_on_one_gpu_has_the_reasons_that_explaining_it_gives() -> None:
    play = Play(policy="sjf_bsbf")
    for number in range(sharing_queue.QUEUE_LONG_MIN + 3):
        play.submit(f"job-{number}", steps_total=100 + number)
    waiting = [f"job-{number}" for number in range(1, sharing_queue.QUEUE_LONG_MIN + 3)]
    shown = {job_id: play.code(job_id) for job_id in waiting}
    assert set(shown.values()) == {"REMAINING_TIME_UNKNOWN"}
    assert shown == {job_id: explained(play.engine, job_id).reason.code for job_id in waiting}

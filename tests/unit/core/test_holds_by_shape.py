"""Holds for the rest of a queue that name their reasons by shape of job."""

from __future__ import annotations

from scheduler_service.core.decisions import HoldRest
from scheduler_service.core.job_shapes import shape_of
from scheduler_service.core.records import Reason, Share
from scheduler_service.core.remaining_time_queue import ServiceQueue
from scheduler_service.policies.pairing import sharing_queue
from scheduler_service.policies.placement import length_queue
from tests.support.engine_play import Play
from tests.support.scheduling import job, pending


def test_jobs_of_one_shape_share_a_reason_and_the_others_read_the_common_one() -> None:
    wide, narrow = job("wide", gpus=4), job("narrow")
    reasons = {shape_of(wide): Reason(code="NO_FREE_GPU")}
    rest = HoldRest(queue=[], reason=Reason(code="CLUSTER_FULL"), reasons=reasons)
    assert [rest.reason_of(one).code for one in (wide, narrow)] == ["NO_FREE_GPU", "CLUSTER_FULL"]


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


def test_a_queue_on_one_gpu_has_the_reasons_that_explaining_it_gives() -> None:
    play = Play(policy="sjf_bsbf")
    for number in range(sharing_queue.QUEUE_LONG_MIN + 3):
        play.submit(f"job-{number}", steps_total=100 + number)
    waiting = [f"job-{number}" for number in range(1, sharing_queue.QUEUE_LONG_MIN + 3)]
    shown = {job_id: play.code(job_id) for job_id in waiting}
    assert set(shown.values()) == {"REMAINING_TIME_UNKNOWN"}
    assert shown == {job_id: play.engine.explain(job_id).reason.code for job_id in waiting}

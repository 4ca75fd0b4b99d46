"""The bridge beside Ray: parts of GPUs, what jobs see, kills, drivers that are gone, and odd things in Ray's store."""

from __future__ import annotations

import asyncio
import json

import pytest

from cotenant.engines.bridge import Bridge, RoundReport
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.ray.adapter import RayEngine
from cotenant.engines.ray.job_records import (
    JOB,
    ORDER,
    PROGRESS,
    JobRecord,
    OrderRecord,
    ProgressRecord,
    decode,
    encode,
)
from cotenant.engines.ray.lost_jobs import LostJobs
from cotenant.engines.records import EnginePhase, Placement
from cotenant.engines.snapshots import make_snapshot
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.fake_ray import FakeRay

GIB = 2**30
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
LIGHT = "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"


def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


def run_round(ray: FakeRay) -> RoundReport:
    report = Bridge(RayEngine(ray, DEVICES), ask, policy="horus", places=True).run_round(now_ms=ray.now_ms)
    ray.pass_time()
    return report


def placement(job_id: str, gpu_id: str = "n1/g0", slots: int = 25) -> Placement:
    return Placement(
        job_id=job_id, node_id=gpu_id[:2], gpu_id=gpu_id, slots=slots, note=f"{placed_note(gpu_id, slots)}: it fits"
    )


def gpus(ray: FakeRay) -> dict[str, list[str]]:
    return {job.job_id: [*job.held_slots] for job in RayEngine(ray, DEVICES).read().jobs if job.held_slots}


def test_jobs_that_go_together_get_parts_of_one_gpu_and_others_a_gpu_each() -> None:
    ray = FakeRay()
    for name, tag in {"h1": HEAVY, "h2": HEAVY, "h3": HEAVY, "l1": LIGHT, "l2": LIGHT, "h4": HEAVY}.items():
        ray.submit(name, tag)
        ray.now_ms += 1
    report = run_round(ray)
    assert sorted(ray.attempts) == ["h1", "h2", "h3", "l1", "l2"]
    found = gpus(ray)
    assert found["l1"] == found["l2"]
    assert len({*found["h1"], *found["h2"], *found["h3"], *found["l1"]}) == 4
    assert {job_id: attempt.gpu_ratio for job_id, attempt in ray.attempts.items()} == dict.fromkeys(ray.attempts, 0.25)
    assert report.disagreements == []


def test_a_job_of_which_nothing_is_known_gets_a_whole_gpu() -> None:
    ray = FakeRay()
    ray.submit("1", "cotenant")
    run_round(ray)
    assert ray.attempts["1"].gpu_ratio == 1.0


def test_a_job_that_sees_another_gpu_than_planned_is_told_in_every_round() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    ray.elsewhere["1"] = ("hexn2", "g1")
    run_round(ray)
    ray.pass_time()
    first, second = run_round(ray), run_round(ray)
    assert first.disagreements == second.disagreements == ["1"]
    assert "runs on n2/g1" in first.lines[0]


def test_a_bridge_that_was_killed_between_two_orders_is_followed_by_one_that_releases() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    RayEngine(ray, DEVICES).place(placement("1"))
    ray.pass_time()
    assert not ray.attempts
    run_round(ray)
    assert gpus(ray) == {"1": ["n1/g0"]}
    assert ray.started == {"1": 1}


def test_a_placed_job_is_not_placed_again() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    engine = RayEngine(ray, DEVICES)
    engine.place(placement("1"))
    with pytest.raises(EngineRefusedError):
        engine.place(placement("1", "n2/g0"))
    assert gpus(ray) == {"1": ["n1/g0"]}


def test_a_gpu_whose_placement_group_is_gone_takes_no_job() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    ray.groups = ray.groups[1:]
    with pytest.raises(EngineRefusedError, match="n1/g0"):
        RayEngine(ray, DEVICES).place(placement("1"))


def test_jobs_of_a_driver_that_is_gone_are_forgotten_whatever_its_clock_said() -> None:
    ray = FakeRay()
    for name in ("waits", "runs"):
        ray.submit(name, LIGHT)
    engine = RayEngine(ray, DEVICES)
    engine.place(placement("runs"))
    engine.release("runs")
    ray.pass_time()
    lost = LostJobs(ray)
    assert lost.remove(5_000) == []
    assert lost.remove(25_000) == []
    assert lost.remove(25_001) == ["waits"]
    assert [job.job_id for job in engine.read().jobs] == ["runs"]
    ray.attempts.clear()
    assert lost.remove(30_000) == ["runs"]
    assert ray.values == {}


def test_a_driver_that_lives_keeps_its_job_for_ever() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    lost = LostJobs(ray)
    for second in range(0, 120, 4):
        ray.pass_time(4)
        assert lost.remove(second * 1_000) == []
    assert ray.read(JOB + "1") is not None


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"[]", b"null", b'{"slots": "x", "gpu_id": 7, "is_released": 1}'])
def test_records_that_nobody_understands_cost_only_themselves(data: bytes) -> None:
    ray = FakeRay()
    ray.submit("good", LIGHT)
    ray.values |= {"job/odd": data, "order/odd": data, "order/good": data, "gpu/odd": data, "unknown": data}
    run_round(ray)
    assert gpus(ray) == {"good": ["n1/g0"]}
    assert decode(OrderRecord, data) == OrderRecord()


def test_deeply_nested_records_are_passed_over() -> None:
    assert decode(OrderRecord, b"[" * 100_000) == OrderRecord()


def test_actors_that_others_put_into_our_namespace_are_told() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    run_round(ray)
    ray.attempts["stranger"] = ray.attempts["1"]
    [warning] = RayEngine(ray, DEVICES).read().warnings
    assert "stranger" in warning


def test_a_node_that_no_flag_names_is_told_and_used_for_nothing() -> None:
    ray = FakeRay()
    state = RayEngine(ray, [DeviceRule(nodes="n1", device="NVIDIA A10", memory_bytes=24 * GIB)]).read()
    assert sorted(state.gpus) == ["n1/g0", "n1/g1"]
    assert any("n2" in warning and "--gpu" in warning for warning in state.warnings)


def test_a_dead_node_takes_no_jobs() -> None:
    ray = FakeRay()
    nodes = [node for node in ray.nodes() if node.node_hex != "hexn1"]
    ray.nodes = lambda: nodes  # type: ignore[method-assign]
    assert {node.node_id: node.is_usable for node in RayEngine(ray, DEVICES).read().nodes} == {"n1": False, "n2": True}


def test_a_ray_that_does_not_answer_is_said_and_changes_nothing() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    ray.is_away = True
    with pytest.raises(EngineUnreachableError):
        run_round(ray)
    ray.is_away = False
    run_round(ray)
    assert ray.started == {"1": 1}


def test_a_job_that_does_not_run_is_not_queued_again() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    with pytest.raises(EngineRefusedError, match="does not run"):
        RayEngine(ray, DEVICES).requeue("1", grace_s=1)


def test_orders_are_stored_in_a_form_that_other_versions_can_read() -> None:
    ray = FakeRay()
    ray.submit("1", LIGHT)
    RayEngine(ray, DEVICES).place(placement("1"))
    stored = json.loads(ray.values[ORDER + "1"])
    assert (stored["gpu_id"], stored["group_id"], stored["slots"], stored["is_released"]) == (
        "n1/g0",
        "n1g0",
        25,
        False,
    )
    assert RayEngine(ray, DEVICES).read().jobs[0].phase is EnginePhase.INTERRUPTED


def test_the_policy_hears_how_far_a_running_job_is_but_no_count_beyond_its_end_or_of_an_earlier_attempt() -> None:
    ray, told = FakeRay(), []
    ray.submit("train", f"{LIGHT} steps=100 step_ms=20")
    run_round(ray)
    started_at_ms = decode(JobRecord, ray.read(f"{JOB}train")).started_at_ms
    for steps, at_ms in ((60, started_at_ms - 1), (60, started_at_ms), (10**30, started_at_ms), (-5, started_at_ms)):
        ray.write(f"{PROGRESS}train", encode(ProgressRecord(steps=steps, at_ms=at_ms)))
        state = RayEngine(ray, DEVICES).read()
        told += [row.steps_done for row in make_snapshot(state, (), now_ms=ray.now_ms).running]
    assert told == [0, 60, 100, 0]

"""Decide on random snapshots: always an answer that can be carried out, faults named, or a refusal."""

from __future__ import annotations

import asyncio

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.random_snapshots import SnapshotMaker, break_somewhere, faults_of, repeat_somewhere

SEEDS = range(20)
BROKEN = 15


def decide_on(
    snapshot: scheduling_pb2.Snapshot, policy: str, *, explain: bool = False
) -> scheduling_pb2.DecideResponse:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot, explain=explain)
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


@for_each("policy", sorted(POLICIES))
@for_each("seed", SEEDS, always=5)
def test_every_pending_job_gets_one_decision_that_fits_and_the_same_one_again(policy: str, seed: int) -> None:
    snapshot = SnapshotMaker(seed).make()
    answer = decide_on(snapshot, policy, explain=seed % 3 == 0)
    assert faults_of(snapshot, answer) == []
    again = decide_on(snapshot, policy, explain=seed % 3 == 0)
    assert again.SerializeToString(deterministic=True) == answer.SerializeToString(deterministic=True)


@for_each("policy", sorted(POLICIES))
@for_each("first_seed", range(0, 60, BROKEN), always=1)
def test_broken_snapshots_get_an_answer_that_can_be_carried_out(policy: str, first_seed: int) -> None:
    warned = 0
    for seed in range(first_seed, first_seed + BROKEN):
        snapshot = SnapshotMaker(seed).make()
        break_somewhere(snapshot, seed)
        if seed % 3 == 0:
            repeat_somewhere(snapshot, seed)
        answer = decide_on(snapshot, policy)
        warned += bool(answer.warnings)
        assert faults_of(snapshot, answer) == [], seed
    assert warned > BROKEN // 2


@for_each(
    ("path", "value", "expected"),
    [
        ("nodes.gpus.memory_bytes", 0, "snapshot.nodes.gpus.memory_bytes: of g0.0 must be from 1 to"),
        ("nodes.cpu_cores", float("nan"), "snapshot.nodes.cpu_cores: of n0 must be from 0 to 100,000, not nan"),
        ("job_predictions.utilization_ratio", 85.0, "utilization_ratio: of k0 on V100 must be from 0 to 1, not 85.0"),
        ("job_predictions.level", 77, "snapshot.job_predictions.level: of k0 on V100 is no EstimateLevel"),
        ("job_predictions.step_times.workers", 2**31 - 1, "step_times.workers: of k0 on V100 must be from 0 to 1,024"),
        ("job_predictions.step_times.step_ms", 0.0, "step_times.step_ms: of k0 on V100 must be from 1e-06 to"),
        (
            "pair_predictions.slowdown_ratio",
            float("inf"),
            "slowdown_ratio: of k0 co-located with k0 must be from -1 to",
        ),
        ("pending.not_before_ms", -1, "snapshot.pending.not_before_ms: of j must be from 0 to"),
        ("pending.job.memory_floor_bytes", -1, "snapshot.job.memory_floor_bytes: of j must be from 0 to"),
    ],
)
def test_what_no_cluster_has_is_named_and_costs_its_own_row(path: str, value: float, expected: str) -> None:
    snapshot = scheduling_pb2.Snapshot()
    for node in ("0", "1"):
        gpus = snapshot.nodes.add(node_id=f"n{node}", schedulable=True).gpus
        gpus.add(gpu_id=f"g{node}.0", device="V100", memory_bytes=1, healthy=True)
    snapshot.pending.add().job.job_id = "j"
    prediction = snapshot.job_predictions.add(job_key="k0", device="V100")
    prediction.step_times.add(workers=1, servers=1, step_ms=1.0)
    snapshot.pair_predictions.add(victim_job_key="k0", other_job_key="k0", device="V100")
    *parents, name = path.split(".")
    message = snapshot
    for parent in parents:
        part = getattr(message, parent)
        message = part[0] if hasattr(part, "add") else part
    setattr(message, name, value)
    answer = decide_on(snapshot, "fifo")
    assert [warning.code for warning in answer.warnings] == ["INVALID_ROW"]
    assert expected in answer.warnings[0].message
    assert faults_of(snapshot, answer) == []


def test_one_mistake_in_a_program_is_named_twenty_times_and_not_a_thousand_times() -> None:
    snapshot = scheduling_pb2.Snapshot()
    for number in range(1_000):
        snapshot.pending.add(steps_done=-1).job.job_id = f"j{number}"
    answer = decide_on(snapshot, "fifo")
    assert sum("steps_done" in warning.message for warning in answer.warnings) == 20
    assert answer.warnings[-1].message == "and 980 more like these"
    assert {one.reason.code for one in answer.decisions} == {"INVALID_ROW"}
    assert len(answer.decisions) == 1_000

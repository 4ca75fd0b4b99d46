"""Classes, tenants, chosen devices and arrays in decisions on a snapshot, as in a running cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cases import for_each

GIB = 2**30


def respond(policy: str = "fifo", *, gpus: int = 1, **snapshot: Any) -> scheduling_pb2.DecideResponse:
    cards = [
        scheduling_pb2.SnapshotGpu(gpu_id=f"g{index}", device=f"NVIDIA A{index}00", memory_bytes=8 * GIB, healthy=True)
        for index in range(gpus)
    ]
    nodes = [scheduling_pb2.SnapshotNode(node_id="n0", schedulable=True, gpus=cards)]
    request = scheduling_pb2.DecideRequest(
        policy=policy, snapshot=scheduling_pb2.Snapshot(now_ms=1_000_000, nodes=nodes, **snapshot)
    )
    return asyncio.run(decide(request, predictor=None, seconds_left=None))


def answer(policy: str = "fifo", *, gpus: int = 1, **snapshot: Any) -> dict[str, scheduling_pb2.Decision]:
    return {one.job_id: one for one in respond(policy, gpus=gpus, **snapshot).decisions}


def pending(job_id: str, **job: Any) -> scheduling_pb2.SnapshotPending:
    described = scheduling_pb2.SnapshotJob(**{"job_id": job_id, "gpus": 1, "steps_total": 10, **job})
    return scheduling_pb2.SnapshotPending(job=described, submitted_at_ms=len(job_id))


def running(job_id: str, gpu_id: str, **job: Any) -> scheduling_pb2.SnapshotRunning:
    described = scheduling_pb2.SnapshotJob(**{"job_id": job_id, "gpus": 1, "steps_total": 10, **job})
    return scheduling_pb2.SnapshotRunning(job=described, assignments=[scheduling_pb2.Assignment(gpu_id=gpu_id)])


def actions(found: dict[str, scheduling_pb2.Decision]) -> dict[str, str]:
    return {
        job_id: one.reason.code if one.WhichOneof("action") == "hold" else str(one.WhichOneof("action"))
        for job_id, one in found.items()
    }


@pytest.mark.parametrize("policy", ["fifo", "sjf_bsbf", "horus", "srtf"])
def test_a_higher_class_goes_first(policy: str) -> None:
    found = answer(policy, pending=[pending("a"), pending("bb", priority=100)])
    assert found["bb"].WhichOneof("action") == "start"
    assert found["a"].WhichOneof("action") == "hold"


def test_a_tenant_holds_no_more_than_its_quota_and_the_others_get_the_rest() -> None:
    tenants = [scheduling_pb2.SnapshotTenant(tenant="x", gpus_max=2)]
    found = answer(
        gpus=4,
        tenants=tenants,
        running=[running("r", "g0", tenant="x")],
        pending=[pending("a", tenant="x"), pending("bb", tenant="x"), pending("ccc", tenant="y")],
    )
    assert actions(found) == {"a": "start", "bb": "QUOTA", "ccc": "start"}


def test_the_tenant_that_has_had_least_for_its_weight_comes_first() -> None:
    for used_gpu_ms, first in ((2_000, "a"), (4_000, "bb")):
        tenants = [
            scheduling_pb2.SnapshotTenant(tenant="x", weight=3, used_gpu_ms=used_gpu_ms * 3),
            scheduling_pb2.SnapshotTenant(tenant="y", weight=1, used_gpu_ms=3_000),
        ]
        found = answer(tenants=tenants, pending=[pending("a", tenant="x"), pending("bb", tenant="y")])
        started = next(job_id for job_id, one in found.items() if one.WhichOneof("action") == "start")
        assert started == first


def test_no_job_stops_one_of_a_higher_class() -> None:
    point = scheduling_pb2.StepTime(gpus=1, micro_batch_size=1, step_ms=1_000)
    known = scheduling_pb2.SnapshotJobPrediction(
        job_key="k", device="NVIDIA A000", utilization_ratio=0.5, in_domain=True, step_times=[point],
        micro_batches=[scheduling_pb2.MicroBatchMemory(micro_batch_size=1, memory_bytes=GIB)],
    )  # fmt: skip
    for priority, code in ((0, "STOPS_LONGER"), (5, "PROTECTED")):
        found = answer(
            "srtf",
            job_predictions=[known],
            running=[running("long", "g0", job_key="k", steps_total=10**6, priority=priority)],
            pending=[pending("short", job_key="k", settings={"global_batch_size": 1})],
        )
        assert found["short"].reason.code == code
        assert ("long" in found) is (code == "STOPS_LONGER")


def test_devices_are_chosen_and_arrays_limited() -> None:
    found = answer(
        gpus=3,
        pending=[
            pending("a", allowed_devices=["a200"]),
            pending("bb", array_id="array-1", array_index=1, array_running_max=1),
            pending("ccc", array_id="array-1", array_index=2, array_running_max=1),
        ],
    )
    assert [one.gpu_id for one in found["a"].start.assignments] == ["g2"]
    assert actions(found) == {"a": "start", "bb": "start", "ccc": "ARRAY_LIMIT"}


@for_each(
    "tenant",
    [{"gpus_max": -1}, {"weight": -1}, {"weight": float("nan")}, {"weight": 1e-9}, {"used_gpu_ms": float("inf")}],
)
def test_rules_that_cannot_be_are_left_out_and_told(tenant: dict[str, Any]) -> None:
    rules = [scheduling_pb2.SnapshotTenant(tenant="x", **tenant), scheduling_pb2.SnapshotTenant(tenant="y", gpus_max=1)]
    found = respond(gpus=3, tenants=rules, pending=[pending(name, tenant=name[0]) for name in ("x", "y1", "y22")])
    assert {one.job_id: one.WhichOneof("action") for one in found.decisions} == {
        "x": "start", "y1": "start", "y22": "hold",
    }  # fmt: skip
    assert [one.code for one in found.warnings] == ["INVALID_ROW"]
    assert "snapshot.tenants" in found.warnings[0].message


def test_of_two_rules_for_a_tenant_the_first_counts() -> None:
    rules = [scheduling_pb2.SnapshotTenant(tenant="x", gpus_max=count) for count in (1, 3)]
    found = respond(gpus=3, tenants=rules, pending=[pending("x1", tenant="x"), pending("x22", tenant="x")])
    assert sorted(str(one.WhichOneof("action")) for one in found.decisions) == ["hold", "start"]
    assert "must occur once" in found.warnings[0].message


def test_a_row_that_asks_for_what_no_job_can_have_is_held() -> None:
    found = answer(pending=[pending("a", priority=5_000), pending("bb", array_running_max=-1), pending("ccc")])
    assert actions(found) == {"a": "INVALID_ROW", "bb": "INVALID_ROW", "ccc": "start"}


def test_a_job_whose_time_is_over_is_stopped_with_a_checkpoint_and_takes_no_other_job() -> None:
    over = running("over", "g0", time_limit_ms=1_000)
    over.attained_gpu_ms = 1_000
    within = running("within", "g1", time_limit_ms=1_000)
    found = answer(gpus=2, running=[over, within], pending=[pending("a")])
    assert actions(found) == {"over": "stop", "a": "NO_FREE_GPU"}
    assert found["over"].stop.checkpoint


def test_whatever_a_tenant_is_called_its_quota_holds() -> None:
    tenants = [scheduling_pb2.SnapshotTenant(tenant=name, gpus_max=1) for name in ("/", "")]
    jobs = [pending(name * length, tenant="/") for length, name in ((1, "a"), (2, "b"), (3, "c"))]
    found = answer(gpus=3, tenants=tenants, pending=jobs)
    assert sorted(actions(found).values()) == ["QUOTA", "QUOTA", "start"]

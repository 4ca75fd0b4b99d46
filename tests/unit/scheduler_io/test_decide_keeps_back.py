"""Decide keeps GPUs back for a wide job that comes first, as the live engine does, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.queue.reservations import KEPT_MS_MAX
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cases import for_each

GIB = 2**30
DEVICE = "NVIDIA A100"
NOW_MS = 100_000_000
MINUTE_MS = 60_000
STEP_MS = 1_000.0
POLICIES = ("fifo", "sjf", "sjf_bsbf", "horus", "tiresias", "tetris", "best_fit", "ojpp", "elastic")


def job(job_id: str, *, minutes: int = 0, **asked: Any) -> scheduling_pb2.SnapshotJob:
    """A job that runs so many minutes alone; 0 = nobody knows how long."""
    stated = {
        "gpus": 1,
        "global_batch_size": asked.get("gpus", 1),
        "steps_total": minutes * 60,
        "share": resources_pb2.SHARE_MODE_NEVER,
        "stated_step_ms": STEP_MS,
    }
    return scheduling_pb2.SnapshotJob(**{"job_id": job_id, **stated, **asked})


def waiting(job_id: str, *, since_ms: int = NOW_MS, **asked: Any) -> scheduling_pb2.SnapshotPending:
    return scheduling_pb2.SnapshotPending(job=job(job_id, **asked), submitted_at_ms=since_ms)


def running(job_id: str, gpu_id: str, *, steps_done: int = 0, **asked: Any) -> scheduling_pb2.SnapshotRunning:
    row = scheduling_pb2.SnapshotRunning(
        job=job(job_id, **asked), steps_done=steps_done, started_at_ms=NOW_MS - int(steps_done * STEP_MS)
    )
    row.assignments.add(gpu_id=gpu_id)
    return row


def nodes(*widths: int) -> list[scheduling_pb2.SnapshotNode]:
    found = []
    for number, width in enumerate(widths):
        node = scheduling_pb2.SnapshotNode(node_id=f"n{number}", schedulable=True)
        for index in range(width):
            node.gpus.add(gpu_id=f"n{number}.{index}", device=DEVICE, memory_bytes=8 * GIB, healthy=True)
        found.append(node)
    return found


def ask(
    policy: str = "fifo",
    *,
    widths: tuple[int, ...] = (4,),
    now_ms: int = NOW_MS,
    running: Iterable[scheduling_pb2.SnapshotRunning] = (),
    **rows: Any,
) -> dict[str, scheduling_pb2.Decision]:
    snapshot = scheduling_pb2.Snapshot(now_ms=now_ms, nodes=nodes(*widths), running=running, **rows)
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=None))
    return {one.job_id: one for one in answer.decisions}


def said(found: dict[str, scheduling_pb2.Decision]) -> dict[str, str]:
    return {
        job_id: one.reason.code if one.WhichOneof("action") == "hold" else str(one.WhichOneof("action"))
        for job_id, one in found.items()
    }


def half_busy(*, minutes: int = 10, **asked: Any) -> list[scheduling_pb2.SnapshotRunning]:
    return [running(f"busy{index}", f"n0.{index}", minutes=minutes, **asked) for index in range(2)]


WIDE = {"minutes": 5, "gpus": 4, "priority": 100}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_narrow_job_of_a_lower_class_waits_for_a_wide_one_and_reads_why(policy: str) -> None:
    found = ask(
        policy,
        running=half_busy(priority=200),
        pending=[waiting("wide", **WIDE), waiting("low", minutes=600)],
    )
    assert said(found) == {"wide": "RESERVED", "low": "KEPT_FOR_OTHER"}
    reason = found["wide"].reason
    assert reason.numbers["wait_ms"] == 10 * MINUTE_MS
    assert (reason.numbers["gpus_needed"], reason.numbers["gpus_kept"]) == (4, 2)
    assert "wide" in found["low"].reason.message


@for_each("steps_done", [0, 60, 540])
def test_what_is_done_at_the_instant_of_the_snapshot_brings_the_start_nearer(steps_done: int) -> None:
    found = ask(
        running=half_busy(priority=100, steps_done=steps_done),
        pending=[waiting("wide", **WIDE), waiting("low", minutes=600)],
    )
    assert found["wide"].reason.numbers["wait_ms"] == 10 * MINUTE_MS - steps_done * STEP_MS


def test_jobs_that_end_in_time_have_the_gpus_meanwhile() -> None:
    found = ask(
        running=half_busy(priority=100),
        pending=[waiting("wide", **WIDE), waiting("long", minutes=600), waiting("short", minutes=9)],
    )
    assert said(found) == {"wide": "RESERVED", "long": "KEPT_FOR_OTHER", "short": "start"}
    assert [part.gpu_id for part in found["short"].start.assignments] in (["n0.2"], ["n0.3"])


def test_where_no_end_is_known_the_hours_take_turns() -> None:
    for waited_ms, codes in (
        (KEPT_MS_MAX - 1, {"wide": "RESERVED_FOR_NOW", "low": "KEPT_FOR_OTHER"}),
        (KEPT_MS_MAX, {"wide": "NO_FREE_GPU", "low": "start"}),
    ):
        found = ask(
            running=half_busy(minutes=0, priority=100),
            pending=[waiting("wide", since_ms=NOW_MS - waited_ms, **WIDE), waiting("low", minutes=600)],
        )
        assert said(found) == codes


@for_each(
    "limit", [{"allowed_node_ids": ["n0"]}, {"excluded_node_ids": ["n1"]}, {"anti_affinity_group": "one-per-node"}]
)
def test_gpus_that_the_wide_job_may_not_use_are_not_kept_back_for_it(limit: dict[str, Any]) -> None:
    found = ask(
        widths=(4, 4),
        running=[*half_busy(priority=100), running("apart", "n1.0", minutes=600, anti_affinity_group="one-per-node")],
        pending=[waiting("wide", **WIDE, **limit), *(waiting(f"low{number}", minutes=600) for number in range(4))],
    )
    assert found["wide"].reason.code == "RESERVED"
    assert all(gpu_id.startswith("n0.") for gpu_id in found["wide"].reason.gpu_ids)
    starts = {part.gpu_id for one in found.values() for part in one.start.assignments}
    assert starts == {"n1.1", "n1.2", "n1.3"}


def test_a_later_tenant_leaves_the_gpus_to_the_wide_job_of_one_that_has_had_less() -> None:
    tenants = [scheduling_pb2.SnapshotTenant(tenant=name, used_gpu_ms=used) for name, used in (("a", 1), ("b", 10**9))]
    found = ask(
        tenants=tenants,
        running=half_busy(tenant="a"),
        pending=[waiting("wide", minutes=5, gpus=4, tenant="a"), waiting("other", minutes=600, tenant="b")],
    )
    assert said(found) == {"wide": "RESERVED", "other": "KEPT_FOR_OTHER"}


def test_with_one_class_and_no_tenants_the_policy_keeps_its_own_order() -> None:
    found = ask(
        "best_fit",
        running=half_busy(),
        pending=[waiting("wide", minutes=5, gpus=4), waiting("narrow", minutes=600)],
    )
    assert said(found)["narrow"] == "start"


@pytest.mark.parametrize("policy", ["fifo", "horus", "srtf", "tiresias"])
def test_asked_again_and_again_a_wide_job_starts_although_narrow_ones_never_cease(policy: str) -> None:
    """Every minute another narrow job arrives and one that runs may end: what Decide answers is carried out."""
    now_ms, number, holds = NOW_MS, 4, {f"n0.{index}": (f"busy{index}", NOW_MS, 1 + index) for index in range(4)}
    wide = waiting("wide", minutes=5, gpus=4, priority=100)
    queue: dict[str, int] = {}
    for _ in range(12):
        now_ms += MINUTE_MS
        holds = {gpu_id: row for gpu_id, row in holds.items() if now_ms < row[1] + row[2] * MINUTE_MS}
        queue[f"low{number}"], number = 20, number + 1
        rows = []
        for gpu_id, (name, started_ms, minutes) in holds.items():
            row = running(name, gpu_id, minutes=minutes, steps_done=(now_ms - started_ms) // 1_000)
            row.started_at_ms = started_ms
            rows.append(row)
        low = [waiting(name, minutes=minutes) for name, minutes in queue.items()]
        found = ask(policy, now_ms=now_ms, running=rows, pending=[wide, *low])
        if found["wide"].WhichOneof("action") == "start":
            return
        for name, one in found.items():
            for part in one.start.assignments:
                holds[part.gpu_id] = name, now_ms, queue.pop(name)
    raise AssertionError("the wide job never started")

"""A caller of Decide who gives up: work for nobody ends, and the next caller's turn comes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.records import JobPrediction
from scheduler_service.grpc_api.snapshots.decide import decide, deciding_thread
from scheduler_service.grpc_api.snapshots.snapshot_predictions import SnapshotPredictions

GIB = 2**30
WAITING_S = 60


def question(policy: str, *, jobs: int) -> scheduling_pb2.DecideRequest:
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    node = made.nodes.add(node_id="n", schedulable=True)
    for number in range(jobs):
        node.gpus.add(gpu_id=f"g{number}", device="NVIDIA A10", memory_bytes=24 * GIB, healthy=True)
        made.pending.add().job.MergeFrom(
            scheduling_pb2.SnapshotJob(
                job_id=f"j{number}",
                gpus=1,
                share=resources_pb2.SHARE_MODE_ANY,
                max_slowdown_ratio=5.0,
                steps_total=100,
                stated_memory_bytes=GIB,
                stated_utilization_ratio=0.3,
                stated_slowdown_ratio=0.1,
                stated_step_ms=10.0 + number,  # equal ones would be looked at once
            )
        )
    return scheduling_pb2.DecideRequest(policy=policy, snapshot=made)


@pytest.mark.parametrize("policy", ["horus", "sjf_bsbf", "ojpp"])
def test_a_decision_for_a_caller_who_left_ends_at_its_next_look(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, has_left = threading.Event(), threading.Event()
    looks_after: list[str] = []
    look = SnapshotPredictions.job

    def watched(store: SnapshotPredictions, key: str, device: str) -> JobPrediction | None:
        if len(store._stating) > 1:  # that of the caller who leaves
            begun.set()
            assert has_left.wait(WAITING_S)
            looks_after.append(key)
        return look(store, key, device)

    monkeypatch.setattr(SnapshotPredictions, "job", watched)

    async def main() -> scheduling_pb2.DecideResponse:
        thread = deciding_thread()
        first = asyncio.create_task(decide(question(policy, jobs=20), predictor=None, seconds_left=60, thread=thread))
        await asyncio.to_thread(begun.wait, WAITING_S)
        first.cancel()
        await asyncio.wait([first])
        has_left.set()
        return await decide(question(policy, jobs=1), predictor=None, seconds_left=60, thread=thread)

    answer = asyncio.run(main())
    assert [one.WhichOneof("action") for one in answer.decisions] == ["start"]
    assert len(looks_after) == 1

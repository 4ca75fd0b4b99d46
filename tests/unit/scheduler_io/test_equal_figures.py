"""Jobs of which the same figures are stated are equal to a policy: one is looked at for all of them."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.records import PairPrediction
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_predictions import SnapshotPredictions
from scheduler_service.grpc_api.snapshots.translate_snapshot import key_of_job
from tests.support.cases import for_each

GIB = 2**30


def stating(job_id: str, **figures: object) -> scheduling_pb2.SnapshotJob:
    stated = {
        "gpus": 1,
        "global_batch_size": 8,
        "stated_memory_bytes": 6 * GIB,
        "stated_utilization_ratio": 0.9,
        "stated_slowdown_ratio": 0.9,
        "stated_step_ms": 10.0,
        "max_slowdown_ratio": 0.1,
        "share": resources_pb2.SHARE_MODE_SAFE,
    }
    return scheduling_pb2.SnapshotJob(job_id=job_id, **(stated | figures))  # type: ignore[arg-type]


def looks_at_pairs(waiting: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often a pair is asked for while so many equal jobs wait for one GPU that another one holds."""
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    made.nodes.add(node_id="n", schedulable=True).gpus.add(
        gpu_id="g", device="A10", memory_bytes=24 * GIB, healthy=True
    )
    made.running.add(job=stating("r")).assignments.add(gpu_id="g")
    for number in range(waiting):
        made.pending.add(job=stating(f"p{number}"), submitted_at_ms=number)
    looks: list[str] = []
    look = SnapshotPredictions.pair

    def counted(store: SnapshotPredictions, victim_key: str, *rest: object) -> PairPrediction | None:
        looks.append(victim_key)
        return look(store, victim_key, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotPredictions, "pair", counted)
        request = scheduling_pb2.DecideRequest(policy="horus", snapshot=made)
        answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    assert [one.WhichOneof("action") for one in answer.decisions] == ["hold"] * waiting
    return len(looks)


def test_many_equal_jobs_cost_no_more_looks_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_at_pairs(50, monkeypatch) == looks_at_pairs(2, monkeypatch) > 0


@for_each(
    "figure",
    [
        {"stated_memory_bytes": 7 * GIB},
        {"stated_utilization_ratio": 0.8},
        {"stated_slowdown_ratio": 0.8},
        {"stated_slowdown_ratio": None},
        {"stated_step_ms": 11.0},
        {"global_batch_size": 16},
        {"gpus": 2},
        {"allowed_gpus": [1, 2]},
    ],
)
def test_a_job_that_differs_in_one_figure_is_another(figure: dict[str, object]) -> None:
    assert key_of_job(stating("a", **figure)) != key_of_job(stating("a"))


def test_names_limits_and_progress_make_no_difference_to_what_is_predicted() -> None:
    assert key_of_job(stating("a", tenant="x", steps_total=7, queue="q", priority=3)) == key_of_job(stating("b"))
    assert key_of_job(scheduling_pb2.SnapshotJob(job_id="a", gpus=1)) == ""

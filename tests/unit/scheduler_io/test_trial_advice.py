"""A snapshot in which nothing is known of two jobs together but both were observed alone: a trial is advised."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.lifecycle.trial_start import TRIAL_MS
from scheduler_service.grpc_api.jobs.job_requests import submitted
from scheduler_service.grpc_api.snapshots.decide import decide

GIB = 2**30
DEVICE = "NVIDIA A10"


def observed(key: str, *, level: resources_pb2.EstimateLevel.ValueType) -> scheduling_pb2.SnapshotJobPrediction:
    known = scheduling_pb2.SnapshotJobPrediction(
        job_key=key, device=DEVICE, utilization_ratio=0.4, level=level, in_domain=True
    )
    known.micro_batches.add(micro_batch_size=8, memory_bytes=GIB, memory_bytes_upper_99=2 * GIB)
    known.step_times.add(gpus=1, micro_batch_size=8, step_ms=100)
    return known


def decided(*, no_trial: bool = False, level: str = "OBSERVED") -> scheduling_pb2.Decision:
    """Decide about a job next to a running one, on one GPU."""
    snapshot = scheduling_pb2.Snapshot(now_ms=1_000)
    node = snapshot.nodes.add(node_id="n", schedulable=True)
    node.gpus.add(gpu_id="g0", device=DEVICE, memory_bytes=24 * GIB, healthy=True)
    jobs = [
        scheduling_pb2.SnapshotJob(
            job_id=name, job_key=f"key-{name}", gpus=1, global_batch_size=8, steps_total=1_000, max_slowdown_ratio=ratio
        )
        for name, ratio in (("there", 0.3), ("new", 0.4))
    ]
    jobs[1].no_trial = no_trial
    snapshot.running.add(job=jobs[0], attempt=1, assignments=[scheduling_pb2.Assignment(gpu_id="g0")])
    snapshot.pending.add(job=jobs[1])
    for name in ("there", "new"):
        known = resources_pb2.EstimateLevel.Value(f"ESTIMATE_LEVEL_{level}")
        snapshot.job_predictions.append(observed(f"key-{name}", level=known))
    request = scheduling_pb2.DecideRequest(policy="horus", snapshot=snapshot)
    return asyncio.run(decide(request, predictor=None, seconds_left=60)).decisions[0]


def test_a_trial_is_advised_with_its_bounds() -> None:
    decision = decided()
    assert decision.reason.code == "STARTS_ON_TRIAL"
    trial = decision.start.trial
    assert (trial.other_job_id, trial.trial_ms) == ("there", TRIAL_MS)
    assert (trial.max_slowdown_ratio, trial.other_max_slowdown_ratio) == (0.4, 0.3)
    assert decision.start.predicted_slowdown_ratio == pytest.approx(0.16)


@pytest.mark.parametrize("changes", [{"no_trial": True}, {"level": "GRAPH"}])
def test_none_is_advised_to_a_job_that_refuses_it_or_was_not_observed(changes: dict[str, object]) -> None:
    decision = decided(**changes)  # type: ignore[arg-type]
    assert decision.WhichOneof("action") == "hold"
    assert decision.reason.code == "PAIR_UNKNOWN"


def test_a_cluster_without_trials_lets_every_job_refuse_them() -> None:
    spec = scheduling_pb2.JobSpec(name="any")
    assert not submitted("job-1", spec).request.no_trial
    refusing = submitted("job-1", spec, has_trials=False)
    assert refusing.request.no_trial
    assert refusing.launch["no_trial"] is True
    assert not spec.no_trial

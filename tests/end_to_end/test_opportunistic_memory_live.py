"""Two jobs whose peaks of memory take turns on one GPU, on a running cluster: real agent, scheduler and reports."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from cotenant.v1 import prediction_pb2, resources_pb2
from tests.support import opportunistic_training
from tests.support.cases import sampled
from tests.support.fake_predictor import FakePredictor
from tests.support.opportunistic_training import HELD_BYTES, PEAK_BYTES, peak_file
from tests.support.policy_cluster import ENDLESS, PolicyCluster, policy_cluster

pytestmark = pytest.mark.timeout(600)


class PeakPredictor(FakePredictor):
    """Predicts for a twentieth of the time a peak that a device cannot hold twice."""

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        answer = super().PredictJob(request, context)
        answer.memory_states.CopyFrom(
            resources_pb2.MemoryStates(low_bytes=HELD_BYTES, extra_bytes=PEAK_BYTES - HELD_BYTES, high_state_ratio=0.05)
        )
        return answer


@pytest.mark.parametrize("goes_on_at_last", sampled([False, True], 1))
def test_the_newer_of_two_jobs_waits_for_the_peak_of_the_older_and_leaves_when_both_peak(
    tmp_path: Path, goes_on_at_last: bool
) -> None:
    """In `make test-all` also after its wait of 40 s, which the engine's own tests end by their clock in every run."""
    with (
        PeakPredictor(memory_bytes=PEAK_BYTES, utilization_ratio=0.2) as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor) as cluster,
    ):
        cluster.use("ojpp", "opportunistic_memory=true", "tau_max=0.04", 'compute_requirement="zero"')
        first, second = (training(cluster, name) for name in ("first", "second"))
        cluster.wait_for_more_steps(second)
        peak_file(tmp_path, first).touch()
        waiting = cluster.wait_until(second, lambda job: job.pause.reason.code == "PEAKS_NEAR", "it is paused")
        assert waiting.attempt == 1
        cluster.wait_for_more_steps(first)
        peak_file(tmp_path, first).unlink()
        assert cluster.wait_until(second, lambda job: not job.HasField("pause"), "it goes on").attempt == 1
        cluster.wait_for_more_steps(second)

        peak_file(tmp_path, second).touch()
        cluster.wait_for_more_steps(second)
        peak_file(tmp_path, first).touch()
        cluster.wait_for_reason(second, {"PEAKS_MET"})
        for job_id in (first, second):
            peak_file(tmp_path, job_id).unlink()
        if goes_on_at_last:
            cluster.client.cancel(first)
            cluster.wait_until(second, lambda job: job.attempt == 2, "its next attempt")
            cluster.wait_for_more_steps(second)
        assert [cluster.client.get(job_id).restarts for job_id in (first, second)] == [0, 0]
        steps = [int(line[2]) for line in cluster.journal(second) if line[0] == "step"]
        assert sorted(steps) == list(range(1, max(steps) + 1)), "no step is lost or made twice"


def training(cluster: PolicyCluster, name: str) -> str:
    command = [opportunistic_training.__file__, str(cluster.folder), str(ENDLESS), "40"]
    return cluster.submit(name, command=command, steps=ENDLESS, releases_memory=True)

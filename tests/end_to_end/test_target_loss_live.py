"""A job with a target loss on a running cluster: its end is foreseen while it runs, and its program ends there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import converging_training
from tests.support.fake_predictor import FakePredictor
from tests.support.policy_cluster import GRAPHS, PATIENCE_S, PolicyCluster, policy_cluster
from tests.support.scheduler_process import wait_until

pytestmark = pytest.mark.timeout(600)
TARGET_STEPS = 567
"""After so many steps the loss is 0.35."""


def test_a_job_ends_at_its_target_loss_which_was_foreseen(tmp_path: Path) -> None:
    with FakePredictor() as predictor, policy_cluster(tmp_path, policy="fifo", predictor=predictor) as cluster:
        job_id = cluster.client.submit(
            name="converging",
            command=[sys.executable, converging_training.__file__, "20"],
            graph_sha256=GRAPHS["one"],
            settings={"global_batch_size": 8},
            steps_total=0,
            target_loss=0.35,
            time_limit_ms=600_000,
        ).job_id
        wait_until(lambda: is_foreseen(cluster, job_id), what="an interval of the end", timeout_s=PATIENCE_S)
        end = cluster.client.get(job_id).training_end
        assert end.steps_lower <= TARGET_STEPS <= end.steps_upper
        done = cluster.wait(job_id, "FINISHED")
    assert done.steps_done == TARGET_STEPS
    assert done.reason.code == "FINISHED_WITH_TARGET"


def is_foreseen(cluster: PolicyCluster, job_id: str) -> bool:
    return cluster.client.get(job_id).training_end.reliable

"""Checkpoints that go from one node to another: two real agents without a common folder, and their scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.live_cluster import PATIENCE_S
from tests.support.scheduler_process import wait_until
from tests.support.two_nodes import TwoNodes, separate_nodes

pytestmark = pytest.mark.timeout(600)
STEPS = 120


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[TwoNodes]:
    with separate_nodes(tmp_path) as found:
        yield found


def test_a_job_of_a_drained_node_goes_on_from_its_checkpoint_on_another_one(cluster: TwoNodes) -> None:
    words = [sys.executable, journalled_training.__file__, str(cluster.folder), str(STEPS), "50"]
    job_id = cluster.submit(*words, gpus=1, ranks=0, across_nodes=False, steps_total=STEPS)
    wait_until(lambda: len(cluster.journal(job_id)) > 12, what="some steps", timeout_s=PATIENCE_S)
    first = cluster.client.get(job_id).node_id
    cluster.cotenant("nodes", "drain", first)

    def moved(job: scheduling_pb2.Job) -> bool:
        return job.attempt == 2 and job.node_id not in ("", first)

    cluster.wait_until(job_id, moved, "a start on the other node")
    finished = cluster.wait(job_id, "FINISHED")
    starts = [line for line in cluster.journal(job_id) if line[0] == "start"]
    steps = [int(line[2]) for line in cluster.journal(job_id) if line[0] == "step"]
    assert finished.steps_done == STEPS
    assert f"was fetched from node {first}" in cluster.cotenant("logs", job_id)
    assert int(starts[1][2]) >= journalled_training.CHECKPOINT_EVERY_STEPS
    assert steps == list(range(1, STEPS + 1)), "no step was lost, and none was done twice"

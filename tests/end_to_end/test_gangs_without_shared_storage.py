"""Gangs on two nodes that share no storage: their checkpoints go from agent to agent."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from examples.training import train_ddp
from tests.support import paced_gang
from tests.support.cases import sampled
from tests.support.fake_predictor import FakePredictor
from tests.support.gang_cluster import check_sums, environment_of
from tests.support.live_cluster import PATIENCE_S
from tests.support.scheduler_process import wait_until
from tests.support.two_nodes import TwoNodes, separate_nodes

pytestmark = pytest.mark.timeout(600)
STEPS = 40
CURVE_STEPS, STEP_MS, SLOW_STEP_MS, ENDLESS = 100, 250, 3_000, 1_000_000


@pytest.mark.parametrize("form", [(), ("sharded",)], ids=["of rank 0", "sharded"])
def test_a_gang_whose_rank_was_killed_goes_on_from_a_checkpoint_that_both_nodes_have(
    tmp_path: Path, form: tuple[str, ...]
) -> None:
    with separate_nodes(tmp_path) as cluster:
        job_id = cluster.witness(*form, steps=STEPS, step_ms=40)
        wait_until(lambda: len(cluster.journal(job_id, 1)) > 8, what="some steps", timeout_s=PATIENCE_S)
        [victim] = [pid for pid in cluster.rank_processes() if b"\0RANK=1\0" in environment_of(pid)]
        os.kill(victim, signal.SIGKILL)
        finished = cluster.wait(job_id, "FINISHED")
        assert (finished.restarts, finished.steps_done) == (1, STEPS)
        check_sums(cluster, job_id, steps=STEPS)
        first = finished.node_id
        assert f"was fetched from node {first}" in cluster.cotenant("logs", job_id, "--rank", "1")


def read_losses(cluster: TwoNodes, job: scheduling_pb2.Job) -> dict[int, float]:
    """What the first rank has printed of each step, over all attempts; no step was done twice."""
    requests = [
        scheduling_pb2.ReadJobLogRequest(job_id=job.job_id, attempt=attempt) for attempt in range(1, job.attempt + 1)
    ]
    logs = [
        b"".join(answer.chunk for answer in cluster.client.stub.ReadJobLog(request, timeout=60)).decode()
        for request in requests
    ]
    lines = re.findall(r"step (\d+)/\d+ loss (\S+)", "".join(logs))
    found = {int(step): float(loss) for step, loss in lines}
    assert len(found) == len(lines)
    return found


def submit(cluster: TwoNodes, step_ms: int, **fields: object) -> str:
    flags = ["--model", "transformer", "--dtype", "float64", "--batch-size", "8", "--log-every", "1"]
    words = [sys.executable, paced_gang.__file__, train_ddp.__name__, str(step_ms), *flags, "--steps", str(CURVE_STEPS)]
    # For the scheduler it has no end in sight: a change of its width pays.
    return cluster.submit(
        *words, steps_total=ENDLESS, share="SHARE_MODE_NEVER", graph_sha256="1" * 64,
        settings={"global_batch_size": 8}, **fields,
    )  # fmt: skip


def read_lives(folder: Path, job_id: str) -> dict[int, list[tuple[int, int]]]:
    """When the processes of each attempt were started and had ended, part by part, as their keepers noted."""
    found: dict[int, list[tuple[int, int]]] = {}
    for path in folder.glob(f"node-*/jobs/{job_id}.*/state.json"):
        state, end = (json.loads(path.with_name(name).read_text()) for name in ("state.json", "exit.json"))
        attempt = int(path.parent.name.split(".")[1])
        found.setdefault(attempt, []).append((state["started_wall_ms"], end["ended_wall_ms"]))
    return found


def wait_for_new_attempt(cluster: TwoNodes, job_id: str, *, after: int, ranks: int) -> None:
    """Wait until a later attempt than that, of so many ranks, has made two steps of its own."""

    def trains(steps: int) -> bool:
        job = cluster.client.get(job_id)
        is_running = job.phase == scheduling_pb2.JOB_PHASE_RUNNING
        return is_running and job.attempt > after and len(job.assignments) == ranks and job.steps_done >= steps

    wait_until(lambda: trains(0), what=f"{ranks} ranks after attempt {after}", timeout_s=PATIENCE_S)
    more = cluster.client.get(job_id).steps_done + 2
    wait_until(lambda: trains(more), what=f"steps of {ranks} ranks", timeout_s=PATIENCE_S)


def change_by_policies(cluster: TwoNodes, job_id: str) -> None:
    """Another job takes one of the two devices, and gives it back."""
    cluster.cotenant("policies", "use", "drf", "--set", "interval_ms=500")
    other = [sys.executable, "-c", "import time; time.sleep(3600)"]
    other_id = cluster.submit(*other, gpus=1, ranks=1, across_nodes=False)
    wait_for_new_attempt(cluster, job_id, after=3, ranks=1)
    cluster.client.cancel(other_id)
    wait_for_new_attempt(cluster, job_id, after=4, ranks=2)


@pytest.mark.parametrize("widths", sampled([[2, 1, 2], [2, 1, 2, 1, 2]], 1), ids=["by a drain", "by policies too"])
def test_two_ranks_one_on_another_node_and_two_again_train_as_one_rank_does_each_begun_beside_the_one_before(
    tmp_path: Path, widths: list[int]
) -> None:
    with FakePredictor() as predictor, separate_nodes(tmp_path, "--predictor", predictor.address) as cluster:
        cluster.cotenant("policies", "use", "elastic", "--set", "reshape_cost_ms=1000", "--set", "start_cost_ms=1000")
        job_id = submit(cluster, STEP_MS, allowed_gpus=[1, 2])
        wait_for_new_attempt(cluster, job_id, after=0, ranks=2)
        first = cluster.client.get(job_id).node_id
        cluster.cotenant("nodes", "drain", first)
        wait_for_new_attempt(cluster, job_id, after=1, ranks=1)
        assert cluster.client.get(job_id).node_id != first
        # However long the next attempts take to be prepared: a minute at most, while this one trains on.
        (tmp_path / f"{job_id}.step_ms").write_text(str(SLOW_STEP_MS))
        cluster.cotenant("nodes", "uncordon", first)
        wait_for_new_attempt(cluster, job_id, after=2, ranks=2)
        if len(widths) > 3:
            change_by_policies(cluster, job_id)
        (tmp_path / f"{job_id}.step_ms").write_text("0")
        finished = cluster.wait(job_id, "FINISHED")
        changing = read_losses(cluster, finished)
        lives = read_lives(tmp_path, job_id)
        assert (finished.restarts, [len(lives[attempt]) for attempt in sorted(lives)]) == (0, widths)
        # A drained node is left without preparation; what follows begins beside the attempt before, on all nodes.
        for attempt in range(3, len(widths) + 1):
            assert max(started for started, _ in lives[attempt]) < min(ended for _, ended in lives[attempt - 1])
        alone_id = submit(cluster, 0, gpus=1, ranks=1, across_nodes=False)
        alone = read_losses(cluster, cluster.wait(alone_id, "FINISHED"))
    assert set(changing) == set(alone) == set(range(1, CURVE_STEPS + 1))
    assert max(abs(changing[step] - loss) / abs(loss) for step, loss in alone.items()) <= 1e-12

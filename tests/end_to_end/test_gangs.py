"""Gangs on a running cluster: a real scheduler, a real agent with two stand-in devices, the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.agent import find_processes
from tests.support.gang_cluster import GangCluster, check_sums, environment_of
from tests.support.live_cluster import PATIENCE_S, SHORT_TIMES, live_cluster
from tests.support.scheduler_process import wait_until

STEPS = 40
pytestmark = pytest.mark.timeout(600)

# What the tutorials show; nothing in it knows of this cluster.
STRANGER = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 1))
for step in range(1, 13):
    model.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    print(f"step {step}/12 loss {loss.item():.4f}", flush=True)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "on local rank", os.environ["LOCAL_RANK"], flush=True)
dist.destroy_process_group()
"""
# One of the workers that torchrun starts, each in a session of its own.
WORKER = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], f"worker-{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}").touch()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangCluster]:
    arguments = ("--policy", "fifo", *SHORT_TIMES)
    with live_cluster(GangCluster, tmp_path_factory.mktemp("gangs"), ["agent"], arguments) as found:
        found.start_agents()
        yield found


def test_a_strangers_ddp_script_runs_unchanged_on_two_ranks(cluster: GangCluster) -> None:
    (cluster.folder / "stranger.py").write_text(STRANGER)
    submitted = cluster.cotenant("submit", "--ranks", "2", "--steps", "12", "--", sys.executable, "stranger.py")
    job_id = submitted.split()[0]
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.steps_done, len(finished.assignments)) == (12, 2)
    assert "rank 0 of 2 on local rank 0\n" in cluster.cotenant("logs", job_id)
    assert cluster.cotenant("logs", job_id, "--rank", "1", "--tail", "1") == "rank 1 of 2 on local rank 1\n"
    assert "2 processes, one per GPU" in cluster.cotenant("describe", job_id)


@pytest.mark.endurance
def test_workers_of_torchrun_end_with_their_job(cluster: GangCluster) -> None:
    """Workers in sessions of their own, which other launchers start too in every run (test_namespaces.py)."""
    (cluster.folder / "worker.py").write_text(WORKER)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    job_id = cluster.submit(torchrun, "--nproc-per-node=2", "worker.py", str(cluster.folder), gpus=2)
    for rank in (0, 1):
        wait_until((cluster.folder / f"worker-{rank}-of-2").exists, what=f"worker {rank}", timeout_s=PATIENCE_S)
    cluster.client.stub.CancelJob(scheduling_pb2.CancelJobRequest(job_id=job_id))
    cluster.wait(job_id, "CANCELLED")
    wait_until(lambda: not find_processes("worker.py", str(cluster.folder)), what="no worker is left")


def test_a_gang_whose_rank_is_killed_starts_again_from_the_shards_of_all(cluster: GangCluster) -> None:
    """With checkpoints of rank 0 too: test_killed_gangs.py, which takes minutes."""
    job_id = cluster.witness("sharded", steps=STEPS, step_ms=40)
    pace = cluster.slow_down(job_id)
    wait_until(lambda: len(cluster.journal(job_id, 1)) > 8, what="some steps", timeout_s=PATIENCE_S)
    [victim] = [pid for pid in cluster.rank_processes() if b"\0RANK=1\0" in environment_of(pid)]
    os.kill(victim, signal.SIGKILL)
    pace.unlink()
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.restarts, finished.steps_done) == (1, STEPS)
    check_sums(cluster, job_id, steps=STEPS)


def test_a_paused_gang_stands_still_as_a_whole_and_goes_on(cluster: GangCluster) -> None:
    job_id = cluster.witness(steps=60, step_ms=40)
    pace = cluster.slow_down(job_id)
    wait_until(lambda: len(cluster.journal(job_id, 0)) > 3, what="some steps", timeout_s=PATIENCE_S)
    cluster.cotenant("pause", job_id, "--seconds", "50")
    wait_until(lambda: cluster.client.get(job_id).HasField("pause"), what="it is paused", timeout_s=PATIENCE_S)
    pids = cluster.rank_processes()
    assert [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids] == ["T", "T"]
    cluster.cotenant("resume", job_id)
    pace.unlink()
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.attempt, finished.steps_done) == (1, 60)

"""One gang on two nodes: a real scheduler, two real agents, the command line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.gang_cluster import check_sums, environment_of
from tests.support.live_cluster import PATIENCE_S
from tests.support.scheduler_process import wait_until
from tests.support.two_nodes import separate_nodes, two_nodes

STEPS = 40
pytestmark = pytest.mark.timeout(600)


def test_a_gang_across_two_nodes_survives_a_killed_rank_with_the_shards_of_both(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as cluster:
        job_id = cluster.witness("sharded", steps=STEPS, step_ms=40)
        wait_until(lambda: len(cluster.journal(job_id, 1)) > 8, what="some steps", timeout_s=PATIENCE_S)
        ranks = {pid: environment_of(pid) for pid in cluster.rank_processes()}
        [victim] = [pid for pid, variables in ranks.items() if b"\0RANK=1\0" in variables]
        for variable in (b"GROUP_RANK=1", b"LOCAL_RANK=0", b"WORLD_SIZE=2", b"LOCAL_WORLD_SIZE=1"):
            assert b"\0" + variable + b"\0" in ranks[victim]
        os.kill(victim, signal.SIGKILL)
        finished = cluster.wait(job_id, "FINISHED")
        assert (finished.restarts, finished.steps_done) == (1, STEPS)
        check_sums(cluster, job_id, steps=STEPS)


def test_servers_on_both_nodes_end_and_restart_with_their_gang(tmp_path: Path) -> None:
    """Each process writes a part of the checkpoint, and the nodes have no folder in common."""
    with separate_nodes(tmp_path) as cluster:
        job_id = cluster.witness("sharded", steps=STEPS, step_ms=40, servers={"count": 3, "blocks": {"weight": 7}})
        wait_until(lambda: len(cluster.journal(job_id, 4)) > 8, what="some steps", timeout_s=PATIENCE_S)
        processes = {pid: environment_of(pid) for pid in cluster.rank_processes()}
        [victim] = [pid for pid, variables in processes.items() if b"\0RANK=3\0" in variables]
        for variable in (b"COTENANT_ROLE=server", b"ROLE_RANK=1", b"GROUP_RANK=1", b"LOCAL_RANK=1", b"WORLD_SIZE=5"):
            assert b"\0" + variable + b"\0" in processes[victim]
        os.kill(victim, signal.SIGKILL)
        finished = cluster.wait(job_id, "FINISHED")
        assert (finished.restarts, finished.steps_done, finished.servers) == (1, STEPS, 3)
        check_sums(cluster, job_id, steps=STEPS, processes=5)


SERVED = """
import os, pathlib, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
print("I am", os.environ["COTENANT_ROLE"], os.environ["ROLE_RANK"], flush=True)
(folder / f"{rank}.up").write_text(str(os.getpid()))
while rank != "0" and not (folder / f"{rank}.ends").exists():
    time.sleep(0.02)
"""


def test_servers_that_never_end_serve_the_ranks_of_other_nodes_until_these_are_done(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(SERVED)
    with two_nodes(tmp_path) as cluster:
        flags = ("--ranks", "2", "--servers", "2", "--across-nodes", "--no-capture", "--workdir", str(tmp_path))
        job_id = cluster.cotenant("submit", *flags, "--", sys.executable, "served.py", str(tmp_path)).split()[0]
        servers = [tmp_path / f"{rank}.up" for rank in (2, 3)]
        wait_until(lambda: all(path.exists() for path in servers), what="both servers", timeout_s=PATIENCE_S)
        told = "the second node is told that the first one's rank has ended"
        wait_until(lambda: [*tmp_path.glob("node-*/**/jobs/*/ended_parts.json")], what=told, timeout_s=PATIENCE_S)
        assert not [*tmp_path.glob("node-*/**/jobs/*/exit.json")]
        (tmp_path / "1.ends").touch()
        finished = cluster.wait(job_id, "FINISHED")
        assert (finished.restarts, finished.attempt) == (0, 1)
        for server in (0, 1):
            assert f"I am server {server}\n" in cluster.cotenant("logs", job_id, "--server", str(server))


WORKER = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank = f"rank {dist.get_rank()} of {dist.get_world_size()} on node {os.environ['GROUP_RANK']}"
print(f"{rank}: {total.item():g}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.endurance
def test_torchrun_meets_across_two_nodes_and_the_log_of_each_is_read(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    with two_nodes(tmp_path) as cluster:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        submitted = cluster.cotenant(
            "submit", "--no-capture", "--gpus", "2", "--across-nodes", "--", torchrun, "worker.py"
        )
        job_id = submitted.split()[0]
        cluster.wait(job_id, "FINISHED")
        for rank in (0, 1):
            log = cluster.cotenant("logs", job_id, "--rank", str(rank))
            assert f"rank {rank} of 2 on node {rank}: 2\n" in log


@pytest.mark.endurance
def test_a_gang_for_nodes_that_neither_share_nor_send_checkpoints_is_refused_at_once(
    tmp_path: Path,
) -> None:
    with two_nodes(tmp_path, flags=("--transfer-limit-bytes", "0"), has_one_folder=False) as cluster:
        words = ("submit", "--ranks", "2", "--across-nodes", "--", sys.executable, "worker.py")
        refusal = cluster.cotenant(*words, status=4)
        assert "neither shares checkpoints with other nodes nor sends them" in refusal
        assert "--shared-checkpoints" in refusal

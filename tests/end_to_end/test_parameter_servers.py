"""Parameter servers and slow ranks on a running cluster: real programs, two stand-in devices, the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import gang_training, undisturbed_agent
from tests.support.agent import REPOSITORY
from tests.support.gang_cluster import GangCluster, environment_of
from tests.support.live_cluster import PATIENCE_S, SHORT_TIMES, live_cluster
from tests.support.scheduler_process import wait_until
from tests.support.two_nodes import NODES, TwoNodes

pytestmark = pytest.mark.timeout(600)
STEP_MS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangCluster]:
    folder = tmp_path_factory.mktemp("servers")
    with live_cluster(GangCluster, folder, ["agent"], ("--policy", "fifo", *SHORT_TIMES)) as found:
        found.agent_program = undisturbed_agent.__name__
        found.start_agents()
        yield found


def process_of(cluster: GangCluster, rank: int) -> int:
    [pid] = [pid for pid in cluster.rank_processes() if f"\0RANK={rank}\0".encode() in environment_of(pid)]
    return pid


def sum_of(cluster: GangCluster, job_id: str) -> str:
    """What rank 0 came to in the end."""
    [line] = [line for line in cluster.journal(job_id, 0) if line[0] == "end"]
    return line[-1]


def history(cluster: GangCluster, job_id: str, kind: str) -> list[str]:
    answer = cluster.client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id))
    return [line.message for line in answer.history if line.kind == kind]


@pytest.mark.endurance
def test_a_training_with_a_parameter_server_runs_to_its_end(cluster: GangCluster) -> None:
    """In every run its processes train without a cluster (tests/unit/examples), and a witness with a server here."""
    words = ("-m", "examples.training.train_with_servers", "--model", "cnn", "--steps", "6", "--log-every", "1")
    flags = ("--ranks", "2", "--servers", "1", "--steps", "6", "--env", f"PYTHONPATH={REPOSITORY}", "--no-capture")
    job_id = cluster.cotenant("submit", *flags, "--", sys.executable, *words).split()[0]
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.steps_done, finished.servers, len(finished.assignments)) == (6, 1, 2)
    assert cluster.cotenant("logs", job_id, "--server", "0").startswith("holds 118994 parameters in 8 part(s)")
    assert "1 parameter server" in cluster.cotenant("describe", job_id)


def test_a_server_that_is_killed_ends_its_gang_which_goes_on_from_its_checkpoint(cluster: GangCluster) -> None:
    servers = {"count": 1, "blocks": {"weight": 7}}
    job_id = cluster.witness(steps=40, step_ms=STEP_MS, servers=servers)
    pace = cluster.slow_down(job_id)
    wait_until(lambda: len(cluster.journal(job_id, 2)) > 8, what="some steps of the server", timeout_s=PATIENCE_S)
    victim = process_of(cluster, 2)
    variables = dict(one.partition(b"=")[::2] for one in environment_of(victim).split(b"\0"))
    assignment = json.loads(Path(os.fsdecode(variables[b"COTENANT_PARAMETER_ASSIGNMENT"])).read_text())
    assert assignment["blocks"] == {"weight": [{"server": 0, "offset": 0, "parameters": 7}]}
    os.kill(victim, signal.SIGKILL)
    pace.unlink()
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.attempt, finished.steps_done) == (2, 40)
    starts = [line for line in cluster.journal(job_id, 2) if line[0] == "start"]
    assert (len(starts), int(starts[-1][2]) >= gang_training.CHECKPOINT_EVERY_STEPS) == (2, True)
    assert sum_of(cluster, job_id) == str(40 * (1 + 2 + 3))


def measured_servers(cluster: GangCluster, job_id: str) -> set[int]:
    """Numbers of servers with which step times of a job are known; a look each second, which leaves its cores alone."""
    time.sleep(1)
    known = [one for prediction in cluster.client.get(job_id).predictions for one in prediction.step_times]
    return {one.servers for one in known if one.measurements}


@pytest.mark.endurance
def test_optimus_measures_a_range_of_servers_across_nodes_too(tmp_path: Path) -> None:
    with live_cluster(TwoNodes, tmp_path, NODES, ("--policy", "optimus", *SHORT_TIMES)) as cluster:
        cluster.agent_program = undisturbed_agent.__name__
        cluster.start_agents()
        job_id = cluster.witness(steps=5_000, step_ms=STEP_MS, servers={"count": 1, "allowed_counts": [1, 2]})
        wait_until(lambda: measured_servers(cluster, job_id) == {1, 2}, what="both numbers", timeout_s=PATIENCE_S)
        assert history(cluster, job_id, "move")[0].endswith("TRIES_SERVERS")
        cluster.cotenant("cancel", job_id)


def test_optimus_measures_a_range_of_servers_and_goes_on_with_its_choice(cluster: GangCluster) -> None:
    cluster.cotenant("policies", "use", "optimus")
    job_id = cluster.witness(steps=5_000, step_ms=STEP_MS, servers={"count": 1, "allowed_counts": [1, 2]})
    try:
        wait_until(lambda: measured_servers(cluster, job_id) == {1, 2}, what="both numbers", timeout_s=PATIENCE_S)
        moves = history(cluster, job_id, "move")
        assert moves[0].endswith("TRIES_SERVERS")
        text = " ".join(cluster.cotenant("describe", job_id).split())
        assert "on 2 GPUs with 1 server" in text
        assert "on 2 GPUs with 2 servers" in text
        assert "2 parameter servers" in text or "RESHAPED_BY_GAIN" in " ".join(moves)
    finally:
        cluster.cotenant("cancel", job_id)
        cluster.cotenant("policies", "use", "fifo")


@contextmanager
def slowed_down(pid: int) -> Iterator[None]:
    """Let a process stand still most of the time, like one whose core is busy with others."""
    is_over = threading.Event()

    def stop_and_go() -> None:
        with_process = True
        while with_process and not is_over.wait(0.01):
            try:
                os.kill(pid, signal.SIGSTOP)
                is_over.wait(0.3)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                with_process = False

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_rank_that_is_slowed_down_is_replaced_and_nothing_is_lost(cluster: GangCluster) -> None:
    job_id = cluster.witness(
        steps=120, step_ms=STEP_MS, straggler_ratio=2.0, straggler_window_ms=2_000, no_preparation=True
    )
    wait_until(lambda: len(cluster.journal(job_id, 1)) > 5, what="some steps", timeout_s=PATIENCE_S)
    with slowed_down(process_of(cluster, 1)):
        wait_until(lambda: bool(history(cluster, job_id, "straggler")), what="a replacement", timeout_s=PATIENCE_S)
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.attempt, finished.stragglers_replaced, finished.restarts) == (2, 1, 0)
    [line] = history(cluster, job_id, "straggler")
    assert line.startswith("rank 1 took ")
    assert sum_of(cluster, job_id) == str(120 * (1 + 2))

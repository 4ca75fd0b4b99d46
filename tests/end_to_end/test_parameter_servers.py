"""Parameter servers and slow ranks on a running cluster: real programs, two stand-in devices, the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.end_to_end import test_gangs
from tests.end_to_end.test_gangs import PATIENCE_S, LiveCluster, environment_of
from tests.support import gang_training
from tests.support.agent import REPOSITORY
from tests.support.scheduler_process import wait_until

pytestmark = pytest.mark.timeout(300)
cluster = test_gangs.cluster
STEP_MS = 40


def submit_witness(cluster: LiveCluster, steps: int, **fields: object) -> str:
    """Submit a gang of two that writes down what it does, in all of its processes."""
    words = [sys.executable, gang_training.__file__, str(cluster.folder), str(steps), str(STEP_MS)]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    return cluster.submit(*words, gpus=2, ranks=2, steps_total=steps, environment=environment, **fields)


def process_of(cluster: LiveCluster, rank: int) -> int:
    [pid] = [pid for pid in cluster.rank_processes() if f"\0RANK={rank}\0".encode() in environment_of(pid)]
    return pid


def sum_of(cluster: LiveCluster, job_id: str) -> str:
    """What rank 0 came to in the end."""
    [line] = [line for line in cluster.journal(job_id, 0) if line[0] == "end"]
    return line[-1]


def history(cluster: LiveCluster, job_id: str, kind: str) -> list[str]:
    answer = cluster.client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id))
    return [line.message for line in answer.history if line.kind == kind]


def test_a_training_with_a_parameter_server_runs_to_its_end(cluster: LiveCluster) -> None:
    words = ("-m", "examples.training.train_with_servers", "--model", "cnn", "--steps", "6", "--log-every", "1")
    flags = ("--ranks", "2", "--servers", "1", "--steps", "6", "--env", f"PYTHONPATH={REPOSITORY}", "--no-capture")
    job_id = cluster.cotenant("submit", *flags, "--", sys.executable, *words).split()[0]
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.steps_done, finished.servers, len(finished.assignments)) == (6, 1, 2)
    assert cluster.cotenant("logs", job_id, "--server", "0").startswith("holds 118994 parameters in 8 part(s)")
    assert "1 parameter server(s)" in cluster.cotenant("describe", job_id)


def test_a_server_that_is_killed_ends_its_gang_which_goes_on_from_its_checkpoint(cluster: LiveCluster) -> None:
    servers = {"count": 1, "blocks": {"weight": 7}}
    job_id = submit_witness(cluster, 40, servers=servers)
    wait_until(lambda: len(cluster.journal(job_id, 2)) > 8, what="some steps of the server", timeout_s=PATIENCE_S)
    victim = process_of(cluster, 2)
    variables = dict(one.partition(b"=")[::2] for one in environment_of(victim).split(b"\0"))
    assignment = json.loads(Path(os.fsdecode(variables[b"COTENANT_PARAMETER_ASSIGNMENT"])).read_text())
    assert assignment["blocks"] == {"weight": [{"server": 0, "offset": 0, "parameters": 7}]}
    os.kill(victim, signal.SIGKILL)
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.attempt, finished.steps_done) == (2, 40)
    starts = [line for line in cluster.journal(job_id, 2) if line[0] == "start"]
    assert (len(starts), int(starts[-1][2]) >= gang_training.CHECKPOINT_EVERY_STEPS) == (2, True)
    assert sum_of(cluster, job_id) == str(40 * (1 + 2 + 3))


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


def test_a_rank_that_is_slowed_down_is_replaced_and_nothing_is_lost(cluster: LiveCluster) -> None:
    job_id = submit_witness(cluster, 120, straggler_ratio=2.0, straggler_window_ms=2_000)
    wait_until(lambda: len(cluster.journal(job_id, 1)) > 5, what="some steps", timeout_s=PATIENCE_S)
    with slowed_down(process_of(cluster, 1)):
        wait_until(lambda: bool(history(cluster, job_id, "straggler")), what="a replacement", timeout_s=PATIENCE_S)
    finished = cluster.wait(job_id, "FINISHED")
    assert (finished.attempt, finished.stragglers_replaced, finished.restarts) == (2, 1, 0)
    [line] = history(cluster, job_id, "straggler")
    assert line.startswith("rank 1 took ")
    assert sum_of(cluster, job_id) == str(120 * (1 + 2))

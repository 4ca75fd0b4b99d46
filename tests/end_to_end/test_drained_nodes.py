"""An operator drains a node on which a job runs, and what a time limit and a stall do: two real agents, real jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.agent import AgentProcess, end_jobs, prepare_baseline
from tests.support.real_cluster import COTENANT
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

PATIENCE_S = 120.0
STEPS = 120
STALL_MS = 3_000
pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

SILENT_ONCE = """
import os, time
from cotenant import job
for step in range(job.resume_step() + 1, 13):
    time.sleep(0.05)
    job.report(step)
    if step % 4 == 0:
        path = job.checkpoint_directory() / f"step-{step}"
        path.write_text("")
        job.checkpointed(path, step)
    if step == 8 and os.environ["COTENANT_ATTEMPT"] == "1":
        time.sleep(3600)
"""


class TwoNodes:
    """A scheduler, two nodes with one device each and one folder of checkpoints, and the command line."""

    def __init__(self, client: SchedulerClient, scheduler: SchedulerProcess, folder: Path) -> None:
        self.client = client
        self._scheduler = scheduler
        self.folder = folder

    def cotenant(self, *arguments: str) -> str:
        environment = {**os.environ, "COTENANT_SCHEDULER": self._scheduler.address, "COTENANT_PREDICTOR": "127.0.0.1:9"}
        done = subprocess.run(
            [*COTENANT, *arguments],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: str) -> str:
        return self.cotenant("submit", "--no-capture", "-o", "name", *words).strip()

    def wait_until(self, job_id: str, accept: Callable[[scheduling_pb2.Job], bool], what: str) -> scheduling_pb2.Job:
        def look() -> scheduling_pb2.Job | None:
            job = self.client.get(job_id)
            return job if accept(job) else None

        return wait_until(look, what=what, timeout_s=PATIENCE_S)

    def node_states(self) -> dict[str, tuple[bool, bool]]:
        """Node -> (takes jobs, is drained)."""
        found = json.loads(self.cotenant("nodes", "-o", "json"))["nodes"]
        return {node["node_id"]: (node.get("schedulable", False), node.get("draining", False)) for node in found}

    def train(self) -> tuple[str, str]:
        """Start a training and wait for its first steps; returns its id and its node."""
        script = [sys.executable, journalled_training.__file__, str(self.folder), str(STEPS), "60"]
        job_id = self.submit("--steps", str(STEPS), "--", *script)
        return job_id, self.wait_until(job_id, lambda job: job.steps_done > 6, "its first steps").node_id

    def journal(self, job_id: str) -> list[list[str]]:
        return [line.split() for line in (self.folder / f"{job_id}.journal").read_text().splitlines()]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("nodes")
    times = ("--progress-interval-ms", "100", "--heartbeat-ms", "300", "--stall-ms", str(STALL_MS))
    arguments = ("--predictor", "", "--policy", "fifo", *times)
    cores = sorted(os.sched_getaffinity(0))
    with SchedulerProcess(folder, arguments=arguments) as scheduler, SchedulerClient(scheduler.address) as client:
        agents = []
        for place in range(2):
            state = folder / f"state-{place}"
            prepare_baseline(state)
            rules = ("--allow-directory", str(folder), "--allow-any-command", "--no-calibrate")
            names = ("--node-id", f"node-{place}", "--checkpoint-dir", str(folder / "checkpoints"))
            devices = ("--standin-cores", str(cores[place % len(cores)]))
            agents.append(AgentProcess(state, scheduler, *names, *rules, devices=devices))
        try:
            two = TwoNodes(client, scheduler, folder)
            wait_until(lambda: len(two.node_states()) == 2, what="both nodes have joined", timeout_s=PATIENCE_S)
            yield two
        finally:
            for agent in agents:
                agent.kill()
            end_jobs(folder)


def test_a_job_leaves_a_drained_node_with_a_checkpoint_and_goes_on_on_the_other(nodes: TwoNodes) -> None:
    job_id, first = nodes.train()
    (other,) = {"node-0", "node-1"} - {first}
    nodes.cotenant("nodes", "drain", first)
    nodes.wait_until(job_id, lambda job: job.node_id == other and job.attempt == 2, f"it goes on on {other}")
    assert nodes.node_states() == {first: (False, True), other: (True, False)}
    # A job that comes now does not start on the drained node either.
    waiting = nodes.submit("--steps", "1", "--", sys.executable, "-c", "pass")
    done = nodes.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.restarts) == (STEPS, 0)
    begins = [int(words[2]) for words in nodes.journal(job_id) if words[0] == "start"]
    left_at = max(int(words[2]) for words in nodes.journal(job_id) if words[0] == "step" and words[1] == "1")
    assert begins[0] == 0
    assert begins[1:] == [left_at], "the second attempt begins where the first one has left"
    assert nodes.client.wait_for_phase(waiting, "FINISHED", timeout_s=PATIENCE_S).node_id == other
    nodes.cotenant("nodes", "uncordon", first)
    assert nodes.node_states() == {first: (True, False), other: (True, False)}
    assert {nodes.train()[1], nodes.train()[1]} == {first, other}


def test_a_job_is_stopped_at_its_time_limit_with_a_checkpoint(nodes: TwoNodes) -> None:
    script = [sys.executable, journalled_training.__file__, str(nodes.folder), "5000", "50"]
    job_id = nodes.submit("--steps", "5000", "--time-limit", "3s", "--priority", "high", "--", *script)
    failed = nodes.client.wait_for_phase(job_id, "FAILED", timeout_s=PATIENCE_S)
    assert failed.reason.code == "TIME_LIMIT"
    last = max(int(words[2]) for words in nodes.journal(job_id) if words[0] == "step")
    kept = [int(path.name.removeprefix("step-")) for path in nodes.folder.glob(f"checkpoints/**/{job_id}*/**/step-*")]
    assert max(kept) == last > 0
    assert "TIME_LIMIT" in nodes.cotenant("describe", job_id)


def test_a_job_that_falls_silent_is_seen_and_restarted_from_its_checkpoint(nodes: TwoNodes) -> None:
    job_id = nodes.submit("--steps", "12", "--on-stall", "restart", "--", sys.executable, "-c", SILENT_ONCE)
    done = nodes.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.attempt, done.restarts) == (12, 2, 1)
    assert "stalled" in nodes.cotenant("explain", job_id)

"""An operator drains a node on which a job runs, and what a time limit and a stall do: two real agents, real jobs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import journalled_training
from tests.support.live_cluster import PATIENCE_S, SHORT_TIMES, LiveCluster, live_cluster
from tests.support.scheduler_process import wait_until

STATES = ("state-0", "state-1")
STEPS, ENDLESS = 200, 100_000
STALL_MS = 5_000
pytestmark = pytest.mark.timeout(600)

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


class DrainedNodes(LiveCluster):
    """Two nodes with one device each and one folder of checkpoints."""

    def start_agents(self) -> None:
        """Start both and wait until they have joined."""
        cores = sorted(os.sched_getaffinity(0))
        for place, name in enumerate(STATES):
            rules = ("--allow-directory", str(self.folder), "--allow-any-command", "--no-calibrate")
            names = ("--node-id", f"node-{place}", "--checkpoint-dir", str(self.folder / "checkpoints"))
            devices = ("--standin-cores", str(cores[place % len(cores)]))
            self.start_agent(name, *names, *rules, devices=devices)
        wait_until(lambda: len(self.node_states()) == 2, what="both nodes have joined", timeout_s=PATIENCE_S)

    def submit(self, *words: str) -> str:
        return self.cotenant("submit", "--no-capture", "-o", "name", *words).strip()

    def node_states(self) -> dict[str, tuple[bool, bool]]:
        """Node -> (takes jobs, is drained)."""
        found = json.loads(self.cotenant("nodes", "-o", "json"))["nodes"]
        return {node["node_id"]: (node.get("schedulable", False), node.get("draining", False)) for node in found}

    def train(self, steps: int = STEPS) -> tuple[str, str]:
        """Start a training and wait for its first steps; returns its id and its node."""
        script = [sys.executable, journalled_training.__file__, str(self.folder), str(steps), "20"]
        job_id = self.submit("--steps", str(steps), "--", *script)
        self.slow_down(job_id)
        return job_id, self.wait_until(job_id, lambda job: job.steps_done > 6, "its first steps").node_id


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrainedNodes]:
    arguments = ("--predictor", "", "--policy", "fifo", *SHORT_TIMES, "--stall-ms", str(STALL_MS))
    with live_cluster(DrainedNodes, tmp_path_factory.mktemp("nodes"), STATES, arguments) as two:
        two.start_agents()
        yield two


def test_a_job_leaves_a_drained_node_with_a_checkpoint_and_goes_on_on_the_other(nodes: DrainedNodes) -> None:
    job_id, first = nodes.train()
    (other,) = {"node-0", "node-1"} - {first}
    nodes.cotenant("nodes", "drain", first)
    nodes.wait_until(job_id, lambda job: job.node_id == other and job.attempt == 2, f"it goes on on {other}")
    nodes.slow_down(job_id).unlink()
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
    long_jobs = dict(nodes.train(ENDLESS) for _ in range(2))
    assert set(long_jobs.values()) == {first, other}
    for long_job in long_jobs:
        nodes.client.cancel(long_job)


def test_a_running_job_is_held_with_a_checkpoint_and_goes_on_from_it(nodes: DrainedNodes) -> None:
    job_id, _ = nodes.train()
    nodes.cotenant("hold", "--stop", job_id)
    held = nodes.wait_until(job_id, lambda job: job.phase == scheduling_pb2.JOB_PHASE_PENDING, "it has left its GPU")
    assert (held.reason.code, list(held.assignments)) == ("HELD", [])
    nodes.cotenant("release", job_id)
    nodes.slow_down(job_id).unlink()
    done = nodes.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.attempt, done.restarts) == (STEPS, 2, 0)
    journal = nodes.journal(job_id)
    (_, first_fence, first_step), (_, _, second_step) = (words for words in journal if words[0] == "start")
    left_at = max(int(step) for kind, fence, step in journal if (kind, fence) == ("step", first_fence))
    assert (int(first_step), int(second_step)) == (0, left_at)


def test_a_job_is_stopped_at_its_time_limit_with_a_checkpoint(nodes: DrainedNodes) -> None:
    script = [sys.executable, journalled_training.__file__, str(nodes.folder), "5000", "50"]
    job_id = nodes.submit("--steps", "5000", "--time-limit", "10s", "--priority", "high", "--", *script)
    failed = nodes.client.wait_for_phase(job_id, "FAILED", timeout_s=PATIENCE_S)
    assert failed.reason.code == "TIME_LIMIT"
    last = max(int(words[2]) for words in nodes.journal(job_id) if words[0] == "step")
    kept = [int(path.name.removeprefix("step-")) for path in nodes.folder.glob(f"checkpoints/**/{job_id}*/**/step-*")]
    assert max(kept) == last > 0
    assert "TIME_LIMIT" in nodes.cotenant("describe", job_id)


def test_a_job_that_falls_silent_is_seen_and_restarted_from_its_checkpoint(nodes: DrainedNodes) -> None:
    job_id = nodes.submit("--steps", "12", "--on-stall", "restart", "--", sys.executable, "-c", SILENT_ONCE)
    done = nodes.client.wait_for_phase(job_id, "FINISHED", timeout_s=PATIENCE_S)
    assert (done.steps_done, done.attempt, done.restarts) == (12, 2, 1)
    assert "stalled" in nodes.cotenant("explain", job_id)

"""Two scripts that were never measured share the only device before the first of them ends: real processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support import undisturbed_agent
from tests.support.agent import REPOSITORY
from tests.support.live_cluster import SHORT_TIMES, LiveCluster, live_cluster
from tests.support.real_cluster import real_cluster
from tests.support.scheduler_process import wait_until

STEPS = 100_000
PATIENCE_S = 240.0
LOOK_EVERY_S = 5.0
"""A look is a program; one after the other they would be foreign load, beside which no window counts."""
SHARED_CODES = ("STARTS_ON_TRIAL", "ON_TRIAL", "TRIAL_PASSED")

BAR = """
import argparse, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--wait", type=float, default=0.04)
options = parser.parse_args()
began = time.monotonic()
for step in range(1, options.steps + 1):
    time.sleep(options.wait)  # the next record is far away
    sum(number * number for number in range(20_000))
    pace = step / (time.monotonic() - began)
    sys.stderr.write(f"\\r{step}/{options.steps} [00:01<01:00, {pace:.2f}it/s]")
    sys.stderr.flush()
"""
EPOCHS = """
import random, sys, time
weights, batches = [0.0] * 500, 25
time.sleep(1.5)  # the table is read
for epoch in range(100_000):
    for batch in range(batches):
        time.sleep(0.03)
        weights = [0.99 * weight + random.gauss(0, 0.01) for weight in weights]
        print(f"Epoch {epoch} [{batch + 1}/{batches}] loss: {sum(weights):.3f}", flush=True)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    """One stand-in device, the default policy, and no predictor."""
    arguments = ("--predictor", "", *SHORT_TIMES)
    with live_cluster(LiveCluster, tmp_path, ["agent"], arguments) as found:
        found.agent_program, found.patience_s = undisturbed_agent.__name__, PATIENCE_S
        found.start_agent("agent", "--allow-directory", str(REPOSITORY), "--allow-directory", str(tmp_path))
        yield found


def script(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [sys.executable, str(folder / name)]


def history(cluster: LiveCluster, job_id: str, kind: str) -> list[str]:
    story = cluster.client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id), timeout=90).history
    return [line.message for line in story if line.kind == kind]


@pytest.mark.timeout(600)
def test_the_first_script_stands_still_once_while_the_second_is_measured_and_then_both_train(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    submit = cluster.client.submit
    command = [*script(tmp_path, "bar.py", BAR), "--steps", str(STEPS)]
    first = submit(name="bar", command=command, steps_total=STEPS, working_directory=str(tmp_path)).job_id
    cluster.wait_until(first, lambda job: 0 < job.memory_reserved_bytes < 2**30, "it was measured")
    command = script(tmp_path, "epochs.py", EPOCHS)
    second = submit(name="epochs", command=command, steps_total=STEPS, working_directory=str(tmp_path)).job_id
    shared = cluster.wait_until(second, lambda job: job.reason.code in SHARED_CODES, "both share on trial")
    assert [other.job_id for other in shared.co_located_jobs] == [first]
    assert history(cluster, second, "trial")[:3] == [
        f"{second} starts next to {first} to be measured",
        f"{second} is measured while {first} is paused",
        f"shares with {first} on trial",
    ]
    there = cluster.wait_until(first, lambda job: not job.HasField("pause"), "the first goes on")
    assert (there.attempt, there.restarts, len(history(cluster, first, "paused"))) == (1, 0, 1)
    before = there.steps_done, shared.steps_done
    for job_id, steps in zip((first, second), before, strict=True):
        cluster.wait_until(job_id, lambda job, steps=steps: job.steps_done > steps, "both make steps")  # type: ignore[misc]
    assert cluster.client.get(second).attempt == 1


@pytest.mark.alone
@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_two_scripts_that_up_has_never_seen_share_its_only_device_before_the_first_has_ended(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with real_cluster(tmp_path / "state", "--allow-directory", str(tmp_path)) as running:

        def submitted(command: list[str]) -> str:
            flags = ["--workdir", str(tmp_path), "--no-capture", "--steps", str(STEPS), "-o", "name"]
            done = running.cotenant("submit", *flags, "--", *command)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        def described(job_id: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(running.cotenant("describe", job_id, "-o", "json").stdout)
            job: dict[str, Any] = found.get("job", found)
            return job

        def wait_for(job_id: str, accept: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
            def look() -> dict[str, Any] | None:
                time.sleep(LOOK_EVERY_S)
                job = described(job_id)
                return job if accept(job) else None

            return wait_until(look, what=what, timeout_s=PATIENCE_S)

        first = submitted([*script(tmp_path, "bar.py", BAR), "--steps", str(STEPS)])
        second = submitted(script(tmp_path, "epochs.py", EPOCHS))
        wait_for(second, lambda job: job["reason"]["code"] in SHARED_CODES, "both share on trial")
        jobs = [described(first), described(second)]
        assert [job["phase"] for job in jobs] == ["JOB_PHASE_RUNNING"] * 2
        assert [int(job["attempt"]) for job in jobs] == [1, 1]
        explained = running.cotenant("explain", second).stdout
        assert f"is measured while {first} is paused" in explained

"""Early initialisation on a running cluster: the next attempt of a job is built while the present one trains."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.agent import REPOSITORY, find_early_processes
from tests.support.cases import sampled
from tests.support.fake_predictor import FakePredictor
from tests.support.policy_cluster import ENDLESS, PATIENCE_S, PolicyCluster, policy_cluster
from tests.support.scheduler_process import wait_until

pytestmark = pytest.mark.timeout(600)
TRAINING = str(REPOSITORY / "tests" / "support" / "prepared_training.py")


def wide_job(cluster: PolicyCluster) -> str:
    """Submit a job that has both GPUs and gives one of them up for the next job."""
    cluster.use("drf", "interval_ms=500")
    command = [TRAINING, str(cluster.folder), str(ENDLESS), "40"]
    job_id = cluster.submit(
        "wide", command=command, steps=ENDLESS, gpus=2, allowed_gpus=[1, 2], share="SHARE_MODE_NEVER"
    )
    assert len(cluster.wait(job_id, "RUNNING").assignments) == 2
    wait_for_steps(cluster, job_id, 5)
    return job_id


def wait_for_steps(cluster: PolicyCluster, job_id: str, more: int) -> None:
    before = cluster.client.get(job_id).steps_done
    wait_until(lambda: cluster.client.get(job_id).steps_done > before + more, what="steps", timeout_s=PATIENCE_S)


def check_journal(cluster: PolicyCluster, job_id: str) -> list[list[str]]:
    """Return the journal of a job that never ran twice and has left no step out."""
    lines = cluster.journal(job_id)
    assert not [line for line in lines if line[0] == "twice"]
    steps = [int(line[2]) for line in lines if line[0] == "step"]
    assert sorted(set(steps)) == list(range(1, max(steps) + 1))
    return lines


def test_a_reshaped_job_trains_until_its_next_attempt_is_built_and_no_step_is_made_twice(tmp_path: Path) -> None:
    with FakePredictor() as predictor, policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster:
        first = wide_job(cluster)
        second = cluster.witness("narrow", steps=10, share="SHARE_MODE_NEVER")
        cluster.wait(second, "FINISHED")
        wait_for_steps(cluster, first, 5)
        assert cluster.client.get(first).restarts == 0
        lines = check_journal(cluster, first)
        fences = list(dict.fromkeys(line[1] for line in lines if line[0] == "start"))
        assert len(fences) >= 2
        old_steps = [at for at, line in enumerate(lines) if line[:2] == ["step", fences[0]]]
        built, started = lines.index(["built", fences[1]]), [line[:2] for line in lines].index(["start", fences[1]])
        assert old_steps[0] < built < old_steps[-1] < started
        assert lines[started][2] == lines[old_steps[-1]][2], "it goes on from the step that the other one stored"


@pytest.mark.parametrize("how", sampled(["the scheduler is killed", "killed", "cancelled", "its shim is killed"], 2))
def test_what_goes_wrong_while_it_is_built_leaves_the_job_training_and_nothing_behind(tmp_path: Path, how: str) -> None:
    """Who of a node is killed is tried in every run with an agent alone (test_agent_prepares_jobs.py)."""
    with FakePredictor() as predictor, policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster:
        first = wide_job(cluster)
        # Only where it goes on to its end is it waited for.
        (tmp_path / "build_ms").write_text("6000" if how == "the scheduler is killed" else "100000")
        cluster.witness("narrow", steps=ENDLESS, share="SHARE_MODE_NEVER")
        wait_until(lambda: find_early_processes(tmp_path), what="a preparation", timeout_s=PATIENCE_S)
        (early,) = find_early_processes(tmp_path)
        wait_for_steps(cluster, first, 10)
        if how == "cancelled":
            cluster.client.cancel(first)
            cluster.wait(first, "CANCELLED")
        elif how == "the scheduler is killed":
            cluster.scheduler.restart()
        else:
            os.kill(early if how == "killed" else parent_of(early), signal.SIGKILL)
        if how == "the scheduler is killed":
            wait_until(lambda: cluster.client.get(first).attempt == 2, what="the move", timeout_s=PATIENCE_S)
        else:
            wait_until(lambda: not Path(f"/proc/{early}").exists(), what="its end", timeout_s=PATIENCE_S)
        if how != "cancelled":
            (tmp_path / "build_ms").unlink()
            wait_for_steps(cluster, first, 20)
            assert cluster.client.get(first).restarts == 0
        check_journal(cluster, first)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

"""Policies on a running cluster: a real scheduler and a real agent; only the predictor's answers are made up."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.agent import REPOSITORY
from tests.support.fake_predictor import MIB, FakePredictor
from tests.support.loaded_programs import run_program
from tests.support.policy_cluster import ENDLESS, GRAPHS, PATIENCE_S, policy_cluster
from tests.support.scheduler_process import wait_until

pytestmark = pytest.mark.timeout(600)
LOSS_LINE = re.compile(r"step (\d+)/\d+ loss (\S+)")


def curve(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in LOSS_LINE.findall(text)}


def test_sjf_bsbf_shares_a_gpu_with_gradient_accumulation_and_the_loss_stays_the_same(tmp_path: Path) -> None:
    """1,080 MiB are left next to the first job; the second one needs 1,200 MiB with 8 samples at once, 840 with 4."""
    program, flags = "examples.training.train", ["--model", "mlp", "--dtype", "float64", "--log-every", "1"]
    flags += ["--steps", "12", "--batch-size", "8"]
    straight = run_program(program, flags, folder=REPOSITORY, environment=os.environ, timeout_s=PATIENCE_S)
    with (
        FakePredictor(memory_bytes=400 * MIB, sample_bytes=75 * MIB, step_ms=500.0) as predictor,
        policy_cluster(tmp_path, policy="sjf_bsbf", predictor=predictor) as cluster,
    ):
        first = cluster.witness("partner", steps=ENDLESS, graph_sha256=GRAPHS["two"], memory_bytes=968 * MIB)
        cluster.wait(first, "RUNNING")
        second = cluster.submit("accumulating", command=["-m", program, *flags], steps=12)
        finished = cluster.wait(second, "FINISHED")
        assert finished.micro_batch_size == 4
        assert finished.steps_done == 12
        assert cluster.client.get(first).attempt == 1
        shared = curve(cluster.log(second))
    alone = curve(straight.stdout)
    assert shared.keys() == alone.keys() == set(range(1, 13))
    assert max(abs(shared[step] - alone[step]) / alone[step] for step in alone) <= 1e-12
    assert shared != alone, "sums in another order differ in their last digit: were the micro-batches used at all?"


def test_a_switch_to_ojpp_lets_jobs_that_wait_for_data_share_and_disturbs_no_job(tmp_path: Path) -> None:
    """Each is predicted to keep nine tenths of the GPU busy; compute_requirement zero looks at memory and slowdown."""
    with (
        FakePredictor(utilization_ratio=0.9, memory_bytes=200 * MIB, slowdown_ratio=0.02) as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor) as cluster,
    ):
        steady = cluster.witness("waiting-for-data", steps=ENDLESS, step_ms=100)
        cluster.wait(steady, "RUNNING")
        others = [cluster.witness(f"waiting-too-{index}", steps=20, step_ms=50) for index in range(2)]
        cluster.wait_for_reason(others[0], {"NO_FREE_GPU"})
        cluster.use("ojpp")
        cluster.wait_for_reason(others[0], {"UTILIZATION_TOO_HIGH"})
        cluster.use("ojpp", 'compute_requirement="zero"')
        for job_id in others:
            assert cluster.wait(job_id, "FINISHED").attempt == 1
            done = [int(line[2]) for line in cluster.journal(job_id) if line[0] == "step"]
            assert done == list(range(1, 21))
        undisturbed = cluster.client.get(steady)
        assert (undisturbed.phase, undisturbed.attempt) == (scheduling_pb2.JOB_PHASE_RUNNING, 1)
        policies = cluster.client.stub.ListPolicies(scheduling_pb2.ListPoliciesRequest(), timeout=90).policies
        assert [policy.name for policy in policies if policy.active] == ["ojpp"]


def test_a_policy_that_does_not_exist_changes_nothing(tmp_path: Path) -> None:
    with FakePredictor() as predictor, policy_cluster(tmp_path, policy="fifo", predictor=predictor) as cluster:
        job_id = cluster.witness("steady", steps=20)
        pace = cluster.slow_down(job_id)
        cluster.wait(job_id, "RUNNING")
        refused = cluster.run("policies", "use", "ojpp", "--set", "theta_max=-1")
        assert refused.returncode != 0
        assert "must not be negative" in refused.stderr
        pace.unlink()
        assert cluster.wait(job_id, "FINISHED").attempt == 1


@pytest.mark.endurance
def test_a_running_job_is_reshaped_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """DRF gives the first job both GPUs, and takes one back when a second job comes.

    In every run elastic does so below, and DRF where the next attempt is prepared (test_prepared_moves.py).
    """
    with (
        FakePredictor() as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        cluster.use("drf", "interval_ms=500")
        first = cluster.witness("wide", steps=ENDLESS, gpus=2, allowed_gpus=[1, 2], share="SHARE_MODE_NEVER")
        assert len(cluster.wait(first, "RUNNING").assignments) == 2
        wait_until(lambda: cluster.client.get(first).steps_done > 5, what="some steps", timeout_s=PATIENCE_S)
        second = cluster.witness("narrow", steps=10, share="SHARE_MODE_NEVER")
        cluster.wait(second, "FINISHED")
        before = cluster.client.get(first).steps_done
        wait_until(lambda: cluster.client.get(first).steps_done > before + 5, what="more steps", timeout_s=PATIENCE_S)
        moved = cluster.client.get(first)
        assert (moved.attempt >= 2, moved.restarts) == (True, 0)
        lines = cluster.journal(first)
        assert not [line for line in lines if line[0] == "twice"]
        starts = [int(line[2]) for line in lines if line[0] == "start"]
        assert starts[0] == 0
        assert all(start > 5 for start in starts[1:])
        steps = [int(line[2]) for line in lines if line[0] == "step"]
        assert sorted(set(steps)) == list(range(1, max(steps) + 1))


def test_elastic_knows_what_more_gpus_would_give_and_reshapes_by_it(tmp_path: Path) -> None:
    """A job starts on both GPUs, makes room for a second one, and has both again when that has ended."""
    with (
        FakePredictor() as predictor,
        policy_cluster(tmp_path, policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        cluster.use("elastic", "reshape_cost_ms=1000", "start_cost_ms=1000")
        first = cluster.witness("wide", steps=ENDLESS, allowed_gpus=[1, 2], share="SHARE_MODE_NEVER")
        assert len(cluster.wait(first, "RUNNING").assignments) == 2
        wait_until(lambda: cluster.client.get(first).steps_done > 5, what="some steps", timeout_s=PATIENCE_S)
        second = cluster.witness("narrow", steps=20, share="SHARE_MODE_NEVER")
        pace = cluster.slow_down(second)
        cluster.wait(second, "RUNNING")
        assert len(cluster.client.get(first).assignments) == 1
        pace.unlink()
        cluster.wait(second, "FINISHED")
        wait_until(lambda: len(cluster.client.get(first).assignments) == 2, what="growth", timeout_s=PATIENCE_S)
        before = cluster.client.get(first).steps_done
        wait_until(lambda: cluster.client.get(first).steps_done > before + 5, what="more steps", timeout_s=PATIENCE_S)
        moved = cluster.client.get(first)
        assert (moved.attempt >= 3, moved.restarts) == (True, 0)
        starts = [int(line[2]) for line in cluster.journal(first) if line[0] == "start"]
        assert all(start > 5 for start in starts[1:])
        assert not [line for line in cluster.journal(first) if line[0] == "twice"]

"""Every policy where machines die, GPUs straggle and kinds of GPUs differ: every job ends, and no law is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cotenant_simulator.run.records import NodeFailures, OverheadCosts, RunResult
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.simulated_runs import drawn, ends_s, run, trace_job, trace_of

WORKLOAD = {
    "jobs": 24,
    "arrival": {"mean_s": 30.0},
    "classes": [{"step_ms": 200.0, "gpus": [1, 2, 3], "mean_s": 200.0, "batch": 12}],
}
FAILURES = NodeFailures(mean_up_ms=900_000, repair_ms=60_000)
STRAGGLING = {"n00000.1": 3.0, "n00001.0": 1.5}
TWO_KINDS = """
[[nodes]]
count = 2
gpus = 4
device = "old"
[[nodes]]
count = 1
gpus = 2
device = "new"
speed_ratio = 4.0
gpu_memory_gib = 32
"""


@pytest.fixture(name="two_kinds")
def _two_kinds(tmp_path: Path) -> Cluster:
    file = tmp_path / "cluster.toml"
    file.write_text(TWO_KINDS, encoding="utf-8")
    return read_cluster(str(file), device="gpu")


def _run(
    policy: str, cluster: Cluster | str, *, straggles: bool = False, failures: NodeFailures | None = None
) -> RunResult:
    trace = drawn(seed=7, **WORKLOAD)
    speeds = cluster.speeds if isinstance(cluster, Cluster) else {}
    truth = replace(trace.truth, speeds=speeds, straggling=STRAGGLING if straggles else {})
    return run(
        replace(trace, truth=truth),
        cluster=cluster,
        policy=policy,
        charges=OverheadCosts(),
        failures=failures or NodeFailures(),
        seed=7,
    )


@for_each("policy", sorted(POLICIES))
def test_every_job_ends_where_machines_die(policy: str) -> None:
    result = _run(policy, "3x4", failures=FAILURES)
    assert result.unfinished == 0
    assert max(job.attempts for job in result.jobs) > 1


@for_each("policy", sorted(POLICIES))
def test_every_job_ends_where_gpus_straggle(policy: str) -> None:
    assert _run(policy, "2x4", straggles=True).unfinished == 0


@for_each("policy", sorted(POLICIES))
def test_every_job_ends_on_two_kinds_of_gpus(policy: str, two_kinds: Cluster) -> None:
    result = _run(policy, two_kinds)
    assert result.unfinished == 0
    assert result.rejected_decisions == 0


@for_each("policy", sorted(POLICIES))
def test_every_job_ends_where_all_of_it_comes_together(policy: str, two_kinds: Cluster) -> None:
    assert _run(policy, two_kinds, straggles=True, failures=FAILURES).unfinished == 0


def test_a_straggling_gpu_holds_up_its_whole_gang_and_no_other_job() -> None:
    jobs = (trace_job("gang", gpus=2, seconds=100), trace_job("single", at_s=1, seconds=100))
    result = run(trace_of(*jobs, straggling={"n00000.1": 3.0}), cluster="1x3")
    assert ends_s(result) == {"gang": 300.0, "single": 101.0}


def test_a_straggling_gpu_shows_in_the_slowdown_of_its_job() -> None:
    (job,) = run(trace_of(trace_job("job", seconds=100), straggling={"n00000.0": 1.5})).jobs
    assert job.slowdown_ratio == pytest.approx(0.5)

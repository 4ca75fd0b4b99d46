"""SideCar's workload on measured step times, and the rows beside the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import elastic
from cotenant_simulator.truth.kinds import EVERY_DEVICE
from tests.support.shared_data import shared_data


@pytest.fixture
def curves() -> elastic.Curves:
    return elastic.read_curves(shared_data("traces", "pollux", "profiles"))


def test_jobs_come_within_the_stated_time_and_have_their_length(curves: elastic.Curves) -> None:
    trace = elastic.draw_workload(1, curves)
    assert len(trace.jobs) == 40
    assert 0 < trace.jobs[0].submitted_at_ms <= trace.jobs[-1].submitted_at_ms <= 11_000_000
    for job in trace.jobs:
        kind = trace.truth.kinds[job.request.key, EVERY_DEVICE]
        hours = kind.step_ms(gpus=1) * job.request.steps_total / elastic.HOUR_MS
        assert 0.49 < hours < 3.01
        assert set(job.request.allowed_gpus) == set(kind.step_ms_by_gpus)


def test_the_paper_s_policies_all_finish_and_default_never_changes_a_job(curves: elastic.Curves) -> None:
    trace = elastic.draw_workload(0, curves)
    found = {policy: elastic.run(trace, policy, seed=0) for policy in elastic.POLICIES}
    assert found["kubernetes_default"].overhead_percent == 0.0
    assert found["elastic"].overhead_percent < found["termination_elastic"].overhead_percent


def test_step_times_are_read_by_placement(tmp_path: Path) -> None:
    lines = ["application,placement,local_batch_size,step_time_s", "a,1,8,0.4", "a,1,4,0.2", "a,44,4,0.1", "a,11,4,9"]
    (tmp_path / "placements.csv").write_text("\n".join(lines), encoding="utf-8")
    assert elastic.read_curves(tmp_path) == {("a", 1): ([4.0, 8.0], [0.2, 0.4]), ("a", 8): ([4.0], [0.1])}


def outcome(jct_h: float) -> elastic.Outcome:
    return elastic.Outcome(jct_h=jct_h, makespan_h=2 * jct_h, queueing_h=jct_h, overhead_percent=5.0)


def test_reductions_are_relative_to_the_other_policy() -> None:
    found = {
        "elastic": [outcome(1.0)],
        "termination_elastic": [outcome(1.25)],
        "kubernetes_default": [outcome(2.0)],
    }
    rows = {str(row["setting"]): row for row in elastic.rows_of(found, "text")}
    assert rows["costs of text: jct_reduction, elastic below: kubernetes_default, %"]["ours"] == 50.0
    assert rows["costs of text: makespan_reduction, elastic below: termination_elastic, %"]["ours"] == 20.0
    assert rows["costs of text: mean wait before the first GPUs, h"]["ratio"] == 1.0

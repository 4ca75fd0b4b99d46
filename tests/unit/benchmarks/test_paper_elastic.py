"""SideCar's workload on measured step times, and the rows next to the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import elastic_causes, elastic_figures, elastic_runs
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob
from tests.support.shared_data import shared_data


@pytest.fixture
def curves() -> elastic_runs.Curves:
    return elastic_runs.read_curves(shared_data("traces", "pollux", "profiles"))


def test_jobs_come_within_the_stated_time_and_have_their_length(curves: elastic_runs.Curves) -> None:
    trace = elastic_runs.draw_workload(1, curves)
    assert len(trace.jobs) == 40
    assert 0 < trace.jobs[0].submitted_at_ms <= trace.jobs[-1].submitted_at_ms <= 11_000_000
    for job in trace.jobs:
        kind = trace.truth.kinds[job.request.key, EVERY_DEVICE]
        hours = kind.step_ms(gpus=1) * job.request.steps_total / elastic_runs.HOUR_MS
        assert 0.49 < hours < 3.01
        assert set(job.request.allowed_gpus) == set(kind.step_ms_by_gpus)


def test_jobs_of_half_the_length_come_at_the_same_times(curves: elastic_runs.Curves) -> None:
    whole, half = (elastic_runs.draw_workload(1, curves, length_ratio=ratio) for ratio in (1.0, 0.5))
    assert [job.submitted_at_ms for job in whole.jobs] == [job.submitted_at_ms for job in half.jobs]
    for long, short in zip(whole.jobs, half.jobs, strict=True):
        assert short.request.steps_total == pytest.approx(long.request.steps_total / 2, abs=1)


def test_the_paper_s_policies_all_finish_and_default_never_changes_a_job(curves: elastic_runs.Curves) -> None:
    trace = elastic_runs.draw_workload(0, curves)
    changes = {policy: elastic_runs.Changes() for policy in elastic_runs.POLICIES}
    found = {
        policy: elastic_runs.outcome_of(elastic_runs.run_workload(trace, policy, seed=0, changes=changes[policy]))
        for policy in elastic_runs.POLICIES
    }
    assert found["kubernetes_default"].overhead_percent == 0.0
    assert found["elastic"].overhead_percent < found["termination_elastic"].overhead_percent
    assert (changes["kubernetes_default"].added, changes["kubernetes_default"].removed) == (0, 0)
    assert changes["termination_elastic"].added > 0
    assert changes["termination_elastic"].removed == 0
    assert changes["elastic"].removed > 0


def test_step_times_are_read_by_placement(tmp_path: Path) -> None:
    lines = ["application,placement,local_batch_size,step_time_s", "a,1,8,0.4", "a,1,4,0.2", "a,44,4,0.1", "a,11,4,9"]
    (tmp_path / "placements.csv").write_text("\n".join(lines), encoding="utf-8")
    assert elastic_runs.read_curves(tmp_path) == {("a", 1): ([4.0, 8.0], [0.2, 0.4]), ("a", 8): ([4.0], [0.1])}


def test_the_default_scheduler_of_the_case_study_ends_when_the_text_says() -> None:
    """Its two times gave the file its lengths, so they must come out; the others are results."""
    rows = {str(row["setting"]): row for row in elastic_figures.case_study({}, 1)}
    for job, end_s in ((1, 633.0), (2, 1249.0)):
        row = rows[f"end_of_job_{job}, case study, II-C, s: kubernetes_default"]
        assert row["ours"] == pytest.approx(end_s, abs=0.2)
    assert rows["makespan, case study, II-C"]["ratio"] == 1.0


def outcome(jct_h: float) -> elastic_runs.Outcome:
    return elastic_runs.Outcome(jct_h=jct_h, makespan_h=2 * jct_h, queueing_h=jct_h, overhead_percent=5.0)


def test_reductions_are_relative_to_the_other_policy() -> None:
    found = {
        "elastic": [outcome(1.0)],
        "termination_elastic": [outcome(1.25)],
        "kubernetes_default": [outcome(2.0)],
    }
    places = ["Fig. 6a", "Fig. 6b", "Figs. 7 and 8"]
    rows = {str(row["setting"]): row for row in elastic_runs.rows_of(found, "text", places)}
    assert rows["text: jct_reduction, elastic below: kubernetes_default, %"]["ours"] == 50.0
    assert rows["text: makespan_reduction, elastic below: termination_elastic, %"]["ours"] == 20.0
    assert rows["text: mean wait before the first GPUs, h"]["ratio"] == 1.0


def test_one_gpu_at_a_time_keeps_the_known_speeds_and_lies_between_them() -> None:
    request = elastic_runs.elastic_request("job", "key", (1, 2, 4), batch=8, steps_total=10)
    kind = Kind(step_ms_by_gpus={1: 100.0, 2: 60.0, 4: 40.0}, batch=8)
    trace = Trace(
        format="t",
        jobs=[TraceJob(submitted_at_ms=0, request=request)],
        truth=GroundTruth(kinds={("key", EVERY_DEVICE): kind}),
    )
    changed = elastic_causes.one_by_one(trace)
    step_ms = changed.truth.kinds["key", EVERY_DEVICE].step_ms_by_gpus
    assert step_ms == pytest.approx({1: 100.0, 2: 60.0, 3: 48.0, 4: 40.0})
    assert changed.jobs[0].request.allowed_gpus == (1, 2, 3, 4)
    scaled = elastic_causes.with_speedups(trace, {1: 1.0, 2: 2.0, 4: 2.5})
    assert scaled.truth.kinds["key", EVERY_DEVICE].step_ms_by_gpus == {1: 100.0, 2: 50.0, 4: 40.0}


def one_job_trace(*submitted_s: float) -> Trace:
    """Jobs of 10 minutes on one GPU; on two they take 6 minutes, on four 4."""
    kind = Kind(step_ms_by_gpus={1: 100.0, 2: 60.0, 4: 40.0}, batch=8)
    requests = [
        elastic_runs.elastic_request(f"job {number}", "key", (1, 2, 4), batch=8, steps_total=6_000)
        for number in range(len(submitted_s))
    ]
    pairs = zip(submitted_s, requests, strict=True)
    jobs = [TraceJob(submitted_at_ms=round(1_000 * at_s), request=request) for at_s, request in pairs]
    return Trace(format="t", jobs=jobs, truth=GroundTruth(kinds={("key", EVERY_DEVICE): kind}))


def test_the_least_makespan_is_the_last_job_s_or_that_of_all_work_together() -> None:
    """Alone a job needs 4 minutes; 32 that come at once need 32 x 10 GPU-minutes of 16 GPUs: 20 minutes."""
    assert elastic_causes.least_makespan_h(one_job_trace(30.0)) == pytest.approx(4 / 60)
    assert elastic_causes.least_makespan_h(one_job_trace(0.0, 3_600.0)) == pytest.approx(64 / 60)
    assert elastic_causes.least_makespan_h(one_job_trace(*[0.0] * 32)) == pytest.approx(20 / 60)


def test_no_schedule_beats_the_least_makespan_and_dearer_changes_cost_termination_more(
    curves: elastic_runs.Curves,
) -> None:
    trace = elastic_runs.draw_workload(2, curves, length_ratio=0.7)
    least_h = elastic_causes.least_makespan_h(trace)
    ends_h = [
        elastic_runs.outcome_of(
            elastic_runs.run_workload(trace, policy, seed=2, cost_ratio=cost_ratio, is_told=False)
        ).makespan_h
        for policy, cost_ratio in (("elastic", 1.0), ("termination_elastic", 1.0), ("termination_elastic", 4.0))
    ]
    assert least_h < ends_h[0] < ends_h[1] < ends_h[2]

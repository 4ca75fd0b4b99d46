"""Horus' tables: multiway co-locations by two rules, and the minute that its pab spends on every job."""

from __future__ import annotations

import pytest

from benchmarks.papers import horus
from benchmarks.papers.colocation_limits import least_gpu_h, with_least_memory
from benchmarks.papers.colocation_workloads import cluster_of, draw_testbed, settings_of, with_summed_crowds
from benchmarks.papers.horus import PROFILED_PAB, main, run
from benchmarks.papers.summed_utilization import SummedUtilization

FEW = {**settings_of("testbed"), "jobs": 3}


def test_summed_multiway_slowdowns_leave_jobs_and_pairs_as_they_were() -> None:
    pairwise = draw_testbed(FEW, "W-Small", 0)
    summed = with_summed_crowds(pairwise, FEW)
    assert summed.jobs == pairwise.jobs
    victim, other = (job.request.key for job in pairwise.jobs[:2])
    co_located = [truth.colocated_slowdown_ratio(victim, [other], "gpu") for truth in (pairwise.truth, summed.truth)]
    assert co_located[0] == co_located[1] > 0
    totals = [truth.colocated_slowdown_ratio(victim, [victim] * 3, "gpu") for truth in (pairwise.truth, summed.truth)]
    utilization = 4 * float(victim.partition("/")[0])
    assert totals[0] == pytest.approx(3 * pairwise.truth.colocated_slowdown_ratio(victim, [victim], "gpu"))
    assert totals[1] == pytest.approx(0.25 * utilization**2 if utilization > 1 else 0.25 * utilization)


def test_a_profiled_pab_holds_every_job_up_for_a_minute() -> None:
    trace, cluster = draw_testbed(FEW, "W-Small", 0), cluster_of(FEW)
    plain, profiled = (run(trace, cluster, name, seed=0).run_min for name in ("pab", PROFILED_PAB))
    assert profiled - plain == pytest.approx(1.0)


def test_the_printed_law_is_asked_of_the_testbed_only() -> None:
    law = SummedUtilization(**FEW["printed_slowdown"])
    assert (law.slowdown_ratio(1.0), law.slowdown_ratio(2.0)) == (0.5, 2.0)
    assert main(1, ["simulation", "dense"], ["printed"])["rows"] == []


def test_the_least_gpu_time_of_two_equal_jobs_is_that_of_the_pair_where_it_is_faster() -> None:
    """Two jobs of an hour each: together both take 1 + slowdown hours, apart one each."""
    trace = draw_testbed({**FEW, "jobs": 2, "utilizations": [0.5], "memories_gib": [2.0]}, "W-Small", 0)
    alone_h = sum(job.request.steps_total for job in trace.jobs) / 3_600
    for slowdown, expected in ((0.5, 1.5 / 2), (1.5, 1.0)):
        settings = {**FEW, "slowdown": {"linear": slowdown, "quadratic": slowdown}}
        assert least_gpu_h(trace, settings, 2) == pytest.approx(expected * alone_h)
        assert least_gpu_h(trace, settings, 1) == pytest.approx(alone_h)
    apart = with_least_memory(trace, 4.5)
    assert least_gpu_h(apart, FEW, 2) == pytest.approx(alone_h)


@pytest.mark.parametrize("policy", ["obp", "horus"])
def test_no_policy_takes_less_than_the_least_gpu_time(policy: str) -> None:
    settings = {**settings_of("testbed"), "jobs": 40}
    trace = with_least_memory(with_summed_crowds(draw_testbed(settings, "W-Large", 3), settings), 2.7)
    outcome = run(trace, cluster_of(settings), policy, seed=3)
    assert outcome.held_gpu_h > least_gpu_h(trace, settings, 2)


@pytest.mark.endurance
def test_partners_print_their_gpu_time_next_to_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horus, "PATTERNS", ("W-Small",))
    monkeypatch.setattr(horus, "LEAST_MEMORY_GIB", {"two fit on a GPU": 2.7})
    rows = main(1, ["partners"], ["summed"])["rows"]
    assert isinstance(rows, list)
    settings = [str(row["setting"]) for row in rows]
    assert settings[3] == "W-Small, two fit on a GPU, GPU time, the least, 4 per GPU over obp"
    least = {setting: row["ours"] for setting, row in zip(settings, rows, strict=True) if "the least" in setting}
    assert all(0.5 < ratio < 1.01 for ratio in least.values())
    assert main(1, ["partners"], ["pairwise"])["rows"] == []

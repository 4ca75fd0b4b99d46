"""Horus' tables: crowds by two truths, and the minute that its pab spends on every job."""

from __future__ import annotations

import pytest

from benchmarks.papers.colocation_workloads import cluster_of, draw_testbed, settings_of, with_summed_crowds
from benchmarks.papers.horus import PROFILED_PAB, main, run
from cotenant_simulator.truth.crowds import SummedUtilization

FEW = {**settings_of("testbed"), "jobs": 3}


def test_summed_crowds_leave_jobs_and_pairs_as_they_were() -> None:
    pairwise = draw_testbed(FEW, "W-Small", 0)
    summed = with_summed_crowds(pairwise, FEW)
    assert summed.jobs == pairwise.jobs
    victim, other = (job.request.key for job in pairwise.jobs[:2])
    beside = [truth.slowdown_beside_ratio(victim, [other], "gpu") for truth in (pairwise.truth, summed.truth)]
    assert beside[0] == beside[1] > 0
    totals = [truth.slowdown_beside_ratio(victim, [victim] * 3, "gpu") for truth in (pairwise.truth, summed.truth)]
    utilization = 4 * float(victim.partition("/")[0])
    assert totals[0] == pytest.approx(3 * pairwise.truth.slowdown_beside_ratio(victim, [victim], "gpu"))
    assert totals[1] == pytest.approx(0.25 * utilization**2 if utilization > 1 else 0.25 * utilization)


def test_a_profiled_pab_holds_every_job_up_for_a_minute() -> None:
    trace, cluster = draw_testbed(FEW, "W-Small", 0), cluster_of(FEW)
    plain, profiled = (run(trace, cluster, name, seed=0).run_min for name in ("pab", PROFILED_PAB))
    assert profiled - plain == pytest.approx(1.0)


def test_the_printed_law_is_asked_of_the_testbed_only() -> None:
    law = SummedUtilization(**FEW["printed_slowdown"])
    assert (law.slowdown_ratio(1.0), law.slowdown_ratio(2.0)) == (0.5, 2.0)
    assert main(1, ["simulation", "dense"], ["printed"])["rows"] == []

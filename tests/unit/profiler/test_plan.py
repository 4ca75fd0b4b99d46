from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from cotenant_profiler.campaign import read_campaign
from cotenant_profiler.errors import InvalidCampaignError
from cotenant_profiler.plan import Kind, build_plan

from tests.support.profiler import LENET, LENET_WAIT, small_campaign

STANDIN = Path("profiling/campaigns/cpu_standin.toml")


def test_the_same_campaign_gives_the_same_plan() -> None:
    first, second = (build_plan(small_campaign()) for _ in range(2))
    assert [run.run_id for run in first] == [run.run_id for run in second]


def test_no_run_is_planned_twice() -> None:
    plan = build_plan(read_campaign(STANDIN))
    assert len({run.run_id for run in plan}) == len(plan)


def test_another_seed_gives_another_order_of_the_same_pairs() -> None:
    plans = [build_plan(small_campaign(seed=seed, pairs={"repeated": 0})) for seed in (1, 2)]
    pairs = [[run.run_id for run in plan if run.kind is Kind.GROUP] for plan in plans]
    assert pairs[0] != pairs[1]
    assert sorted(pairs[0]) == sorted(pairs[1])


def test_another_method_gives_other_runs() -> None:
    plans = [build_plan(small_campaign(method={"window_ms": window_ms})) for window_ms in (500, 600)]
    assert not {run.run_id for run in plans[0]} & {run.run_id for run in plans[1]}


def test_ten_jobs_make_fifty_five_pairs_of_which_ten_are_repeated() -> None:
    plan = build_plan(read_campaign(STANDIN))
    repeats = Counter(run.jobs for run in plan if run.kind is Kind.GROUP)
    assert len(repeats) == 55
    assert sorted(Counter(repeats.values()).items()) == [(1, 45), (3, 10)]


def test_a_job_with_a_wait_comes_after_the_same_job_without() -> None:
    solo = [run.jobs[0] for run in build_plan(read_campaign(STANDIN)) if run.kind is Kind.SOLO]
    waiting = [job for job in solo if job.input_wait_ratio]
    assert waiting
    assert all(solo.index(job.without_wait) < solo.index(job) for job in waiting)


def test_the_core_jobs_are_finished_before_the_rest_begins() -> None:
    campaign = read_campaign(STANDIN)
    plan = build_plan(campaign)
    core = {job.without_wait for job in campaign.core_jobs} | set(campaign.core_jobs)
    belongs = [set(run.jobs) <= core for run in plan]
    assert belongs == sorted(belongs, reverse=True)


def test_memory_is_measured_once_for_a_job_with_and_without_wait() -> None:
    jobs = [run.jobs[0] for run in build_plan(small_campaign()) if run.kind is Kind.MEMORY]
    assert jobs.count(LENET) == 1
    assert LENET_WAIT not in jobs


def test_triples_are_chosen_among_jobs_of_which_two_wait() -> None:
    jobs = {f"job{index}": {"architecture": "lenet", "batch": 16, "input_wait_ratio": index / 10} for index in range(5)}
    plan = build_plan(small_campaign(core_jobs=jobs, triples={"count": 4}))
    triples = [run.jobs for run in plan if len(run.jobs) == 3]
    assert len(set(triples)) == 4
    assert all(sum(job.input_wait_ratio > 0 for job in triple) >= 2 for triple in triples)


def test_every_block_of_an_unfinished_campaign_has_solo_and_memory_runs_among_its_groups() -> None:
    campaign = read_campaign(STANDIN)
    plan = build_plan(campaign)
    groups = [index for index, run in enumerate(plan) if run.kind is Kind.GROUP]
    others = [
        index for index, run in enumerate(plan) if groups[0] <= index <= groups[-1] and run.kind is not Kind.GROUP
    ]
    middle = (groups[0] + groups[-1]) / 2
    assert min(sum(index < middle for index in others), sum(index > middle for index in others)) >= len(others) // 3


def test_the_first_pairs_of_a_campaign_leave_no_core_job_out() -> None:
    campaign = read_campaign(STANDIN)
    groups = [run.jobs for run in build_plan(campaign) if run.kind is Kind.GROUP]
    assert {job for group in groups[:16] for job in group} == set(campaign.core_jobs)


def test_a_campaign_may_want_every_job_alone_before_any_two_together() -> None:
    solo = {"repeats": 1, "first": True, "architectures": ["gru"], "batches": 2}
    plan = build_plan(small_campaign(solo=solo))
    kinds = [run.kind for run in plan]
    alone = [index for index, run in enumerate(plan) if run.kind is Kind.SOLO]
    assert max(alone) < kinds.index(Kind.GROUP)
    assert [run.jobs[0].batch for run in plan if run.kind is Kind.SOLO and run.jobs[0].architecture == "gru"] != []
    assert len([run for run in plan if run.kind is Kind.SOLO and run.jobs[0].architecture == "gru"]) == 2


def test_every_committed_campaign_can_be_planned_and_names_each_run_once() -> None:
    for path in sorted(Path("profiling/campaigns").glob("*.toml")):
        plan = build_plan(read_campaign(path))
        assert len({run.run_id for run in plan}) == len(plan), path


def test_the_large_campaign_has_four_hundred_ordered_pairs_thirty_repeated_ones_and_twenty_triples() -> None:
    groups = Counter(
        run.jobs for run in build_plan(read_campaign(STANDIN.with_stem("cpu_standin_large"))) if run.kind is Kind.GROUP
    )
    pairs = {jobs: count for jobs, count in groups.items() if len(jobs) == 2}
    assert sum(len(set(jobs)) for jobs in pairs) >= 400
    assert sum(count == 3 for count in pairs.values()) == 30
    assert sum(len(jobs) == 3 for jobs in groups) == 20


def test_a_campaign_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidCampaignError, match=r"nope\.toml cannot be read: No such file or directory; prof"):
        read_campaign(tmp_path / "nope.toml")

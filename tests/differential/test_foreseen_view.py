"""The view after decisions is the one that is made anew of the jobs that then hold GPUs."""

from __future__ import annotations

import pytest

from scheduler_service.core.cluster_view.foreseen_view import carry_out
from scheduler_service.core.cluster_view.view import HostUse, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Migrate, Reshape, Start, Stop, unfolded
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.crowds import dense_view, full_view
from tests.support.scheduling import view

POLICIES = ("sjf_bsbf", "srtf", "tiresias", "ojpap", "elastic")
SEEDS = range(12)


def afterwards(before: SchedulingView, policy: str) -> tuple[SchedulingView, list[Decision]]:
    waiting = {job.request.job_id: job for job in before.pending}
    plan = check_plan(before, waiting, make_policy(policy, {}).decide(before))
    decisions = list(unfolded(plan.decisions))
    return carry_out(before, decisions, plan.reservations, waiting), decisions


def holders(seen: SchedulingView) -> dict[str, list[RunningJob]]:
    found: dict[str, list[RunningJob]] = {gpu_id: [] for gpu_id in seen.gpus}
    for job in seen.running.values():
        for gpu_id in {part.gpu_id for part in (*job.assignments, *job.moving_to)} & found.keys():
            found[gpu_id].append(job)
    return found


@for_each("seed", SEEDS, always=4)
@pytest.mark.parametrize("policy", POLICIES)
@for_each("make_view", [dense_view, full_view])
def test_gpus_and_hosts_hold_what_the_jobs_on_them_hold(make_view: object, policy: str, seed: int) -> None:
    before = make_view(seed)  # type: ignore[operator]
    after, decisions = afterwards(before, policy)
    started = {one.job_id for one in decisions if isinstance(one, Start)}
    leaving = {one.job_id for one in decisions if isinstance(one, Stop | Migrate | Reshape)}
    assert after.running.keys() == before.running.keys() | started
    assert {job_id for job_id, job in after.running.items() if job.is_stopping} >= leaving
    anew = view(nodes=list(before.nodes.values()), holding=list(after.running.values()))
    for gpu_id, jobs in holders(after).items():
        entry = after.gpus[gpu_id]
        assert set(entry.job_ids) == {job.request.job_id for job in jobs}
        assert entry.memory_reserved_bytes == sum(job.memory_reserved_bytes for job in jobs)
        assert entry.is_releasing == any(job.is_stopping for job in jobs)
    if any(job.moving_to for job in after.running.values()):
        return  # what is made anew counts no host for a job on its way
    for node_id in before.nodes:
        use, expected = (one.host_use.get(node_id, HostUse()) for one in (after, anew))
        assert use.cpu_cores == pytest.approx(expected.cpu_cores)
        assert use.host_memory_bytes == expected.host_memory_bytes


def test_the_views_above_see_every_kind_of_decision() -> None:
    kinds = {
        type(one)
        for make_view in (dense_view, full_view)
        for policy in POLICIES
        for seed in SEEDS
        for one in afterwards(make_view(seed), policy)[1]
    }
    assert {Start, Stop} <= kinds
    assert kinds & {Migrate, Reshape}

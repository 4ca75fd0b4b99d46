"""Jobs that share a GPU are moved apart once GPUs are idle, where both gain more than the move costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.decisions import Migrate
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.sharing.colocation_slowdown import expected_slowdowns
from scheduler_service.policy_registry import POLICIES, describe, make_policy
from tests.support.policy_contract import faults_of_reasons
from tests.support.scheduling import all_pairs, gpu, job, node, pending, prediction, running, store, view

STEP_MS = 1_000.0
KEYS = [f"key-{name}" for name in "abcd"]
UNSHARING = [name for name in sorted(POLICIES) if any(one.name == "unshare" for one in describe(name).parameters)]


def held(name: str, gpu_ids: Sequence[str], **changes: Any) -> RunningJob:
    """A job with a checkpoint and 1,000 steps of a second to go, unless the test says otherwise."""
    asked: dict[str, Any] = {"steps_total": 1_000, "gpus": len(gpu_ids), "global_batch_size": len(gpu_ids)}
    of_run = {
        one: changes.pop(one) for one in ("steps_done", "is_stopping", "move_ms", "has_checkpoint") if one in changes
    }
    return running(job(name, **{**asked, **changes}), gpu_ids, **{"has_checkpoint": True, **of_run})


def cluster(
    holding: Sequence[RunningJob],
    *,
    gpus: int | Sequence[int] = 2,
    gpu_ids: Sequence[str] = (),
    slowdown_ratio: float = 0.5,
    **changes: Any,
) -> SchedulingView:
    widths = (gpus,) if isinstance(gpus, int) else gpus
    jobs = [prediction(key, step_ms={(count, 1): STEP_MS for count in (1, 2, 4)}) for key in KEYS]
    machines = [node(f"n{number}", gpus=width) for number, width in enumerate(widths)]
    if gpu_ids:
        machines = [node("n0", [gpu(gpu_id, index=index) for index, gpu_id in enumerate(gpu_ids)])]
    known = store(jobs, all_pairs(KEYS, slowdown_ratio))
    return view(nodes=machines, holding=holding, predictions=known, **changes)


def moves(seen: SchedulingView, policy: str = "sjf_bsbf", **parameters: object) -> list[tuple[str, list[str]]]:
    """Return who moves where, after the plan check has passed all of it."""
    decisions = make_policy(policy, {"unshare": True, **parameters}).decide(seen)
    waiting = {one.request.job_id: one for one in seen.pending}
    assert check_plan(seen, waiting, decisions).rejections == ()
    assert faults_of_reasons(decisions) == []
    found = [one for one in decisions if isinstance(one, Migrate)]
    return [(one.job_id, [part.gpu_id for part in one.assignments]) for one in found]


@pytest.mark.parametrize("policy", UNSHARING)
def test_a_pair_parts_when_a_gpu_is_idle(policy: str) -> None:
    seen = cluster([held("a", ["n0.0"]), held("b", ["n0.0"])])
    assert moves(seen, policy) == [("a", ["n0.1"])]


@pytest.mark.parametrize("policy", UNSHARING)
def test_a_pair_on_a_slice_of_a_gpu_parts_when_another_slice_of_its_size_is_idle(policy: str) -> None:
    seen = cluster([held("a", ["MIG-0"]), held("b", ["MIG-0"])], gpu_ids=["MIG-0", "MIG-1"])
    assert moves(seen, policy) == [("a", ["MIG-1"])]
    seen = cluster([held("a", ["MIG-0"]), held("b", ["MIG-0"])], gpu_ids=["MIG-0", "GPU-1"])
    assert moves(seen, policy) == []


def test_the_policies_that_share_and_choose_partners_can_part_them() -> None:
    assert UNSHARING == ["horus", "horus_f", "ojpap", "sjf_bsbf", "sjf_ffs"]


@pytest.mark.parametrize("policy", UNSHARING)
def test_only_a_policy_that_moves_jobs_anyway_parts_them_unasked(policy: str) -> None:
    seen = cluster([held("a", ["n0.0"]), held("b", ["n0.0"])])
    decisions = make_policy(policy, {}).decide(seen)
    assert bool(decisions) is POLICIES[policy].touches_running is (policy == "ojpap")


def test_the_reason_tells_what_is_gained_beyond_the_cost() -> None:
    """Both have 1,000 s to go, together 1,500 s; a move costs 30 s where nothing is known."""
    seen = cluster([held("a", ["n0.0"]), held("b", ["n0.0"])])
    (move,) = make_policy("sjf_bsbf", {"unshare": True}).decide(seen)
    assert move.reason.code == "MOVES_APART"
    assert move.reason.numbers == {"gained_ms": pytest.approx(970_000.0), "cost_ms": 30_000.0}
    assert move.reason.job_ids == ("b",)


def test_of_three_jobs_the_two_that_stay_still_slow_each_other_down() -> None:
    """Of 1,000 s each all end after 1,000 (1 + r) s together, and the two that stay after 1,500 s of these."""
    seen = cluster([held(name, ["n0.0"]) for name in "abc"])
    of_three = expected_slowdowns(Ledger(seen).residents("n0.0"), seen.gpus["n0.0"].gpu, seen.predictions)
    (ratio,) = {round(slowdown.ratio, 9) for _, slowdown in of_three}
    (move,) = make_policy("sjf_bsbf", {"unshare": True}).decide(seen)
    sooner_s = 2 * (1_000 * (1 + ratio) - 1_500) + 1_000 * ratio
    assert ratio > 1
    assert move.reason.numbers["gained_ms"] == pytest.approx(1_000 * (sooner_s - 30))


def test_who_loses_least_by_moving_moves() -> None:
    cheap, dear = held("b", ["n0.0"], move_ms=1_000), held("a", ["n0.0"], move_ms=60_000)
    assert moves(cluster([dear, cheap])) == [("b", ["n0.1"])]


@pytest.mark.parametrize("steps_left", [10, 29])
def test_jobs_that_gain_less_than_the_move_costs_stay(steps_left: int) -> None:
    near_end = [held(name, ["n0.0"], steps_done=1_000 - steps_left) for name in "ab"]
    assert moves(cluster(near_end)) == []


def test_jobs_that_do_not_slow_each_other_down_stay() -> None:
    assert moves(cluster([held("a", ["n0.0"]), held("b", ["n0.0"])], slowdown_ratio=0.0)) == []


@pytest.mark.parametrize(
    "changes", [{"has_checkpoint": False}, {"is_stopping": True}], ids=["would start over", "leaves anyway"]
)
def test_a_job_that_cannot_move_cheaply_stays(changes: dict[str, Any]) -> None:
    assert moves(cluster([held("a", ["n0.0"], **changes), held("b", ["n0.0"], **changes)])) == []


def test_a_job_that_states_what_a_move_costs_needs_no_checkpoint_yet() -> None:
    stated = [held(name, ["n0.0"], has_checkpoint=False, migration_cost_ms=5_000) for name in "ab"]
    assert moves(cluster(stated)) == [("a", ["n0.1"])]


def test_where_no_gpu_is_idle_nobody_moves() -> None:
    assert moves(cluster([held("a", ["n0.0"]), held("b", ["n0.0"]), held("c", ["n0.1"])])) == []


def test_an_idle_gpu_goes_to_the_pair_that_gains_most() -> None:
    short = [held(name, ["n0.0"], steps_done=800) for name in "ab"]
    long = [held(name, ["n0.1"]) for name in "cd"]
    assert moves(cluster([*short, *long], gpus=3)) == [("c", ["n0.2"])]


def test_a_job_that_waits_comes_first() -> None:
    seen = cluster(
        [held("a", ["n0.0"]), held("b", ["n0.0"])], waiting=[pending(job("c", steps_total=5, global_batch_size=1))]
    )
    assert moves(seen) == []
    assert moves(cluster([held("a", ["n0.0"]), held("b", ["n0.0"])])) != []


def test_a_gang_changes_only_the_gpus_that_it_shares() -> None:
    gang, single_job = held("a", ["n0.0", "n0.1"]), held("b", ["n0.1"], has_checkpoint=False)
    assert moves(cluster([gang, single_job], gpus=3)) == [("a", ["n0.0", "n0.2"])]


def test_a_gang_is_not_spread_over_more_nodes() -> None:
    gang, single_job = held("a", ["n0.0", "n0.1"]), held("b", ["n0.1"], has_checkpoint=False)
    assert moves(cluster([gang, single_job], gpus=(2, 2))) == []
    both = held("b", ["n0.0", "n0.1"], has_checkpoint=False)
    assert moves(cluster([gang, both], gpus=(2, 2))) == [("a", ["n1.0", "n1.1"])]


@pytest.mark.parametrize(("widths", "moving"), [((2, 1, 1), []), ((2, 2), [("a", ["n1.0", "n1.1"])])])
def test_a_gang_that_shares_all_its_gpus_leaves_for_as_many_nodes_only(
    widths: Sequence[int], moving: list[tuple[str, list[str]]]
) -> None:
    partners = [held("b", ["n0.0"], has_checkpoint=False), held("c", ["n0.1"], has_checkpoint=False)]
    assert moves(cluster([held("a", ["n0.0", "n0.1"]), *partners], gpus=widths, nodes_per_job_max=2)) == moving


def test_a_partner_of_unknown_length_is_taken_to_run_as_long_again() -> None:
    endless = [held(name, ["n0.0"], steps_total=0) for name in "ab"]
    assert moves(cluster(endless, now_ms=600_000)) == [("a", ["n0.1"])]


def test_nothing_moves_where_moves_are_not_supported() -> None:
    assert moves(cluster([held("a", ["n0.0"]), held("b", ["n0.0"])], can_move=False)) == []

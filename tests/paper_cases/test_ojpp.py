"""OJPP by hand: sections 3 and 4 of the paper on instances small enough for a pencil."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.view import Policy
from scheduler_service.core.decisions import unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.jobs.opportunistic_sharing import collision_probability
from scheduler_service.core.records import MemoryTriple
from scheduler_service.policies.ojpp import Ojpp
from scheduler_service.policies.ojpp_greedy import OjppGreedy
from scheduler_service.policies.packing.opportunistic_memory import (
    ComputeRequirement,
    Demand,
    base_and_largest_surge,
    demand_of,
)
from scheduler_service.policies.packing.packing_orders import as_listed, by_gregariousness, by_resources
from tests.support.cases import for_each
from tests.support.packing import Instance, Packed, placement_of, random_instance
from tests.support.scheduling import GIB, gpu, job, memory, pending, prediction, store

PAPER = Ojpp(looks_max=0)
TRIPLE = MemoryTriple(gamma_ratio=0.3, delta_ratio=0.62, high_state_ratio=0.2)


def demand(*, reserved_gib: float = 4, requirement: str = "sm_activity", floor: int = 0, **known: Any) -> Demand:
    """What a worker asks of 8 GiB; nothing is predicted of it unless something is stated."""
    resident = Resident(
        request=job("a", key="a", memory_floor_bytes=floor),
        micro_batch_size=1,
        memory_reserved_bytes=int(reserved_gib * GIB),
    )
    predictions = store([prediction("a", **known)] if known else [])
    return demand_of(resident, gpu(), predictions, ComputeRequirement(requirement))


def test_section_3_2_the_worker_of_figure_2_has_two_states() -> None:
    found = demand(memory_triple=TRIPLE)
    assert (found.base_ratio, found.surge_ratio, found.surge_probability_ratio) == (0.3, 0.62, 0.2)
    assert found.peak_ratio == pytest.approx(0.92)


@pytest.mark.parametrize(
    "known", [{"memory": memory(2, upper_gib=4)}, {"memory_triple": TRIPLE, "in_domain": False}, {}]
)
def test_section_3_2_without_a_trusted_triple_the_worker_always_has_what_is_reserved(known: dict[str, Any]) -> None:
    found = demand(reserved_gib=4, **known)
    assert (found.base_ratio, found.surge_ratio, found.surge_probability_ratio) == (0.5, 0.0, 0.0)


def test_section_3_2_a_triple_is_not_trusted_after_an_out_of_memory_end() -> None:
    found = demand(reserved_gib=6, floor=6 * GIB, memory_triple=TRIPLE)
    assert (found.base_ratio, found.peak_ratio, found.surge_probability_ratio) == (0.75, 0.75, 0.0)


@for_each(
    ("requirement", "known", "alpha"),
    [
        ("sm_activity", {"utilization_ratio": 0.6, "sm_activity_ratio": 0.2}, 0.2),
        ("sm_activity", {"utilization_ratio": 0.6}, 0.6),
        ("utilization", {"utilization_ratio": 0.6, "sm_activity_ratio": 0.2}, 0.6),
        ("utilization", {"utilization_ratio": 1.3}, 1.0),
        ("zero", {"utilization_ratio": 0.6}, 0.0),
        ("utilization", {}, 1.0),
    ],
)
def test_section_3_1_alpha_is_what_the_operator_chose(requirement: str, known: dict[str, Any], alpha: float) -> None:
    assert demand(requirement=requirement, **known).compute_ratio == alpha


def test_section_3_1_alpha_is_never_zero_where_compute_counts() -> None:
    assert 0 < demand(utilization_ratio=0.0).compute_ratio < 0.001


@for_each(
    ("triples", "memory_ratio", "collision"),
    [
        ([], 0.0, 0.0),
        ([(0.3, 0.62, 0.2)], 0.92, 0.0),
        # Two of them: 0.6 + 0.62, and 0.2 x 0.2.
        ([(0.3, 0.62, 0.2)] * 2, 1.22, 0.04),
        # Three with p 0.2: 3 x 0.2 x 0.2 x 0.8 + 0.008; just above the default limit of 0.1.
        ([(0.1, 0.2, 0.2)] * 3, 0.5, 0.104),
        # 1 - 0.9 x 0.5 x 0.8 - (0.1 x 0.5 x 0.8 + 0.9 x 0.5 x 0.8 + 0.9 x 0.5 x 0.2) = 1 - 0.36 - 0.49.
        ([(0.1, 0.3, 0.1), (0.2, 0.1, 0.5), (0.3, 0.2, 0.2)], 0.9, 0.15),
    ],
)
def test_equations_3_and_4_worked_by_hand(
    triples: list[tuple[float, float, float]], memory_ratio: float, collision: float
) -> None:
    demands = [
        Demand(compute_ratio=0.1, base_ratio=gamma, surge_ratio=delta, surge_probability_ratio=p)
        for gamma, delta, p in triples
    ]
    assert base_and_largest_surge(demands) == pytest.approx(memory_ratio)
    assert collision_probability(p for _, _, p in triples) == pytest.approx(collision)


# Name, workers, alpha, p.
QUEUE = (("a", 1, 0.2, 0.5), ("b", 1, 0.4, 0.2), ("c", 1, 0.6, 0.1), ("d", 1, 0.3, 0.0))


def order_of(order: object, queue: tuple[tuple[str, int, float, float], ...]) -> str:
    jobs = [pending(job(name, gpus=workers), at_ms) for at_ms, (name, workers, _, _) in enumerate(queue)]
    demands = {
        name: Demand(compute_ratio=alpha, base_ratio=0.1, surge_probability_ratio=p) for name, _, alpha, p in queue
    }
    return "".join(one.request.job_id for one in order(jobs, lambda request: demands[request.job_id]))  # type: ignore[operator]


def test_algorithm_1_line_1_the_largest_job_comes_first() -> None:
    assert order_of(by_resources, QUEUE) == "cbda"


def test_section_4_3_the_most_easygoing_job_comes_first() -> None:
    """Keys: a 0.5 x 0.2 = 0.1, b 0.2 x 0.5 = 0.1, c 0.1 x 0.5 = 0.05, d 0; of equal ones the larger first."""
    assert order_of(by_gregariousness, QUEUE) == "dcba"


def test_equation_20_a_job_with_two_workers_also_collides_with_itself() -> None:
    """With one worker a has 0.5 x 0.2 as b has, and is larger; with two it has 0.5 x 0.5."""
    alone = (("a", 1, 0.9, 0.5), ("b", 1, 0.4, 0.2))
    assert order_of(by_gregariousness, alone) == "ab"
    assert order_of(by_gregariousness, (("a", 2, 0.9, 0.5), ("b", 1, 0.4, 0.2))) == "ba"


def test_algorithm_3_as_listed_takes_the_largest_job_before_it_sorts() -> None:
    assert order_of(as_listed, QUEUE) == "cdba"


def packed(policy: Policy, instance: Instance) -> dict[str, list[str]]:
    return placement_of(instance, policy.decide(instance.view()))


def test_algorithm_2_line_6_the_device_in_use_with_the_lowest_interference_is_taken() -> None:
    """With x the worst slowdown is 0.15, with y 0.05 although the incoming job itself would suffer more there."""
    jobs = (Packed(name="x"), Packed(name="y"), Packed(name="new"))
    slowdowns = {("new", "x"): 0.01, ("x", "new"): 0.15, ("new", "y"): 0.05, ("y", "new"): 0.02}
    instance = Instance(jobs=jobs, gpus=3, slowdowns=slowdowns, held={"x": ["g0"], "y": ["g1"]})
    assert packed(PAPER, instance)["new"] == ["g1"]


@for_each(
    ("changed", "slowdown", "expected"),
    [
        ({}, 0.05, "g0"),
        ({"alpha": 0.95}, 0.05, "g1"),
        ({"gamma": 0.5, "delta": 0.2}, 0.05, "g1"),
        ({"p": 0.6}, 0.05, "g1"),
        ({}, 0.25, "g1"),
    ],
)
def test_algorithm_2_line_17_a_new_device_is_opened_where_one_constraint_fails(
    changed: dict[str, float], slowdown: float, expected: str
) -> None:
    """The resident has alpha 0.1, gamma 0.3, delta 0.3, p 0.2; limits are (0.1, 0.2, 0.1) as in section 5.2."""
    resident = Packed(name="old", gamma=0.3, delta=0.3, p=0.2)
    incoming_job = Packed(name="new", **{"alpha": 0.1, "gamma": 0.3, "delta": 0.1, "p": 0.4, **changed})  # type: ignore[arg-type]
    instance = Instance(
        jobs=(resident, incoming_job), gpus=2, slowdowns={("old", "new"): slowdown}, held={"old": ["g0"]}
    )
    for policy in (PAPER, OjppGreedy()):
        assert packed(policy, instance)["new"] == [expected]


@pytest.mark.parametrize(("own", "expected"), [(0.15, ["g1", "g2"]), (0.08, ["g0", "g1"])])
def test_algorithm_2_lines_7_to_13_the_mapping_starts_anew_when_a_worker_needs_a_new_device(
    own: float, expected: list[str]
) -> None:
    """The first worker would take g0; with the second one on a new device their slowdowns differ by `own`."""
    jobs = (Packed(name="old", alpha=0.5), Packed(name="wide", workers=2, alpha=0.3))
    instance = Instance(jobs=jobs, gpus=3, slowdowns={("wide", "old"): own}, held={"old": ["g0"]})
    assert packed(PAPER, instance)["wide"] == expected


def test_algorithm_2_the_balance_of_the_jobs_that_are_touched_is_kept_too() -> None:
    """`pair` would be 0.12 slower on one of its two devices only."""
    jobs = (Packed(name="pair", workers=2), Packed(name="new"))
    instance = Instance(jobs=jobs, gpus=3, slowdowns={("pair", "new"): 0.12}, held={"pair": ["g0", "g1"]})
    assert packed(PAPER, instance)["new"] == ["g2"]
    assert packed(Ojpp(looks_max=0, theta_diff=0.12), instance)["new"] == ["g0"]


def test_section_4_3_the_calm_jobs_share_and_the_loud_ones_stay_apart() -> None:
    """Two loud ones together would collide 0.25 of the time; alpha leaves no room with the two calm ones."""
    jobs = (
        Packed(name="loud1", alpha=0.4, p=0.5),
        Packed(name="loud2", alpha=0.3, p=0.5),
        Packed(name="calm1", alpha=0.5),
        Packed(name="calm2", alpha=0.5),
    )
    found = packed(PAPER, Instance(jobs=jobs, gpus=4))
    assert found == {"calm1": ["g0"], "calm2": ["g0"], "loud1": ["g1"], "loud2": ["g2"]}


def test_algorithm_2_a_worker_too_large_for_an_empty_device_waits_with_a_reason_and_the_others_go_on() -> None:
    jobs = (Packed(name="huge", gamma=0.7, delta=0.4), Packed(name="small"))
    decisions = list(unfolded(PAPER.decide(Instance(jobs=jobs, gpus=2).view())))
    assert {one.job_id: one.reason.code for one in decisions} == {"huge": "PEAK_EXCEEDS_GPU", "small": "STARTS_ALONE"}
    (held,) = (one for one in decisions if one.job_id == "huge")
    assert held.reason.numbers == {"needed_bytes": int(1.1 * 8 * GIB), "gpu_memory_bytes": 8 * GIB}


@pytest.mark.parametrize(("slowdown", "gpus"), [(0.05, 2), (0.15, 2), (0.25, 4)])
def test_what_would_unbalance_a_job_on_one_device_is_joined_on_all_of_them(slowdown: float, gpus: int) -> None:
    """With one of its two workers 0.15 breaks Eq. 8 for `old`, with both it does not; 0.25 breaks Eq. 7."""
    jobs = (Packed(name="old", workers=2), Packed(name="new", workers=2))
    instance = Instance(jobs=jobs, gpus=4, slowdowns={("old", "new"): slowdown}, held={"old": ["g0", "g1"]})
    assert len({*packed(Ojpp(), instance)["new"], "g0", "g1"}) == gpus
    assert len({*packed(PAPER, instance)["new"], "g0", "g1"}) == (2 if slowdown <= 0.1 else 4)


def test_a_group_that_is_too_wide_for_a_job_is_not_joined_in_part() -> None:
    jobs = (Packed(name="old", workers=3), Packed(name="new", workers=2))
    held = {"old": ["g0", "g1", "g2"]}
    instance = Instance(jobs=jobs, gpus=5, slowdowns={("old", "new"): 0.15}, held=held)
    assert packed(Ojpp(), instance)["new"] == ["g3", "g4"]


def test_a_group_pulls_in_every_other_job_that_would_be_out_of_balance() -> None:
    """Joining `a` on g0 needs g1; there is `b`, which then needs g2."""
    jobs = (Packed(name="a", workers=2), Packed(name="b", workers=2), Packed(name="new", workers=3))
    held = {"a": ["g0", "g1"], "b": ["g1", "g2"]}
    hurt = {("a", "new"): 0.15, ("b", "new"): 0.15}
    instance = Instance(jobs=jobs, gpus=6, slowdowns=hurt, held=held)
    assert set(packed(Ojpp(), instance)["new"]) == {"g0", "g1", "g2"}
    assert packed(PAPER, instance)["new"] == ["g3", "g4", "g5"]


def test_the_workers_of_a_job_may_all_be_slowed_down_where_one_alone_would_be_too_fast() -> None:
    """The paper begins with `calm`, where no job suffers, and is then too slow for Eq. 8 with `rough`."""
    jobs = (Packed(name="calm"), Packed(name="rough", workers=2), Packed(name="new", workers=2))
    held = {"calm": ["g0"], "rough": ["g1", "g2"]}
    instance = Instance(jobs=jobs, gpus=4, slowdowns={("new", "rough"): 0.15}, held=held)
    assert packed(Ojpp(), instance)["new"] == ["g1", "g2"]
    assert packed(PAPER, instance)["new"] == ["g0", "g3"]


def test_more_plans_never_fill_more_gpus_than_the_papers_alone() -> None:
    better = 0
    for seed in range(60):
        instance = random_instance(seed, jobs_max=7, workers_max=3, gpus=21)
        used = [
            len({gpu for gpus in placement_of(instance, policy.decide(instance.view())).values() for gpu in gpus})
            for policy in (PAPER, Ojpp())
        ]
        assert used[1] <= used[0]
        better += used[1] < used[0]
    assert better > 10


def test_a_queue_too_long_for_two_plans_gets_one() -> None:
    instance = random_instance(5, jobs_max=7, workers_max=3, gpus=21)
    looks = len(instance.jobs) + instance.gpus
    assert packed(Ojpp(looks_max=2 * looks - 1), instance) == packed(Ojpp(looks_max=1), instance)


def test_plans_drawn_by_lot_are_the_same_in_every_run() -> None:
    instance = random_instance(11, jobs_max=7, workers_max=3, gpus=21)
    assert packed(Ojpp(), instance) == packed(Ojpp(), instance)


def test_a_negative_number_of_looks_is_refused() -> None:
    with pytest.raises(PolicyParameterError, match="looks_max must not be negative"):
        Ojpp(looks_max=-1)

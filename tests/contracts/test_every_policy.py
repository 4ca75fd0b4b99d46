"""What every policy promises, whatever it decides."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from scheduler_service.core.cluster_view.view import PendingJob, Policy, SchedulingView
from scheduler_service.core.decisions import Migrate, Reshape, Start, Stop, unfolded
from scheduler_service.core.errors import PolicyParameterError, UnknownPolicyError
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import POLICIES, describe, make_policy
from tests.support.broken_policy import DEFECTS, BrokenPolicy
from tests.support.cases import for_each, spread
from tests.support.crowds import dense_view, full_view
from tests.support.policy_contract import explained, faults_of_reasons, faults_of_tables
from tests.support.scheduling import GIB, gpu, job, node, pending, running, view

SEEDS = range(26)
ALWAYS = 5
"""Of these in every run; a policy whose answers have a defect is found out by them."""
MakeView = Callable[[int], SchedulingView]
VIEWS: Sequence[MakeView] = [dense_view, full_view]
"""Half of the GPUs are free and jobs ask for anything; no GPU is free and some are about to be."""


def pending_of(seen: SchedulingView) -> dict[str, PendingJob]:
    return {one.request.job_id: one for one in seen.pending}


@pytest.fixture(params=sorted(POLICIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def faults_of_answers(policy: Policy, make_view: MakeView, seed: int) -> list[str]:
    """What reasons lack, of a decision and of an explained one, and what the tables of the latter lack."""
    decisions = explained(policy, make_view(seed))
    return [
        *faults_of_reasons(policy.decide(make_view(seed))),
        *faults_of_reasons(decisions),
        *faults_of_tables(make_view(seed), decisions),
    ]


def aging_policy(name: str) -> Policy:
    """The same with its limit of waiting on, where it has one: aged jobs let no other job pass."""
    has_limit = any(parameter.name == "aging_ms" for parameter in describe(name).parameters)
    return make_policy(name, {"aging_ms": 8_000} if has_limit else {})


@for_each("nodes_max", [0, 1, 2])
@for_each("seed", SEEDS, always=ALWAYS)
def test_every_decision_passes_the_plan_check_and_every_pending_job_has_exactly_one(
    name: str, seed: int, nodes_max: int
) -> None:
    seen = dense_view(seed, nodes_max=nodes_max)
    decisions = make_policy(name, {}).decide(seen)
    assert check_plan(seen, pending_of(seen), decisions).rejections == ()
    counted = Counter(one.job_id for one in unfolded(decisions) if not isinstance(one, Stop | Migrate | Reshape))
    assert counted == Counter(pending_of(seen).keys())


@for_each("nodes_max", [0, 1])
@for_each("sliced_ratio", [0.4, 1.0])
@for_each("seed", SEEDS, always=ALWAYS)
def test_no_policy_gives_a_job_two_slices_of_gpus_or_a_slice_and_a_gpu(
    name: str, seed: int, sliced_ratio: float, nodes_max: int
) -> None:
    seen = dense_view(seed, nodes_max=nodes_max, sliced_ratio=sliced_ratio)
    decisions = [*unfolded(make_policy(name, {}).decide(seen))]
    given = [
        [part.gpu_id for part in one.assignments] for one in decisions if isinstance(one, Start | Migrate | Reshape)
    ]
    assert [gpu_ids for gpu_ids in given if len(gpu_ids) > 1 and any(one.startswith("MIG-") for one in gpu_ids)] == []
    assert check_plan(seen, pending_of(seen), decisions).rejections == ()


@for_each("seed", SEEDS, always=ALWAYS)
def test_the_same_view_gives_the_same_answer_and_is_not_changed(name: str, seed: int) -> None:
    seen, policy = dense_view(seed), make_policy(name, {})
    before = copy.deepcopy((dict(seen.gpus), tuple(seen.pending), dict(seen.running), dict(seen.nodes)))
    assert policy.decide(seen) == policy.decide(seen)
    assert (dict(seen.gpus), tuple(seen.pending), dict(seen.running), dict(seen.nodes)) == before


@for_each("seed", SEEDS, always=ALWAYS)
def test_storage_order_is_irrelevant(name: str, seed: int) -> None:
    policy = make_policy(name, {})
    plain = list(unfolded(policy.decide(dense_view(seed))))
    assert list(unfolded(policy.decide(dense_view(seed, shuffled=True)))) == plain


@for_each("seed", SEEDS, always=ALWAYS)
def test_explaining_changes_no_start(name: str, seed: int) -> None:
    policy = make_policy(name, {})
    plain = [one for one in unfolded(policy.decide(dense_view(seed))) if isinstance(one, Start)]
    starts = [one for one in explained(policy, dense_view(seed)) if isinstance(one, Start)]
    assert [(one.job_id, one.assignments) for one in starts] == [(one.job_id, one.assignments) for one in plain]


@for_each("make_view", VIEWS)
@for_each("seed", SEEDS, always=ALWAYS)
def test_every_reason_is_registered_with_its_numbers_and_every_waiting_job_has_a_row_for_every_gpu(
    name: str, seed: int, make_view: MakeView
) -> None:
    assert faults_of_answers(make_policy(name, {}), make_view, seed) == []


@for_each("seed", SEEDS, always=ALWAYS)
def test_with_a_limit_of_waiting_reasons_and_tables_are_as_full(name: str, seed: int) -> None:
    seen = dense_view(seed, nodes_max=0)
    decisions = explained(aging_policy(name), seen)
    assert faults_of_reasons(decisions) == []
    assert faults_of_tables(seen, decisions) == []


@for_each("seed", SEEDS, always=ALWAYS)
def test_what_the_registry_says_of_sharing_and_moving_is_kept(name: str, seed: int) -> None:
    entry, seen = POLICIES[name], dense_view(seed)
    decisions = list(unfolded(make_policy(name, {}).decide(seen)))
    held = {gpu_id for gpu_id, entry in seen.gpus.items() if entry.job_ids}
    given = [part.gpu_id for one in decisions if isinstance(one, Start) for part in one.assignments]
    if not entry.touches_running:
        assert not any(isinstance(one, Stop | Migrate | Reshape) for one in decisions)
    if not entry.shares_gpus:
        assert not held.intersection(given)
        assert len(given) == len(set(given))
    if not entry.chooses_counts:
        wanted = {one.request.job_id: one.request.gpus for one in seen.pending}
        starts = {one.job_id: len(one.assignments) for one in decisions if isinstance(one, Start)}
        assert starts == {job_id: wanted[job_id] for job_id in starts}


def test_an_empty_cluster_and_an_empty_queue_are_fine(name: str) -> None:
    policy = make_policy(name, {})
    assert list(policy.decide(view())) == []
    assert list(policy.decide(view(nodes=[node()]))) == []
    (only,) = unfolded(policy.decide(view(waiting=[pending(job())])))
    assert only.reason.code == "GPUS_NOT_IN_CLUSTER"


def test_a_lonely_job_on_a_free_gpu_starts(name: str) -> None:
    (only,) = make_policy(name, {}).decide(view(nodes=[node()], waiting=[pending(job())]))
    assert isinstance(only, Start)


def test_wrong_names_and_parameters_are_answered_with_the_valid_ones(name: str) -> None:
    with pytest.raises(PolicyParameterError, match="no parameter 'colour'; valid are"):
        make_policy(name, {"colour": 1})
    with pytest.raises(UnknownPolicyError, match=f"did you mean {name}"):
        make_policy(name + "x", {})


def test_a_description_names_everything_an_operator_can_set(name: str) -> None:
    described = describe(name)
    assert all((described.summary, described.source, described.cost))
    chosen = {parameter.name: parameter.default for parameter in described.parameters}
    assert make_policy(name, chosen) == make_policy(name, {})
    assert all(parameter.description for parameter in described.parameters)


def test_a_parameter_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(PolicyParameterError, match="must be integer"):
        make_policy("horus", {"queues": "three"})
    with pytest.raises(PolicyParameterError, match="at least 1"):
        make_policy("horus", {"queues": 0})
    with pytest.raises(PolicyParameterError, match="curves must look like"):
        make_policy("horus", {"curves": {"V100": {"linear": [1]}}})


def test_a_free_gpu_that_is_too_small_is_no_candidate(name: str) -> None:
    small, large = gpu("n0.0", memory_bytes=2 * GIB), gpu("n0.1", index=1)
    seen = view(
        nodes=[node(gpus=[small, large])],
        waiting=[pending(job("wide", gpus=2, share=Share.NEVER, memory_request_bytes=4 * GIB))],
    )
    (hold,) = explained(make_policy(name, {}), seen)
    rows = {row.gpu_id: (row.feasible, row.reason.code) for row in hold.candidates}
    assert rows == {"n0.0": (False, "MEMORY_EXCEEDS_GPU"), "n0.1": (True, "CANDIDATE")}


def test_jobs_that_every_gpu_would_do_for_share_their_table() -> None:
    waiting = [pending(job(f"j{index}", gpus=2), submitted_at_ms=index) for index in range(50)]
    seen = view(nodes=[node(gpus=2)], waiting=waiting, holding=[running(job("held"), ["n0.0"])])
    for name in ("fifo", "sjf", "elastic"):
        tables = [one.candidates for one in explained(make_policy(name, {}), seen)]
        assert len(tables) == 50
        assert len({id(table) for table in tables}) == 1


def is_refused(policy: Policy) -> bool:
    """Say whether the test of this suite about reasons and tables fails for a policy on a case of every run."""
    return any(faults_of_answers(policy, dense_view, seed) for seed in spread(len(SEEDS), ALWAYS))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_policy_with_a_defect_in_its_answers_is_refused(defect: str) -> None:
    assert is_refused(BrokenPolicy(defect=defect))


def test_the_same_policy_without_a_defect_is_accepted() -> None:
    assert not is_refused(BrokenPolicy())

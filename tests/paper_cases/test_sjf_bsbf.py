"""SJF-BSBF by hand: Theorem 1 and Algorithms 1 and 2 of the paper on instances small enough for a pencil."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core.cluster_view.view import PendingJob, RunningJob
from scheduler_service.core.decisions import Decision, Hold, Start, unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.records import JobPrediction, PairPrediction, Share
from scheduler_service.policies.pairing.pair_sharing import (
    CoLocatedJob,
    incoming_job_end_ms,
    micro_batch_sizes_of,
    shared_sum_ms,
    waiting_sum_ms,
)
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from tests.support.cases import for_each
from tests.support.scheduling import GIB, all_pairs, job, memory, node, pair, pending, prediction, running, store, view

SECOND_MS = 1_000.0


def co_located(rest: float, slowdown: float, newcomer_slowdown: float) -> CoLocatedJob:
    return CoLocatedJob(remaining_ms=rest, slowdown_ratio=slowdown, incoming_slowdown_ratio=newcomer_slowdown)


@for_each(
    ("job_a", "job_b", "shared", "waiting"),
    [
        ((100, 1.2), (100, 1.2), 120 + 120, 300),
        ((100, 2.0), (100, 2.0), 200 + 200, 300),
        # Case 2: A ends at 30; by then B has done 20 of 100 and ends at 110.
        ((20, 1.5), (100, 1.5), 30 + 110, 220),
        # Case 1: B ends at 50; by then A has done 40 of 100 and ends at 110.
        ((100, 1.25), (40, 1.25), 110 + 50, 180),
        ((0, 3.0), (100, 3.0), 0 + 100, 200),
    ],
)
def test_theorem_1_both_sums_worked_by_hand(
    job_a: tuple[float, float], job_b: tuple[float, float], shared: float, waiting: float
) -> None:
    """A job is (remaining time alone, xi)."""
    (rest_a, xi_a), (rest_b, xi_b) = job_a, job_b
    partner = co_located(rest_b, xi_b - 1, xi_a - 1)
    assert shared_sum_ms(rest_a, [partner]) == pytest.approx(shared)
    assert waiting_sum_ms(rest_a, [partner]) == pytest.approx(waiting)


def test_a_gang_goes_at_the_pace_of_its_slowest_gpu_until_that_partner_has_ended() -> None:
    """Pace 2 until 30 (15 done), pace 1.5 until 60 (35 done), then alone: 100 - 35 + 60 = 125."""
    partners = [co_located(20, 0.5, 1.0), co_located(40, 0.5, 0.5)]
    assert incoming_job_end_ms(100, partners) == pytest.approx(125)
    assert shared_sum_ms(100, partners) == pytest.approx(125 + 30 + 60)
    assert waiting_sum_ms(100, partners) == pytest.approx(20 + 40 + 40 + 100)


@for_each(("samples", "expected"), [(1, [1]), (2, [2, 1]), (8, [8, 4, 2, 1]), (6, [6, 3, 2, 1]), (5, [5, 3, 2, 1])])
def test_algorithm_2_halves_the_batch_down_to_one(samples: int, expected: list[int]) -> None:
    assert list(micro_batch_sizes_of(samples)) == expected


def decide(policy: SjfBsbf, waiting: PendingJob, holding: list[RunningJob], **facts: Any) -> Decision:
    nodes = facts.pop("nodes", [node("n0", 1)])
    known = store(facts.pop("jobs"), facts.pop("pairs"))
    (decision,) = unfolded(policy.decide(view(nodes=nodes, waiting=[waiting], holding=holding, predictions=known)))
    return decision


# The new job: batch 8, 100 steps; alone 100, 110, 130 or 170 s at micro-batches 8, 4, 2, 1, in 6, 4, 3 or 2 GiB.
NEW_STEP_MS = {(1, 8): 1_000.0, (1, 4): 1_100.0, (1, 2): 1_300.0, (1, 1): 1_700.0}
NEW_GIB = {8: 6, 4: 4, 2: 3, 1: 2}


def new_prediction() -> JobPrediction:
    points = {micro_batch_size: memory(gib)[1_000_000] for micro_batch_size, gib in NEW_GIB.items()}
    return prediction("new", step_ms=NEW_STEP_MS, memory=points)


def with_old(*, old_gib: float, pairs: list[PairPrediction], old_steps: int = 100) -> Decision:
    """One GPU of 8 GiB; the old job needs a second per step."""
    return decide(
        SjfBsbf(),
        pending(job("new", key="new", global_batch_size=8, steps_total=100, max_slowdown_ratio=9.0)),
        [running(job("old", key="old", steps_total=old_steps, max_slowdown_ratio=9.0), ["n0.0"])],
        jobs=[new_prediction(), prediction("old", step_ms={(1, 1): SECOND_MS}, memory=memory(old_gib))],
        pairs=pairs,
    )


@pytest.mark.parametrize(
    ("old_gib", "expected_micro_batch_size", "expected_passes"), [(2, 8, 1), (3.5, 4, 2), (4.5, 2, 4), (6, 1, 8)]
)
def test_algorithm_2_takes_the_largest_micro_batch_that_fits_where_all_slow_down_alike(
    old_gib: float, expected_micro_batch_size: int, expected_passes: int
) -> None:
    start = with_old(old_gib=old_gib, pairs=all_pairs(["new", "old"], 0.1))
    assert isinstance(start, Start)
    assert (start.micro_batch_size, start.accumulation_steps) == (expected_micro_batch_size, expected_passes)
    assert start.reason.code == ("STARTS_SHARED" if expected_passes == 1 else "STARTS_SHARED_IN_PASSES")


def test_algorithm_2_takes_a_smaller_micro_batch_where_that_disturbs_less() -> None:
    """At 8: old ends at 110, new at 110 + (100 - 110/1.3) = 125.4; at 4: 110 and 120."""
    pairs = [*all_pairs(["new", "old"], 0.1), pair("new", "old", 0.3, micro_batch_size=8)]
    start = with_old(old_gib=2, pairs=pairs)
    assert isinstance(start, Start)
    assert start.micro_batch_size == 4


def test_algorithm_2_without_room_for_a_single_sample_the_job_waits() -> None:
    held = with_old(old_gib=7, pairs=all_pairs(["new", "old"], 0.1))
    assert held.reason.code == "MEMORY_DOES_NOT_FIT"
    assert held.reason.numbers["free_bytes"] == GIB


def test_theorem_1_sharing_that_is_not_worth_it_is_refused_with_both_sums() -> None:
    """Both at half speed: 200 + 200 against 100 + 200."""
    held = with_old(old_gib=2, pairs=all_pairs(["new", "old"], 1.0))
    assert isinstance(held, Hold)
    assert held.reason.code == "SHARING_NOT_WORTH_IT"
    assert held.reason.numbers == pytest.approx({"shared_sum_ms": 400_000.0, "waiting_sum_ms": 300_000.0})
    assert held.reason.job_ids == ("old",)


def test_an_unknown_slowdown_counts_as_all_that_a_job_accepts() -> None:
    """With xi 1.4 each 140 + 140 < 300, so they share; xi 1.6: 320 > 300, so they do not."""
    codes = []
    for accepted in (0.4, 0.6):
        request = {"share": Share.ANY, "max_slowdown_ratio": accepted, "steps_total": 100}
        found = decide(
            SjfBsbf(),
            pending(job("new", key="new", **request)),
            [running(job("old", key="old", **request), ["n0.0"])],
            jobs=[prediction(key, step_ms={(1, 1): SECOND_MS}) for key in ("new", "old")],
            pairs=[],
        )
        codes.append(found.reason.code)
    assert codes == ["STARTS_SHARED_BLINDLY", "SHARING_NOT_WORTH_IT"]


def test_a_job_whose_step_time_is_unknown_does_not_share() -> None:
    held = decide(
        SjfBsbf(),
        pending(job("new", key="new")),
        [running(job("old", key="old"), ["n0.0"])],
        jobs=[prediction("new"), prediction("old", step_ms={(1, 1): SECOND_MS})],
        pairs=all_pairs(["new", "old"], 0.1),
    )
    assert (held.reason.code, held.reason.job_ids) == ("REMAINING_TIME_UNKNOWN", ("new",))


def gang(gpus: int, *, nodes_gpus: int = 4, slowdown: float = 0.1) -> Decision:
    """Job p runs on GPUs 0 and 1 for 100 s, q on GPU 2 for 50 s, GPU 3 is free; the new one needs 60 s.

    Sums: with p 66 + 106 = 172 < 260, with q 65 + 55 = 120 < 160.
    """
    step_ms = {(gpus, 1): SECOND_MS for gpus in (1, 2, 3, 4, 5)}
    keys = ["p", "q", "new"]
    return decide(
        SjfBsbf(),
        pending(job("new", key="new", gpus=gpus, global_batch_size=gpus, steps_total=60)),
        [
            running(job("p", key="p", gpus=2, global_batch_size=2, steps_total=100), ["n0.0", "n0.1"]),
            running(job("q", key="q", steps_total=50), ["n0.2"]),
        ],
        nodes=[node("n0", nodes_gpus)],
        jobs=[prediction(key, step_ms=step_ms) for key in keys],
        pairs=all_pairs(keys, slowdown),
    )


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, ["n0.3"]),
        (2, ["n0.2", "n0.0"]),
        (3, ["n0.2", "n0.0", "n0.1"]),
        (4, ["n0.2", "n0.0", "n0.1", "n0.3"]),
    ],
)
def test_algorithm_1_lines_8_to_18_pairs_by_ascending_sum_and_free_gpus_last(gpus: int, expected: list[str]) -> None:
    start = gang(gpus)
    assert isinstance(start, Start)
    assert [part.gpu_id for part in start.assignments] == expected


def test_algorithm_1_line_11_too_few_shareable_and_free_gpus_hold_the_gang() -> None:
    held = gang(4, slowdown=0.21)
    assert (held.reason.code, dict(held.reason.numbers)) == ("NO_FREE_GPU", {"gpus_needed": 4, "gpus_free": 1})
    assert gang(5).reason.code == "GPUS_NOT_IN_CLUSTER"
    assert isinstance(gang(5, nodes_gpus=5), Start)


@pytest.mark.parametrize(("recheck", "expected"), [(True, "SHARING_NOT_WORTH_IT"), (False, "STARTS_SHARED")])
def test_a_gang_whose_pairs_are_worth_it_one_by_one_is_weighed_as_a_whole(recheck: bool, expected: str) -> None:
    """Each pair: 100 + 38 < 2 x 20 + 100. All three: 100 + 3 x 38 = 214 against 3 x 20 + 20 + 100 = 180."""
    step_ms = {(1, 1): SECOND_MS, (3, 1): SECOND_MS}
    found = decide(
        SjfBsbf(recheck_gang=recheck),
        pending(job("new", key="new", gpus=3, global_batch_size=3, steps_total=100)),
        [
            running(job(f"r{index}", key="old", steps_total=20, max_slowdown_ratio=0.9), [f"n0.{index}"])
            for index in range(3)
        ],
        nodes=[node("n0", 3)],
        jobs=[prediction("new", step_ms=step_ms), prediction("old", step_ms=step_ms)],
        pairs=[pair("old", "new", 0.9), pair("new", "old", 0.0)],
    )
    assert found.reason.code == expected


def test_all_workers_of_a_gang_use_the_smallest_micro_batch_that_one_of_them_needs() -> None:
    """8 samples per GPU: with 2 GiB they fit at once, with 3.5 GiB only 4 of them."""
    start = decide(
        SjfBsbf(),
        pending(job("new", key="new", gpus=2, global_batch_size=16, steps_total=100)),
        [
            running(job("light", key="light", steps_total=100), ["n0.0"]),
            running(job("heavy", key="heavy", steps_total=100), ["n0.1"]),
        ],
        nodes=[node("n0", 2)],
        jobs=[
            new_prediction(),
            prediction("light", step_ms={(1, 1): SECOND_MS}, memory=memory(2)),
            prediction("heavy", step_ms={(1, 1): SECOND_MS}, memory=memory(3.5)),
        ],
        pairs=all_pairs(["new", "light", "heavy"], 0.1),
    )
    assert isinstance(start, Start)
    assert (start.micro_batch_size, start.accumulation_steps) == (4, 2)


@pytest.mark.parametrize(("limit", "expected"), [(1, ["w1"]), (2, ["w1", "w2"]), (3, ["w1", "w2"])])
def test_a_round_weighs_a_limited_number_of_jobs_that_find_no_partner(limit: int, expected: list[str]) -> None:
    """Nothing pays here: the shortest wait for that reason, the others that the round looked no further."""
    seen = view(
        nodes=[node()],
        waiting=[
            pending(job(f"w{steps}", key="new", steps_total=100 + steps, max_slowdown_ratio=9.0)) for steps in (2, 1)
        ],
        holding=[running(job("old", key="old", steps_total=100, max_slowdown_ratio=9.0), ["n0.0"])],
        predictions=store(
            [prediction(key, step_ms={(1, 1): SECOND_MS}) for key in ("new", "old")], all_pairs(["new", "old"], 2.0)
        ),
    )
    held = {one.job_id: one.reason.code for one in unfolded(SjfBsbf(weighed_jobs_max=limit).decide(seen))}
    assert sorted(name for name, code in held.items() if code == "SHARING_NOT_WORTH_IT") == expected
    assert set(held.values()) <= {"SHARING_NOT_WORTH_IT", "TOO_MANY_WEIGHED"}


def test_values_without_a_meaning_are_refused() -> None:
    with pytest.raises(PolicyParameterError, match="weighed_jobs_max must be at least 1"):
        SjfBsbf(weighed_jobs_max=0)
    with pytest.raises(PolicyParameterError, match="aging_ms must not be negative"):
        SjfBsbf(aging_ms=-1)

"""A new version replaces the served one only when it is not worse on the same held-out rows."""

import dataclasses

import numpy as np
import pytest

from predictor_service.registry.held_out import HeldOutRows, held_out_from_json, held_out_to_json
from predictor_service.retraining.gate import MARGIN_MAX, TargetComparison, compare_held_out, compare_newest

FAMILIES = [f"family_{place % 6}" for place in range(60)]
MEASURED = np.exp(np.random.default_rng(0).normal(3, 1, 60))


def rows(error: float, seed: int = 1, count: int = 60) -> HeldOutRows:
    """Predictions that are off by this much on average, in the logarithm."""
    noise = np.random.default_rng(seed).normal(0, 1, 60)
    predicted = MEASURED * np.exp(noise * error / np.abs(noise).mean())
    return HeldOutRows(
        row_ids=tuple(f"row-{place}" for place in range(count)),
        measured=tuple(MEASURED[:count].tolist()),
        predicted=tuple(predicted[:count].tolist()),
        groups=tuple((family,) for family in FAMILIES[:count]),
    )


def compare(champion: HeldOutRows, challenger: HeldOutRows | None, target: str = "step_ms") -> TargetComparison:
    ours = {"gpu": {target: challenger}} if challenger else {}
    return compare_held_out({"gpu": {target: champion}}, ours, seed=0)[0]


@pytest.mark.parametrize("error", [0.05, 0.1])
def test_better_or_equal_is_no_objection(error: float) -> None:
    found = compare(rows(0.1), rows(error))
    assert found.objection == ""
    assert found.challenger_error == pytest.approx(error)
    assert found.champion_error == pytest.approx(0.1)


def test_worse_within_noise_is_no_objection_and_the_margin_shows_why() -> None:
    found = compare(rows(0.1, seed=1), rows(0.104, seed=2))
    assert found.objection == ""
    assert 0.04 < found.margin_ratio <= MARGIN_MAX


def test_worse_by_a_steady_few_per_cent_is_an_objection_because_it_is_no_noise() -> None:
    found = compare(rows(0.3), rows(0.312))
    assert found.margin_ratio == pytest.approx(0.02)
    assert "+4.0%" in found.objection


def test_worse_by_less_than_measuring_again_would_change_is_no_objection() -> None:
    assert compare(rows(0.01), rows(0.014)).objection == ""
    assert compare(rows(0.01), rows(0.016)).objection


def test_worse_by_more_than_the_largest_margin_is_an_objection_however_noisy() -> None:
    assert compare(rows(0.1, seed=1), rows(0.12, seed=2)).objection


def test_a_target_that_would_be_lost_is_an_objection() -> None:
    assert "would be lost" in compare(rows(0.1), None).objection


def test_rows_that_were_removed_are_an_objection() -> None:
    found = compare(rows(0.1), rows(0.01, count=20))
    assert "only 20 of 60 rows" in found.objection


def test_half_of_the_rows_is_enough_to_compare() -> None:
    assert compare(rows(0.1), rows(0.01, count=30)).objection == ""
    assert "only 29 of 60 rows" in compare(rows(0.1), rows(0.01, count=29)).objection


def measured_anew(known: HeldOutRows, factor: float = 1.0) -> HeldOutRows:
    """The same jobs, whose rows have other names because other values were measured."""
    return dataclasses.replace(
        known,
        row_ids=tuple(f"{name}-anew" for name in known.row_ids),
        measured=tuple(value * factor for value in known.measured),
        jobs=tuple(f"job-{name}" for name in known.row_ids),
    )


def test_jobs_that_were_measured_anew_are_compared_by_what_was_measured_last() -> None:
    """Of jobs that run every week no row keeps its value: the week after, no version would have a judge."""
    served = dataclasses.replace(measured_anew(rows(0.1)), row_ids=rows(0.1).row_ids)
    assert "only 0 of 60 rows" in compare(dataclasses.replace(served, jobs=()), measured_anew(rows(0.1))).objection
    found = compare(served, measured_anew(rows(0.1), factor=1.2))
    assert (found.rows, found.objection) == (60, "")
    assert found.challenger_error == found.champion_error
    assert compare(served, measured_anew(rows(0.3))).objection


def test_a_job_that_has_several_rows_is_known_by_their_values_alone() -> None:
    served = dataclasses.replace(rows(0.1), jobs=("one job",) * 60)
    assert "only 0 of 60" in compare(served, dataclasses.replace(measured_anew(rows(0.1)), jobs=served.jobs)).objection


@pytest.mark.parametrize(
    ("target", "measured", "predicted", "error"),
    [
        ("memory_bytes", 4.0, 8.0, np.log(2.0)),
        ("slowdown_ratio", 0.0, 1.0, np.log(2.0)),
        ("utilization_ratio", 0.25, 0.75, 0.5),
    ],
)
def test_errors_are_taken_in_the_scale_in_which_a_target_is_learned(
    target: str, measured: float, predicted: float, error: float
) -> None:
    same = HeldOutRows(row_ids=("a",), measured=(measured,), predicted=(predicted,), groups=(("family",),))
    found = compare(same, same, target)
    assert found.champion_error == found.challenger_error == pytest.approx(error)


def test_rows_are_matched_by_identity_not_by_place() -> None:
    mixed = rows(0.1)
    order = np.random.default_rng(5).permutation(60)
    shuffled = dataclasses.replace(
        mixed,
        **{
            name: tuple(getattr(mixed, name)[place] for place in order)
            for name in ("row_ids", "measured", "predicted", "groups")
        },
    )
    found = compare(mixed, shuffled)
    assert found.champion_error == pytest.approx(found.challenger_error)


def test_perfect_versions_are_equal() -> None:
    assert compare(rows(0.0), rows(0.0)).objection == ""
    assert compare(rows(0.0), rows(0.1)).objection


def test_held_out_rows_survive_being_written() -> None:
    held_out = {"gpu": {"step_ms": rows(0.1)}}
    assert held_out_from_json(held_out_to_json(held_out)) == held_out


def newest(served: HeldOutRows, error: float, count: int = 60) -> TargetComparison:
    """What a new version with such an error is told about jobs of which the served one says what is given."""
    new = rows(error, seed=2, count=count)
    challenger = dict(zip(new.row_ids, new.predicted, strict=True))
    return compare_newest("gpu", "step_ms", champion=served, challenger=challenger, seed=0)


def test_what_changed_is_served_once_it_is_better_beyond_chance_on_what_was_measured_last() -> None:
    slower = dataclasses.replace(rows(0.0), predicted=tuple((MEASURED / 1.5).tolist()))
    found = newest(slower, 0.1)
    assert found.objection == ""
    assert found.champion_error == pytest.approx(np.log(1.5))
    assert (found.rows, found.margin_ratio) == (60, -0.1)


@pytest.mark.parametrize("error", [0.1, 0.095, 0.3])
def test_what_changed_stays_as_served_where_the_new_version_is_not_clearly_better(error: float) -> None:
    assert "not clearly better on the 60 jobs" in newest(rows(0.1), error).objection


def test_a_fifth_of_the_labels_three_times_too_large_makes_no_version_better() -> None:
    """Nothing in a job says that its label is wrong: who answers rightly about the others errs on it, both do."""
    measured = np.where(np.arange(60) % 5 == 0, 3 * MEASURED, MEASURED)
    served = dataclasses.replace(rows(0.05), measured=tuple(measured.tolist()))
    assert newest(served, 0.05).objection


def test_jobs_of_few_families_judge_no_change() -> None:
    slower = dataclasses.replace(rows(0.0), predicted=tuple((MEASURED / 1.5).tolist()))
    assert "only 4 families" in newest(slower, 0.01, count=4).objection
    assert newest(slower, 0.01, count=5).objection == ""
    assert "only 0 families" in newest(slower, 0.01, count=0).objection

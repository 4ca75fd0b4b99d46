"""What the predictor learns from co-locations while it serves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor_service.inference import observed_pairs
from predictor_service.inference.observed_pairs import COUNT_MAX, Observation, ObservedPairs
from predictor_service.inference.pair_correction import correct_pairs
from predictor_service.outcome_journal import PredictionEntry
from tests.support.cases import for_each

_ENTRY = PredictionEntry(
    prediction_id="p", at_ms=0, kind="pairs", device="cpu-standin", model_version="v",
    content={"job_ids": ["x", "y"], "job_keys": ["key-x", "key-y"]},
)  # fmt: skip


def _outcome(**changes: object) -> dict[str, object]:
    return {"slowdown_ratio": 0.5, "victim_job_id": "x", "other_job_id": "y", "window_ms": 10_000, **changes}


def test_a_new_cluster_whose_prior_is_wrong_is_predicted_right_after_a_few_windows() -> None:
    random = np.random.default_rng(0)
    sensitivity, effect = random.uniform(0.0, 0.6, 6), random.uniform(0.0, 0.6, 6)
    truth = np.log1p(0.8 + sensitivity[:, None] + effect[None, :])
    prior = np.full((6, 6), math.log1p(0.1))
    table = ObservedPairs()
    errors = []
    places = [(int(pair) // 6, int(pair) % 6) for pair in random.permutation(36)]
    for seen in range(0, 25, 6):
        observed = {
            (int(v[1:]), int(o[1:])): each for (v, o), each in table.among("d", [f"j{n}" for n in range(6)]).items()
        }
        errors.append(float(np.abs(prior + correct_pairs(prior, 0.35**2, observed).shift - truth).mean()))
        for victim, other in places[seen : seen + 6]:
            measured = math.expm1(truth[victim, other] + 0.03 * random.standard_normal())
            table.observe("d", f"j{victim}", f"j{other}", measured)
    assert errors[1] < 0.4 * errors[0]
    assert errors[-1] < 0.15 * errors[0]


def test_one_bad_window_moves_little_and_a_lasting_change_wins() -> None:
    seen = Observation(count=1.0, mean=0.2)
    for _ in range(15):
        seen = seen.with_sample(0.2)
    assert seen.with_sample(3.0).mean < 0.23
    for _ in range(60):
        seen = seen.with_sample(0.8)
    assert seen.mean == pytest.approx(0.8, abs=0.05)
    assert seen.count == COUNT_MAX


def test_pairs_that_were_never_measured_learn_from_those_that_share_a_job() -> None:
    prior = np.zeros((3, 3))
    shift = correct_pairs(prior, 0.1, {(0, 1): Observation(count=20.0, mean=0.4)}).shift
    assert shift[0, 1] == pytest.approx(0.4, abs=0.01)
    assert shift[0, 2] == pytest.approx(shift[2, 1])
    assert 0.0 < shift[2, 0] < shift[0, 2] < shift[0, 1]


def test_a_pair_is_left_uncertain_by_every_part_of_it_that_no_measured_pair_has() -> None:
    left = correct_pairs(np.zeros((3, 3)), 0.4, {(0, 1): Observation(count=20.0, mean=0.1)}).left
    assert left[0, 2] == left[2, 1] < left[2, 0]
    assert left[2, 0] < math.sqrt(0.4)
    doubted = correct_pairs(np.zeros((3, 3)), 0.4, {(0, 1): Observation(count=20.0, mean=2.0)}).left
    assert (doubted > left).all()


def test_outcomes_are_filed_under_the_keys_of_the_jobs() -> None:
    table = ObservedPairs()
    assert table.learn([(_ENTRY, _outcome())]) == 1
    assert table.among("cpu-standin", ["key-x", "key-y"])["key-x", "key-y"].mean == pytest.approx(math.log(1.5))
    assert table.among("cpu-standin", ["key-x"]) == {}
    assert table.among("another", ["key-x", "key-y"]) == {}


@for_each(
    "outcome",
    [
        _outcome(quality_flags=["speed_changed"]),
        _outcome(window_ms=100),
        _outcome(slowdown_ratio=float("nan")),
        _outcome(slowdown_ratio=-1.0),
        _outcome(victim_job_id="nobody"),
        {"step_ms_mean": 3.0, "window_ms": 10_000},
    ],
)
def test_outcomes_that_say_nothing_reliable_of_a_pair_are_left_out(outcome: dict[str, object]) -> None:
    assert ObservedPairs().learn([(_ENTRY, outcome)]) == 0


def test_the_table_is_bounded_and_forgets_the_oldest_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_pairs, "PAIRS_MAX", 3)
    table = ObservedPairs()
    for number in (1, 2, 3, 1, 4):
        table.observe("d", "victim", f"other{number}", 0.1)
    known = table.among("d", ["victim", "other1", "other2", "other3", "other4"])
    assert sorted(other for _, other in known) == ["other1", "other3", "other4"]


def test_partners_of_a_job_in_question_help_before_the_most_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_pairs, "PAIRS_MAX", 4)
    table = ObservedPairs()
    table.observe("d", "forgotten", "a", 0.5)
    for _ in range(9):
        table.observe("d", "often", "elsewhere", 0.5)
    for victim, other in (("a", "once"), ("twice", "a"), ("twice", "a"), ("a", "a")):
        table.observe("d", victim, other, 0.5)
    assert table.others("d", ["a"], 9) == ["twice", "once", "often", "elsewhere"]
    assert table.others("d", ["a"], 1) == ["twice"]
    assert table.others("d", ["a", "twice", "once"], 1) == ["often"]
    assert table.others("e", ["a"], 9) == []

"""Whether a network is like those of known families, by the shares of its operators."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.operator_mix import (
    FALSE_ALARM_RATIO,
    OPERATORS,
    RELATED_MIN,
    OperatorMix,
    learn_operator_mix,
    number_networks,
)

FAMILIES = 5
PER_FAMILY = 20


def vector(counts: FloatArray, size: float = 1.0, batch: float = 8.0) -> FloatArray:
    """The vector of a job whose network has so many operators of each family."""
    values = np.zeros(len(FEATURES))
    for name, count in zip(OPERATORS, counts.tolist(), strict=True):
        values[FEATURE_INDEX[f"log_{name}_nodes"]] = np.log1p(count)
    values[FEATURE_INDEX["log_parameters"]] = 10.0 + size
    values[FEATURE_INDEX["log_batch"]] = np.log(batch)
    return values


def family(seed: int, networks: int) -> list[FloatArray]:
    """Networks of one family: about the same shares, whatever their depth."""
    random = np.random.default_rng(seed)
    base = np.round(40 * random.dirichlet(np.ones(len(OPERATORS))))
    depths = random.integers(1, 6, networks)
    return [
        vector(np.maximum(base * depth + random.integers(-1, 2, len(base)), 0), size=float(place))
        for place, depth in enumerate(depths.tolist())
    ]


def learned(families: int = FAMILIES, per_family: int = PER_FAMILY) -> tuple[OperatorMix | None, FloatArray]:
    rows = [each for seed in range(families) for each in family(seed, per_family)]
    groups = [frozenset({f"family{place // per_family}"}) for place in range(len(rows))]
    return learn_operator_mix(np.array(rows), groups), np.array(rows)


def test_networks_of_families_that_were_left_out_are_mostly_strange_and_relatives_mostly_not() -> None:
    flagged, alarms = [], []
    for left_out in range(20, 30):
        mix, _ = learned()
        assert mix is not None
        flagged += (~mix.is_familiar(np.array(family(left_out, 5)))).tolist()
        relatives = [each for seed in range(FAMILIES) for each in family(seed, PER_FAMILY + 5)[PER_FAMILY:]]
        alarms += (~mix.is_familiar(np.array(relatives))).tolist()
    assert np.mean(flagged) > 0.9
    assert np.mean(alarms) <= 2 * FALSE_ALARM_RATIO


def test_a_measured_network_is_familiar_at_every_batch_and_depth_alone_makes_none_strange() -> None:
    mix, rows = learned()
    assert mix is not None
    other_batch = rows.copy()
    other_batch[:, FEATURE_INDEX["log_batch"]] += 3.0
    assert mix.is_familiar(other_batch).all()
    counts = np.expm1(rows[0, [FEATURE_INDEX[f"log_{name}_nodes"] for name in OPERATORS]])
    assert mix.is_familiar(vector(10 * counts)[None, :]).all()


def test_too_few_relatives_or_families_of_one_network_tell_nothing() -> None:
    assert learned(families=RELATED_MIN - 1, per_family=1)[0] is None
    assert learned(families=100, per_family=1)[0] is None
    assert learned(families=2, per_family=RELATED_MIN // 2)[0] is not None


def test_a_graph_without_operators_or_with_absurdly_many_is_judged_without_an_error() -> None:
    mix, _ = learned()
    assert mix is not None
    assert not mix.is_familiar(vector(np.zeros(len(OPERATORS)))[None, :])[0]
    assert mix.is_familiar(np.array([vector(np.full(len(OPERATORS), 1e12))])).shape == (1,)


def test_what_makes_a_network_strange_is_named_with_both_shares() -> None:
    mix, rows = learned()
    assert mix is not None
    counts = np.expm1(rows[0, [FEATURE_INDEX[f"log_{name}_nodes"] for name in OPERATORS]])
    counts[OPERATORS.index("attention")] += 3 * counts.sum()
    name, share, nearest = mix.differences(vector(counts))[0]
    assert name == "attention"
    assert share > 0.7 > nearest


def test_networks_are_numbered_by_what_they_are_and_not_by_their_settings() -> None:
    _, rows = learned()
    twice = np.concatenate([rows, rows])
    twice[len(rows) :, FEATURE_INDEX["log_batch"]] += 1.0
    twice[len(rows) :, FEATURE_INDEX["optimizer_slots"]] = 2.0
    numbers = number_networks(twice)
    assert (numbers[: len(rows)] == numbers[len(rows) :]).all()
    assert len(set(numbers.tolist())) == len(rows)


def test_measured_networks_are_not_strange_and_left_out_families_are_wholly_so_at_the_far_distance() -> None:
    mix, rows = learned()
    assert mix is not None
    assert 0 < mix.near < mix.far
    assert mix.novelty(rows) == pytest.approx(0.0)
    strange = mix.novelty(np.array([each for seed in range(20, 30) for each in family(seed, 5)]))
    assert ((strange >= 0.0) & (strange <= 1.0)).all()
    assert strange.mean() > 0.7


def test_networks_that_were_measured_are_as_strange_as_if_they_had_not_been() -> None:
    _, rows = learned()
    odd = vector(np.eye(len(OPERATORS))[OPERATORS.index("recurrent")] * 1000.0, size=500.0)
    measured = np.vstack([rows, odd, odd])  # at two batches
    groups = [frozenset({f"family{place // PER_FAMILY}"}) for place in range(len(rows))] + [frozenset({"odd"})] * 2
    mix = learn_operator_mix(measured, groups)
    assert mix is not None
    assert mix.novelty(measured) == pytest.approx(0.0)
    assert mix.novelty_among(measured)[-2:].tolist() == [1.0, 1.0]
    assert 0.02 < (mix.novelty_among(measured)[:-2] > 0).mean() < 0.2  # a tenth are beyond `near`

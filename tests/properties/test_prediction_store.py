"""What a store answers about a pair follows from what was reported to it, however often it was asked in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.device_sharing import DeviceSharing
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import Level, PairPrediction
from tests.support.contradictions import CONTRADICTIONS

KEYS = ("a", "b", "c")
KEY, SUB_BATCH, RATIO = st.sampled_from(KEYS), st.sampled_from((0, 4)), st.sampled_from((-0.5, 0.0, 0.1, 2.0))
Change = Callable[[PredictionStore], object]


def reported(
    victim: str, other: str, micro_batch_size: int, ratio: float, sharing: DeviceSharing = DeviceSharing.UNSTATED
) -> Change:
    pair = PairPrediction(
        victim_key=victim,
        other_key=other,
        device="d",
        slowdown_ratio=ratio,
        upper_ratio=ratio,
        micro_batch_size=micro_batch_size,
        model_version=f"m{ratio}",
        sharing=sharing,
    )
    return lambda store: store.put_pair(pair)


def measured(victim: str, other: str, ratio: float) -> Change:
    return lambda store: store.observe_pair(victim, other, "d", ratio)


def used_up(key: str) -> Change:
    def change(store: PredictionStore) -> None:
        for one in KEYS:
            store.use(one)
        store.forget_unused([one for one in KEYS if one != key])

    return change


CHANGES = st.lists(
    st.builds(reported, KEY, KEY, SUB_BATCH, RATIO) | st.builds(measured, KEY, KEY, RATIO) | st.builds(used_up, KEY),
    max_size=12,
)


def answers(store: PredictionStore) -> list[PairPrediction | None]:
    return [store.pair(one, two, "d", micro_batch_size) for one in KEYS for two in KEYS for micro_batch_size in (0, 4)]


@given(CHANGES)
def test_asking_changes_no_later_answer(changes: list[Change]) -> None:
    asked, silent = PredictionStore(keys_max=2), PredictionStore(keys_max=2)
    for change in changes:
        answers(asked)
        change(asked)
        change(silent)
    assert answers(asked) == answers(silent)


def test_a_measured_pair_is_answered_as_measured_with_the_newest_average() -> None:
    store = PredictionStore()
    reported("a", "b", 0, 0.1)(store)
    for ratio in (0.5, 1.0):
        measured("a", "b", ratio)(store)
        store.pair("a", "b", "d")
    seen = store.pair("a", "b", "d")
    assert seen is not None
    assert (seen.level, round(seen.slowdown_ratio, 6), seen.times_measured) == (Level.OBSERVED, 0.55, 2)


WAY = st.sampled_from(DeviceSharing)


@given(st.lists(st.tuples(WAY, KEY, KEY, RATIO, st.booleans()), max_size=12))
def test_what_is_known_of_one_way_of_sharing_follows_from_that_way_alone(
    changes: list[tuple[DeviceSharing, str, str, float, bool]],
) -> None:
    for way in DeviceSharing:
        full, own = PredictionStore(), PredictionStore()
        for sharing, victim, other, ratio, is_measured in changes:
            for store in (full, own) if sharing is way else (full,):
                store.share("d", sharing)
                reported(victim, other, 0, ratio, sharing)(store)
                if is_measured:
                    measured(victim, other, ratio)(store)
        for store in (full, own):
            store.share("d", way)
        assert answers(full) == answers(own)
        assert full.observed_among(KEYS, "d") == own.observed_among(KEYS, "d")


@pytest.mark.parametrize(("above_stated", "is_contradicted"), CONTRADICTIONS)
def test_a_sure_prediction_is_contradicted_by_what_lies_above_the_range_that_the_answer_states(
    above_stated: float, is_contradicted: bool
) -> None:
    store = PredictionStore()
    stated = PairPrediction(victim_key="a", other_key="b", device="d", slowdown_ratio=0.6, upper_ratio=0.7)
    store.put_pair(stated)
    store.observe_pair("a", "b", "d", stated.upper_ratio + above_stated, is_doubtful=True)
    found = store.pair("a", "b", "d")
    assert found is not None
    assert (not found.in_domain, found.level is Level.OBSERVED) == (is_contradicted, is_contradicted)

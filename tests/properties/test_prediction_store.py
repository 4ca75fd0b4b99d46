"""What a store answers about a pair follows from what was reported to it, however often it was asked in between."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import Level, PairPrediction

KEYS = ("a", "b", "c")
KEY, SUB_BATCH, RATIO = st.sampled_from(KEYS), st.sampled_from((0, 4)), st.sampled_from((-0.5, 0.0, 0.1, 2.0))
Change = Callable[[PredictionStore], object]


def reported(victim: str, other: str, micro_batch_size: int, ratio: float) -> Change:
    pair = PairPrediction(
        victim_key=victim,
        other_key=other,
        device="d",
        slowdown_ratio=ratio,
        upper_ratio=ratio,
        micro_batch_size=micro_batch_size,
        model_version=f"m{ratio}",
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

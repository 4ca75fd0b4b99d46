"""How strange a job is: by what its graph does, continuous, and never by a name."""

from __future__ import annotations

import numpy as np
import pytest

from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.regressors.interface import FloatArray
from predictor_service.selection import nearness
from predictor_service.selection.folds import setting_folds
from predictor_service.selection.nearness import Nearness, learn_nearness, name_kinds

FAMILIES = 6
BATCHES = (8, 16, 32, 64)


def job(parameters: float, batch: float, **others: float) -> FloatArray:
    """A vector that differs from others in what is named."""
    vector = np.zeros(len(FEATURES))
    for name, value in {"log_parameters": parameters, "log_batch": np.log(batch), **others}.items():
        vector[FEATURE_INDEX[name]] = value
    return vector


def measured() -> tuple[FloatArray, list[frozenset[str]]]:
    """One graph of each family, a unit apart in parameters and nodes, at four batches."""
    vectors = [job(10.0 + family, batch, log_nodes=family) for family in range(FAMILIES) for batch in BATCHES]
    return np.array(vectors), [frozenset({f"family-{row // len(BATCHES)}"}) for row in range(len(vectors))]


def learned() -> Nearness:
    found = learn_nearness(*measured())
    assert found is not None
    return found


def novelty_of(known: Nearness, vectors: FloatArray) -> FloatArray:
    names = (*known.kind_columns, *known.setting_columns)
    return known.novelty(vectors[:, [FEATURE_INDEX[name] for name in names]])


def novelty(*vectors: FloatArray) -> list[float]:
    values: list[float] = novelty_of(learned(), np.array(vectors)).tolist()
    return values


def test_measured_jobs_are_near_and_other_families_are_not() -> None:
    vectors, groups = measured()
    assert novelty_of(learned(), vectors) == pytest.approx(0.0, abs=1e-6)
    for family in range(FAMILIES):
        is_out = np.array([f"family-{family}" in members for members in groups])
        without_family = learn_nearness(
            vectors[~is_out], [members for members in groups if f"family-{family}" not in members]
        )
        assert without_family is not None
        assert novelty_of(without_family, vectors[is_out]).min() > 0.99


def test_a_kind_unlike_all_measured_ones_is_new_at_every_setting_and_a_measured_one_is_not() -> None:
    known, names = learned(), (*learned().kind_columns, *learned().setting_columns)
    places = [FEATURE_INDEX[name] for name in names]
    settings = [(batch, wait) for batch in (1, 16, 1 << 20) for wait in (0.0, 0.99)]
    for family, is_new in ((0.0, False), (40.0, True)):
        vectors = [job(10.0 + family, batch, log_nodes=family, input_wait_ratio=wait) for batch, wait in settings]
        assert known.is_unlike_all(np.array(vectors)[:, places]) is is_new
        assert (novelty_of(known, np.array(vectors)) == 1.0).all() == is_new


def test_names_of_families_do_not_matter_at_serving_and_a_graph_under_another_name_is_itself() -> None:
    vectors, groups = measured()
    twice = learn_nearness(
        np.vstack([vectors, vectors]),
        [*groups, *(frozenset({f"renamed-{name}" for name in names}) for names in groups)],
    )
    assert twice is not None
    assert twice.scale == pytest.approx(learned().scale)
    assert novelty_of(twice, vectors) == pytest.approx(0.0, abs=1e-6)


def test_novelty_grows_with_the_distance_and_never_jumps() -> None:
    steps = np.linspace(0.0, 1.5, 300)
    for path in (
        [job(10.0 - step, 16, log_nodes=-step) for step in steps],
        [job(10.0, 64 * np.exp(8.0 * step)) for step in steps],
    ):
        values = np.array(novelty(*path))
        assert values[0] == pytest.approx(0.0, abs=1e-6)
        assert values[-1] == 1.0
        assert np.diff(values).min() >= -1e-9
        assert np.diff(values).max() < 0.1


def test_settings_are_near_as_far_as_settings_were_measured() -> None:
    usual, next_batch, far_batch = novelty(
        job(12.0, 24, log_nodes=2), job(12.0, 128, log_nodes=2), job(12.0, 4096, log_nodes=2)
    )
    assert usual == pytest.approx(0.0, abs=1e-6)
    assert next_batch == pytest.approx(0.0, abs=1e-6)
    assert far_batch == 1.0


def test_a_graph_in_a_mode_that_was_never_measured_is_not_near() -> None:
    (changed,) = novelty(job(12.0, 16, log_nodes=2, is_training=1.0))
    assert changed == 1.0


def test_jobs_that_are_left_out_for_their_number_are_at_most_farther(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, groups = measured()
    monkeypatch.setattr(nearness, "MEASURED_MAX", 12)
    few = learn_nearness(vectors, groups)
    assert few is not None
    assert len(few.jobs) == 12
    assert (novelty_of(few, vectors) >= novelty_of(learned(), vectors) - 1e-9).all()


@pytest.mark.parametrize("kept", [[0, 4, 8], [0, 1, 2]])
def test_without_settings_or_without_other_families_nothing_is_near(kept: list[int]) -> None:
    vectors, groups = measured()
    assert learn_nearness(vectors[kept], [groups[row] for row in kept]) is None


def test_folds_over_settings_keep_the_kind_and_test_every_setting_once() -> None:
    vectors, _ = measured()
    alone = np.vstack([vectors, job(3.0, 8)])
    kinds, settings = name_kinds(alone)
    folds = setting_folds(kinds, settings)
    assert sorted(np.concatenate([fold.test for fold in folds]).tolist()) == list(range(len(vectors)))
    for fold in folds:
        assert set(kinds[fold.test]) <= set(kinds[fold.train])
        assert not set(settings[fold.test]) & set(settings[fold.train])

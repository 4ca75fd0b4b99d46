"""Served intervals know where errors are large: through ONNX as in the library, and on rows never seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from predictor_service.errors import ModelError
from predictor_service.fitting import competition
from predictor_service.fitting.fit import FittedTarget, FittingTask, fit_target
from predictor_service.registry.model_card import write_card
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.registry.served_version import ServedTarget
from predictor_service.registry.spread_record import SpreadRecord
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.conformal import SAFETY_FACTOR
from predictor_service.selection.local_bounds import learn_bounds
from predictor_service.selection.targets import MEMORY, SLOWDOWN, UTILIZATION, Target
from tests.support.sealed_version import sealed

FAMILIES, ROWS_EACH = 40, 10


def rows(seed: int, target: Target = MEMORY) -> tuple[FeatureArray, FloatArray]:
    """Columns, and measured values that scatter about 1 GiB, the more the larger the first column is."""
    random = np.random.default_rng(seed)
    columns = np.zeros((FAMILIES * ROWS_EACH, len(target.columns)), dtype=np.float32)
    columns[:, :2] = random.uniform(0.0, 1.0, (len(columns), 2))
    scatter = 0.02 + 0.4 * columns[:, 0]
    return columns, (1 << 30) * np.exp(random.normal(0.0, scatter))


def task(target: Target = MEMORY, families: int = FAMILIES) -> FittingTask:
    columns, measured = rows(0, target)
    kept = families * ROWS_EACH
    return FittingTask(
        target=target,
        device="cpu-standin",
        columns=columns[:kept],
        measured=measured[:kept],
        analytical_estimate=np.full(kept, float(1 << 30)),
        groups=[frozenset({f"family-{row // ROWS_EACH}"}) for row in range(kept)],
        seed=3,
    )


@pytest.fixture(autouse=True)
def one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        competition, "CANDIDATES", {name: CANDIDATES[name] for name in ("constant_correction", "ridge")}
    )


def spread_of(fitted: FittedTarget) -> SpreadRecord:
    assert fitted.record.spread is not None
    return fitted.record.spread


def served(fitted: FittedTarget) -> ServedTarget:
    assert spread_of(fitted)
    return fitted.served


def test_rows_never_seen_are_covered_where_errors_are_large_and_where_they_are_small() -> None:
    target, (columns, measured) = served(fit_target(task())), rows(1)
    bounded = target.predict_bounded(columns, np.full(len(columns), float(1 << 30)), 0.9)
    inside = (bounded.lower <= measured) & (measured <= bounded.upper)
    calm, wild = columns[:, 0] < 0.3, columns[:, 0] > 0.7
    width = np.log(bounded.upper / bounded.lower)
    assert np.median(width[calm]) < 0.6 * np.median(width[wild])
    for side in (calm, wild):
        assert inside[side].mean() > 0.8
        assert (measured <= bounded.upper_99)[side].mean() > 0.95


def inside(fitted: FittedTarget, columns: FeatureArray) -> FeatureArray:
    """Rows moved to the edge of what was trained: beyond it ranges grow."""
    return np.clip(columns, *fitted.record.domain.trained).astype(np.float32)


def test_beyond_what_was_trained_ranges_grow_with_the_distance() -> None:
    fitted = fit_target(task())
    low, high = fitted.record.domain.trained
    columns = np.repeat(((low + high) / 2.0)[None, :], 3, axis=0)
    columns[:, 0] = high[0] + np.array([0.0, 1.0, 3.0])
    bounded = served(fitted).predict_bounded(columns.astype(np.float32), np.full(3, 7.0), 0.9)
    edge = served(fitted).predict_bounded(columns[:1].astype(np.float32), np.full(1, 7.0), 0.9)
    assert bounded.lower[0] == pytest.approx(edge.lower[0])
    grown = np.log(bounded.upper / bounded.value)
    # The spread that was learned may differ from row to row, by far less than three units outside add.
    assert grown[2] - grown[0] > 0.25 * 3.0 - 0.2
    assert (bounded.upper_99 / bounded.value)[2] > (bounded.upper_99 / bounded.value)[0] * 1.5


def test_the_widths_are_those_of_the_library_that_learned_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "CANDIDATES", {"ridge": CANDIDATES["ridge"]})
    learned_from = task()
    fitted = fit_target(learned_from)
    columns = inside(fitted, rows(1)[0])
    held_out = fitted.score.held_out
    native = learn_bounds(
        learned_from.columns[held_out.row].astype(np.float64),
        np.log(learned_from.measured / learned_from.analytical_estimate)[held_out.row] - held_out.value,
        [learned_from.groups[row] for row in held_out.row.tolist()],
        learned_from.seed,
        one_vote_per_group=True,
    )
    bounded = served(fitted).predict_bounded(columns, np.full(len(columns), 1.0), 0.9)
    half_width, upper = np.log(bounded.upper / bounded.value), np.log(bounded.upper_99 / bounded.value)
    assert half_width == pytest.approx(native.interval(columns.astype(np.float64), 0.9), rel=1e-3)
    assert upper == pytest.approx(native.upper(columns.astype(np.float64), 0.99), rel=1e-3)
    assert upper.max() <= max(native.plain.residuals) * SAFETY_FACTOR + 1e-6


def test_few_rows_and_slowdowns_keep_one_width() -> None:
    few, slowdowns = fit_target(task(families=5)), fit_target(task(SLOWDOWN))
    for fitted in (few, slowdowns):
        assert fitted.record.spread is None
        (content,) = fitted.files.values()
        target = ServedTarget(fitted.record, OnnxModel(content))
        columns = rows(1, target.target)[0]
        assert set(target.spread(columns).tolist()) == {1.0}


def test_no_interval_of_a_share_is_narrower_than_it_can_be_measured() -> None:
    always_busy = dataclasses.replace(
        task(UTILIZATION), measured=np.ones(FAMILIES * ROWS_EACH), analytical_estimate=np.ones(FAMILIES * ROWS_EACH)
    )
    fitted = fit_target(always_busy)
    target = ServedTarget(fitted.record, OnnxModel(fitted.files[fitted.record.file_name]))
    bounded = target.predict_bounded(inside(fitted, rows(1, UTILIZATION)[0]), np.ones(FAMILIES * ROWS_EACH), 0.9)
    assert bounded.value == pytest.approx(1.0)
    assert bounded.lower == pytest.approx(0.95)
    assert bounded.upper == pytest.approx(1.0)


def stored(folder: Path, fitted: FittedTarget) -> tuple[VersionStore, str]:
    manifest = sealed(fitted.record)
    store = VersionStore(folder)
    store.add(manifest, fitted.files)
    return store, manifest.version


def test_a_stored_version_answers_as_before_and_its_card_states_it(tmp_path: Path) -> None:
    fitted = fit_target(task())
    store, name = stored(tmp_path, fitted)
    columns, analytical_estimate = rows(1)[0], np.full(FAMILIES * ROWS_EACH, 7.0)
    loaded = store.load(name).devices["cpu-standin"][MEMORY.name]
    before, after = (each.predict_bounded(columns, analytical_estimate, 0.8) for each in (served(fitted), loaded))
    for field in dataclasses.fields(before):
        assert np.array_equal(getattr(before, field.name), getattr(after, field.name))
    assert "They follow what was learned of the size of errors" in write_card(store.manifest(name))


def test_a_version_whose_spread_was_changed_is_refused(tmp_path: Path) -> None:
    fitted = fit_target(task())
    store, name = stored(tmp_path, fitted)
    path = tmp_path / "versions" / name / spread_of(fitted).file_name
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ModelError, match="is damaged"):
        store.load(name)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        store.load(name)


def test_equal_rows_and_seed_give_equal_files() -> None:
    first, second = fit_target(task()), fit_target(task())
    assert first.files == second.files


def test_the_error_of_a_version_is_never_the_one_that_its_candidate_was_chosen_by() -> None:
    """Two candidates of equal skill: the better one's own error is flattered by having been chosen."""
    random = np.random.default_rng(0)
    columns = np.zeros((FAMILIES, len(MEMORY.columns)), dtype=np.float32)
    columns[:, :2] = random.normal(size=(FAMILIES, 2))
    learned_from = dataclasses.replace(
        task(),
        columns=columns,
        measured=(1 << 30) * np.exp(0.05 * columns[:, 0] + random.normal(0.0, 0.1, FAMILIES)),
        analytical_estimate=np.full(FAMILIES, float(1 << 30)),
        groups=[frozenset({f"family-{row}"}) for row in range(FAMILIES)],
    )
    fitted = fit_target(learned_from)
    chosen = np.abs(fitted.held_out_values() - learned_from.measured) / learned_from.measured
    assert fitted.record.mape_ratio > 1.02 * float(chosen.mean())

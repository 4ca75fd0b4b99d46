"""Jobs whose graph was measured get narrower intervals than unseen jobs, and these keep theirs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from predictor_service.features.job_features import FEATURE_INDEX, FEATURES
from predictor_service.fitting import competition
from predictor_service.fitting.fit import FittedTarget, FittingTask, fit_target
from predictor_service.fitting.near_errors import learn_near
from predictor_service.registry.model_card import write_card
from predictor_service.registry.onnx_model import OnnxModel
from predictor_service.registry.served_version import ServedTarget
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.regressors.interface import FloatArray
from predictor_service.selection.targets import MEMORY
from tests.support.sealed_version import sealed

FAMILIES = 24
BATCHES = tuple(2**power for power in range(8))
GIB = float(1 << 30)


def measured(families: range, seed: int = 0) -> tuple[FloatArray, FloatArray, list[frozenset[str]]]:
    """Vectors, memory and families; a family is off by a factor of its own, its settings by a few per cent."""
    random = np.random.default_rng(seed)
    vectors = np.zeros((len(families) * len(BATCHES), len(FEATURES)))
    ratios = {family: np.random.default_rng([7, family]).normal(0.0, 0.5) for family in families}
    rows = [(family, batch) for family in families for batch in BATCHES]
    for vector, (family, batch) in zip(vectors, rows, strict=True):
        vector[FEATURE_INDEX["log_parameters"]] = 10.0 * (family * 7 % 31)
        vector[FEATURE_INDEX["log_nodes"]] = 10.0 * (family * 11 % 31)
        vector[FEATURE_INDEX["log_batch"]] = np.log(batch)
    noise = random.normal(0.0, 0.02, len(rows))
    values = GIB * np.exp([ratios[family] for family, _ in rows] + noise)
    return vectors, values, [frozenset({f"family-{family}"}) for family, _ in rows]


def columns_of(vectors: FloatArray) -> FloatArray:
    return vectors[:, [FEATURE_INDEX[name] for name in MEMORY.columns]]


def task(families: range = range(FAMILIES)) -> FittingTask:
    vectors, values, groups = measured(families)
    return FittingTask(
        target=MEMORY,
        device="cpu-standin",
        columns=columns_of(vectors).astype(np.float32),
        measured=values,
        analytical_estimate=np.full(len(values), GIB),
        groups=groups,
        seed=3,
        features=vectors,
    )


@pytest.fixture(autouse=True)
def one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(competition, "CANDIDATES", {"decision_tree": CANDIDATES["decision_tree"]})


@pytest.fixture
def fitted() -> FittedTarget:
    return fit_target(task())


def served(fitted: FittedTarget) -> ServedTarget:
    spread = fitted.record.spread
    return ServedTarget(
        fitted.record,
        OnnxModel(fitted.files[fitted.record.file_name]),
        OnnxModel(fitted.files[spread.file_name]) if spread else None,
    )


def widths(target: ServedTarget, vectors: FloatArray, near: FloatArray | None, confidence: float = 0.9) -> FloatArray:
    columns = columns_of(vectors).astype(np.float32)
    bounded = target.predict_bounded(columns, np.full(len(vectors), GIB), confidence, novelty=near)
    return np.asarray(np.log(bounded.upper / bounded.lower))


def test_a_measured_graph_has_a_narrow_interval_that_holds_and_an_unseen_job_the_old_one(fitted: FittedTarget) -> None:
    target = served(fitted)
    vectors, values, _ = measured(range(FAMILIES), seed=1)
    unseen = measured(range(FAMILIES, FAMILIES + 6))[0]
    near, far = target.novelty(vectors), target.novelty(unseen)
    assert near is not None
    assert far is not None
    assert near == pytest.approx(0.0, abs=1e-6)
    bounded = target.predict_bounded(
        columns_of(vectors).astype(np.float32), np.full(len(vectors), GIB), 0.9, novelty=near
    )
    assert ((bounded.lower <= values) & (values <= bounded.upper)).mean() > 0.9
    assert widths(target, vectors, near).mean() < 0.3 * widths(target, vectors, None).mean()
    assert widths(target, unseen, far)[far == 1.0] == pytest.approx(widths(target, unseen, None)[far == 1.0])


def test_nearer_is_never_wider_and_the_99_percent_bound_is_that_of_unseen_jobs(fitted: FittedTarget) -> None:
    target, vectors = served(fitted), measured(range(FAMILIES))[0]
    columns, analytical_estimate = columns_of(vectors).astype(np.float32), np.full(len(vectors), GIB)
    before = np.zeros(len(vectors))
    for share in np.linspace(0.0, 1.0, 11):
        near = np.full(len(vectors), share)
        width = widths(target, vectors, near)
        assert (width >= before - 1e-9).all()
        before = width
        bounded = target.predict_bounded(columns, analytical_estimate, 0.9, novelty=near)
        assert np.array_equal(bounded.upper_99, target.predict_bounded(columns, analytical_estimate, 0.9).upper_99)
    assert before == pytest.approx(widths(target, vectors, None))


def test_a_confidence_that_the_kinds_do_not_support_is_that_of_unseen_jobs(fitted: FittedTarget) -> None:
    target, vectors = served(fitted), measured(range(FAMILIES))[0]
    zeros = np.zeros(len(vectors))
    assert widths(target, vectors, zeros, 0.99) == pytest.approx(widths(target, vectors, None, 0.99))


def test_too_few_kinds_at_several_settings_are_taken_for_unseen_jobs() -> None:
    assert fit_target(task(range(8))).record.near is None
    assert fit_target(dataclasses.replace(task(), features=None)).record.near is None


def test_rows_that_intervals_of_unseen_jobs_miss_are_not_held_by_near_ones() -> None:
    vectors, values, groups = measured(range(FAMILIES))
    errors = np.full(len(values), 0.1)
    far = np.where(np.arange(len(values)) % len(BATCHES) < 2, 0.05, 1.0)
    assert learn_near(errors, vectors, groups, far) is None
    wide_enough = learn_near(errors, vectors, groups, np.full(len(values), 1.0))
    assert wide_enough is not None
    assert wide_enough.scores.half_width(0.9) == pytest.approx(0.1)


def test_a_stored_version_is_as_near_as_before_and_one_without_keeps_its_name(
    tmp_path: Path, fitted: FittedTarget
) -> None:
    without = dataclasses.replace(fitted.record, near=None)
    manifest, old = sealed(fitted.record), sealed(without)
    store = VersionStore(tmp_path)
    store.add(manifest, fitted.files)
    store.add(old, fitted.files)
    assert '"near"' not in old.to_json()
    loaded = [store.load(each.version).devices["cpu-standin"][MEMORY.name] for each in (manifest, old)]
    vectors = measured(range(FAMILIES, FAMILIES + 6))[0]
    expected = served(fitted).novelty(vectors)
    found = loaded[0].novelty(vectors)
    assert expected is not None
    assert found is not None
    assert np.array_equal(found, expected)
    assert loaded[1].novelty(vectors) is None
    assert "Of graphs that were measured at other settings" in write_card(store.manifest(manifest.version))

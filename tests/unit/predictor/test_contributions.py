"""Explanations: parts that add up, exact for linear models, near the exact values of trees."""

from itertools import permutations

import numpy as np
import pytest

from predictor_service.inference.contributions import (
    BASELINE,
    BETWEEN_BATCHES,
    OTHER_FEATURES,
    SHOWN_MAX,
    list_contributions,
)
from predictor_service.inference.records import JobQuestion
from predictor_service.registry.onnx_model import FeatureArray, FloatArray
from tests.support.cases import for_each
from tests.support.measured_dataset import DEVICE, FAMILIES, graphs, job_settings
from tests.support.predictor_service import open_predictor

ROW, MEAN = np.array([2.0, 5.0, 1.0], dtype=np.float32), np.array([1.0, 1.0, 1.0])
NAMES = ("a", "b", "c")


def linear(rows: FeatureArray) -> FloatArray:
    return np.asarray(rows @ np.array([3.0, -2.0, 7.0]) + 10.0)


def stepped(rows: FeatureArray) -> FloatArray:
    return np.where((rows[:, 0] > 1.5) & (rows[:, 1] > 4.0), 6.0, 1.0) + np.where(rows[:, 1] > 2.0, 1.0, 0.0)


def parts_of(answer: tuple[object, ...]) -> dict[str, float]:
    return {part.feature: part.contribution for part in answer}  # type: ignore[attr-defined]


def test_a_linear_model_gives_coefficient_times_distance() -> None:
    parts = parts_of(list_contributions(NAMES, ROW, MEAN, linear, float(linear(ROW[None, :])[0])))
    assert parts == pytest.approx({BASELINE: 18.0, "b": -8.0, "a": 3.0, OTHER_FEATURES: 0.0})


def test_a_tree_gives_its_shapley_values_where_the_orders_cover_them() -> None:
    exact = np.zeros(3)
    for order in permutations(range(3)):
        row = MEAN.copy()
        for place in order:
            before = stepped(row[None, :].astype(np.float32))[0]
            row[place] = ROW[place]
            exact[place] += (stepped(row[None, :].astype(np.float32))[0] - before) / 6
    parts = parts_of(list_contributions(NAMES, ROW, MEAN, stepped, 7.0))
    assert [parts["a"], parts["b"]] == pytest.approx(exact[:2], abs=0.7)


def test_what_the_curve_over_the_batch_adds_is_named() -> None:
    parts = parts_of(list_contributions(NAMES, ROW, MEAN, linear, 20.0))
    assert parts[BETWEEN_BATCHES] == pytest.approx(20.0 - 13.0)


@for_each("family", FAMILIES)
@for_each("batch", [32, 100])
def test_the_parts_of_a_served_answer_add_up_to_it(family: str, batch: int) -> None:
    question = JobQuestion(
        settings=job_settings(family, batch), device=DEVICE, onnx_graph=graphs()[family], explain=True
    )
    answer = open_predictor().predict_job(question)
    for estimate in (answer.memory_bytes, answer.step_ms, answer.utilization_ratio):
        assert estimate.explanation[0].feature == BASELINE
        assert 1 < len(estimate.explanation) <= SHOWN_MAX + 3
        total = sum(part.contribution for part in estimate.explanation)
        assert total == pytest.approx(estimate.value, rel=1e-6)


def test_a_device_without_models_is_not_explained() -> None:
    question = JobQuestion(
        settings=job_settings("wide", 8), device="NVIDIA H200", onnx_graph=graphs()["wide"], explain=True
    )
    assert open_predictor().predict_job(question).memory_bytes.explanation == ()

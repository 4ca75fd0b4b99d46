"""The time of a step made of several passes."""

from __future__ import annotations

import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.job_features import build_features
from predictor_service.inference.accumulation import accumulate
from predictor_service.inference.records import Estimate, Level
from tests.support.onnx_graphs import perceptron

ONE = Estimate(value=10.0, lower=8.0, upper=15.0, confidence=0.9, level=Level.GRAPH, in_domain=True)


def test_one_pass_is_the_step_itself() -> None:
    assert accumulate(ONE, 1, 0.4) == ONE


def test_what_happens_once_is_charged_once_and_the_printed_form_bounds_it() -> None:
    four = accumulate(ONE, 4, 0.4)
    assert four.value == pytest.approx(4 * 6.0 + 4.0)
    assert four.lower == pytest.approx(8.0 * 2.8)
    assert four.upper == 60.0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_optimizer_weighs_more_where_the_batch_is_small(optimizer: str) -> None:
    graph = describe_graph(perceptron().SerializeToString())
    device = DEVICE_TYPES["Tesla T4"]
    small, large = (
        build_features(graph.at_batch(batch), JobSettings(global_batch_size=batch, optimizer=optimizer), device)
        for batch in (1, 4096)
    )
    assert 0.0 < large.optimizer_ratio < small.optimizer_ratio < 1.0

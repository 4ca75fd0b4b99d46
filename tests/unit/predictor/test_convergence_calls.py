"""FitLossCurve and FitSpeedModel as a client sees them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from tests.support.grpc_errors import code_of, details_of
from tests.support.predictor_service import running_server, stub_of

CURVE: Any = [{"progress": k, "value": 1 / (0.2 * k + 1) + 0.1} for k in range(20)]
SAMPLES: Any = [
    {
        "resources": {"workers": w, "servers": p, "global_batch_size": 64},
        "steps_per_s": 1 / (0.1 * 64 / w + 1 + 2 * w / p),
    }
    for w in (1, 2, 4)
    for p in (1, 2, 3)
]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prediction_pb2_grpc.PredictionServiceStub]:
    folder: Path = tmp_path_factory.mktemp("convergence")
    with running_server(folder) as channel:
        yield stub_of(channel)


def test_a_loss_curve_is_answered_with_every_form_and_an_interval(
    stub: prediction_pb2_grpc.PredictionServiceStub,
) -> None:
    answer = stub.FitLossCurve(messages.FitLossCurveRequest(points=CURVE, convergence_threshold=0.002))
    assert {curve.name for curve in answer.curves} == {"optimus", "reciprocal", "power", "exponential"}
    assert 19 < answer.lower < answer.epochs_total < answer.upper
    assert answer.confidence == 0.9
    assert answer.HasField("loose_epochs_total")


def test_an_accuracy_is_predicted_as_the_loss_that_it_leaves(stub: prediction_pb2_grpc.PredictionServiceStub) -> None:
    accuracy: Any = [{"progress": k, "value": 0.9 - 0.8 / (0.2 * k + 1)} for k in range(20)]
    request = messages.FitLossCurveRequest(points=accuracy, metric=messages.CURVE_METRIC_ACCURACY, target_value=0.85)
    answer = stub.FitLossCurve(request)
    assert answer.epochs_total == pytest.approx(75, rel=0.3)  # 0.9 - 0.8 / (0.2 k + 1) = 0.85


def test_three_points_are_too_few_and_it_says_so(stub: prediction_pb2_grpc.PredictionServiceStub) -> None:
    answer = stub.FitLossCurve(messages.FitLossCurveRequest(points=CURVE[:3], convergence_threshold=0.002))
    assert not answer.HasField("epochs_total")
    assert [warning.code for warning in answer.warnings] == ["TOO_FEW_POINTS"]


def test_speeds_are_predicted_with_the_time_that_remains(stub: prediction_pb2_grpc.PredictionServiceStub) -> None:
    asked: Any = [{"workers": 8, "servers": 4, "global_batch_size": 64}]
    request = messages.FitSpeedModelRequest(
        synchrony=messages.TRAINING_SYNCHRONY_SYNCHRONOUS, samples=SAMPLES, asked=asked, steps_remaining=1000
    )
    answer = stub.FitSpeedModel(request)
    expected = 1 / (0.1 * 64 / 8 + 1 + 2 * 8 / 4)
    assert answer.predictions[0].steps_per_s == pytest.approx(expected, rel=1e-6)
    assert answer.predictions[0].remaining_ms == round(1e6 / answer.predictions[0].steps_per_s)
    assert answer.error_ratio < 1e-6


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"convergence_threshold": 0.0}, "convergence_threshold"),
        ({"convergence_threshold": float("nan")}, "convergence_threshold"),
        ({"target_value": -1.0}, "target_value"),
        ({"patience": -1, "convergence_threshold": 0.1}, "patience"),
        ({"confidence": 2.0, "convergence_threshold": 0.1}, "confidence"),
        ({"metric": 7, "convergence_threshold": 0.1}, "metric"),
        ({"metric": 2, "target_value": 0.5}, "accuracy"),
        ({"rate_drops": [1.0] * 1001, "convergence_threshold": 0.1}, "rate_drops"),
        ({"points": CURVE * 5001, "convergence_threshold": 0.1}, "at most"),
        ({"epoch_length": -1.0, "convergence_threshold": 0.1}, "epoch_length"),
        ({"epoch_length": 5e-324, "convergence_threshold": 0.1}, "epochs"),
        ({"points": [{"progress": 1e300, "value": 1.0}] * 9, "convergence_threshold": 0.1}, "epochs"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_by_name(
    stub: prediction_pb2_grpc.PredictionServiceStub, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.FitLossCurve(messages.FitLossCurveRequest(**{"points": CURVE, **change}))
    assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert named in details_of(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"synchrony": 0}, "synchrony"),
        ({"samples": []}, "samples"),
        ({"samples": [{"resources": {"workers": 1}, "steps_per_s": 0.0}]}, "steps_per_s"),
        ({"samples": [{"resources": {"workers": 1}, "steps_per_s": 1e308}]}, "steps_per_s"),
        ({"samples": [{"resources": {"workers": 1}, "steps_per_s": 5e-324}]}, "steps_per_s"),
        ({"samples": [{"resources": {"workers": 0}, "steps_per_s": 1.0}]}, "workers"),
        ({"asked": [{"workers": -3}]}, "workers"),
        ({"steps_remaining": float("inf")}, "steps_remaining"),
    ],
)
def test_speed_samples_that_cannot_be_are_refused_by_name(
    stub: prediction_pb2_grpc.PredictionServiceStub, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.FitSpeedModel(messages.FitSpeedModelRequest(**{"synchrony": 2, "samples": SAMPLES, **change}))
    assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert named in details_of(caught.value)

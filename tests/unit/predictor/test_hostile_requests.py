"""Requests that are small on the wire and large once read: refused before they are, and in few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from cotenant.graph_file import GraphTooLargeError, strip_weights
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import resources_pb2
from predictor_service.errors import InvalidRequestError, UnknownDeviceError
from predictor_service.grpc_api.status_codes import status_of
from predictor_service.grpc_api.translate_requests import (
    SETTINGS_BYTES_MAX,
    job_question,
    job_settings,
    pairs_question,
    risk_question,
)

TRAILER_BYTES_MAX = 8 << 10
OBSERVED = messages.ObservedPair()
# Refused as soon as one of them is read.
UNREADABLE: Any = {"settings": {"global_batch_size": 1, "mode": 99}}


@pytest.mark.parametrize(
    ("read", "request_of", "field", "parts_max"),
    [
        (
            job_question,
            lambda count: messages.PredictJobRequest(micro_batch_sizes=[1] * count),
            "micro_batch_sizes",
            64,
        ),
        (pairs_question, lambda count: messages.PredictPairsRequest(jobs=[UNREADABLE] * count), "jobs", 500),
        (pairs_question, lambda count: messages.PredictPairsRequest(observed=[OBSERVED] * count), "observed", 250_000),
        (risk_question, lambda count: messages.PredictMemoryRiskRequest(jobs=[UNREADABLE] * count), "jobs", 64),
    ],
)
def test_parts_are_counted_before_one_is_read(
    read: Callable[[Any], object], request_of: Callable[[int], Any], field: str, parts_max: int
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: {parts_max + 1}, more than {parts_max}"):
        read(request_of(parts_max + 1))


@pytest.mark.parametrize("bindings", [{str(number): 1 for number in range(20_000)}, {"x" * SETTINGS_BYTES_MAX: 1}])
def test_settings_of_a_job_may_not_be_long(bindings: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="settings: those of a job have"):
        job_settings(resources_pb2.JobSettings(global_batch_size=1, dimension_bindings=bindings))
    assert job_settings(resources_pb2.JobSettings(global_batch_size=1, dimension_bindings={"x": 1})).dimension_bindings


@pytest.mark.parametrize("letter", ["d", "€", "\U0001f600"])
def test_a_refusal_that_quotes_megabytes_fits_into_the_trailers_of_a_call(letter: str) -> None:
    name = letter * (5 << 20)
    details = {"field": "device", "symbols": name}
    error = UnknownDeviceError(f"device {name!r} is unknown", remedy=f"not {name}", details=details)
    status = status_of(error)
    # The message travels percent-encoded, three bytes for one, and all of it once more in base 64.
    assert 3 * len(status.message.encode()) + status.ByteSize() * 4 / 3 < TRAILER_BYTES_MAX
    assert letter in status.message


def test_a_tensor_with_millions_of_dimensions_is_refused_before_they_are_multiplied() -> None:
    model = onnx.ModelProto()
    model.graph.initializer.add(name="weight", dims=[2**62] * 20_000)
    with pytest.raises(GraphTooLargeError, match="more than 64 dimensions"):
        strip_weights(model.SerializeToString())

"""Whatever bytes a caller sends to any method of a service, the answer is a status, never a traceback or a flood."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor

from cotenant.v1 import node_agent_pb2, prediction_pb2, scheduling_pb2
from tests.support.fuzzed_calls import ANSWER_BYTES_MAX, Outcome, call, fuzz, methods_of
from tests.support.live_scheduler import running_scheduler
from tests.support.predictor_service import running_server

SCHEDULER = (
    scheduling_pb2.DESCRIPTOR.services_by_name["SchedulingService"],
    node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgentService"],
)
PREDICTOR = (prediction_pb2.DESCRIPTOR.services_by_name["PredictionService"],)
# A service's own failure; the callers here are the ones at fault.
FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
# No field has the number 0, and no string ends after the message.
MALFORMED = (b"\x00\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 40)


@pytest.fixture(scope="module", params=["scheduler", "predictor"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[grpc.Channel, tuple[ServiceDescriptor, ...]]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "scheduler":
        with running_scheduler(folder) as address, grpc.insecure_channel(address) as channel:
            yield channel, SCHEDULER
    else:
        with running_server(folder) as channel:
            yield channel, PREDICTOR


Served = tuple[grpc.Channel, tuple[ServiceDescriptor, ...]]


def test_bytes_that_are_no_message_are_the_callers_fault(served: Served) -> None:
    channel, services = served
    for method in methods_of(services):
        for content in MALFORMED:
            outcome = call(channel, method, [content])
            assert outcome.code is grpc.StatusCode.INVALID_ARGUMENT, outcome
            assert "no message of this method" in outcome.details


def look(outcomes: Iterator[Outcome], caplog: pytest.LogCaptureFixture) -> Counter[str]:
    counted: Counter[str] = Counter()
    with caplog.at_level(logging.ERROR):
        for outcome in outcomes:
            assert outcome.code not in FAILURES, outcome
            assert outcome.answer_bytes <= ANSWER_BYTES_MAX, outcome
            assert "Traceback" not in outcome.details
            assert len(outcome.details) < 16_384
            counted[outcome.code.name] += 1
    tracebacks = [record.getMessage() for record in caplog.records if record.exc_info]
    assert tracebacks == []
    return counted


def test_fuzzed_calls_are_answered_by_a_status(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    channel, services = served
    counted = look(fuzz(channel, methods_of(services), calls=300, seed=11), caplog)
    assert counted["INVALID_ARGUMENT"] > 30


@pytest.mark.endurance
@pytest.mark.parametrize("seed", range(20))
def test_twenty_thousand_fuzzed_calls_are_answered_by_a_status(
    served: Served, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    channel, services = served
    look(fuzz(channel, methods_of(services), calls=1_000, seed=1_000 + seed), caplog)

"""More calls than can be answered: those in line are, the others learn when to come back, and nothing piles up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cotenant.v1 import prediction_pb2 as messages
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from tests.support.grpc_errors import code_of, reason_of, rich_status
from tests.support.measured_dataset import DEVICE, dense_network, graphs
from tests.support.predictor_service import listening_server, open_predictor, stub_of

DEADLINE_S = 240.0
LATE_S = 1.0
"""Enough for a call to be sent on a busy machine, and soon over."""
THREADS, WAITING, CLIENTS, CALLS_EACH = 2, 6, 10, 12


class GatedDescriber:
    """Describes nothing until the gate opens, and remembers what it was asked."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.asked: list[bytes] = []

    def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
        self.asked.append(data)
        self.begun.release()
        assert self.gate.wait(DEADLINE_S)
        return describe_graph(data, bindings)


@pytest.fixture
def describer() -> Iterator[GatedDescriber]:
    made = GatedDescriber()
    yield made
    made.gate.set()


def job_request(graph: bytes) -> messages.PredictJobRequest:
    settings: Any = {"global_batch_size": 8}
    return messages.PredictJobRequest(onnx_graph=graph, settings=settings, device=DEVICE)


def retry_delay_ms(error: Exception) -> int:
    for detail in rich_status(error).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return int(retry.retry_delay.ToMilliseconds())
    raise AssertionError("no time to come back")


def test_calls_in_line_are_answered_and_the_others_learn_when_to_come_back(
    tmp_path: Path, describer: GatedDescriber
) -> None:
    line, predictor = AdmissionQueue(THREADS, WAITING), open_predictor(tmp_path / "graphs", describer)
    with listening_server(tmp_path, predictor, line) as address:
        channels = [grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(CLIENTS)]
        stubs = [stub_of(channel) for channel in channels]
        # Every request has a graph of its own: nothing is answered from memory.
        requests = [job_request(dense_network([8 + number, 4])) for number in range(CLIENTS * CALLS_EACH)]
        first = [stubs[0].PredictJob.future(request, timeout=DEADLINE_S) for request in requests[:THREADS]]
        for _ in range(THREADS):
            assert describer.begun.acquire(timeout=DEADLINE_S)
        calls = first + [
            stubs[number % CLIENTS].PredictJob.future(request, timeout=DEADLINE_S)
            for number, request in enumerate(requests[THREADS:])
        ]
        refused_expected = len(requests) - THREADS - WAITING
        refused = wait_for_refusals(calls, refused_expected)
        health: Any = health_pb2_grpc.HealthStub(channels[0])
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S).status == 1
        assert len(describer.asked) == THREADS  # no call jumped the queue
        for error in refused:
            assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reason_of(error) == "OVERLOADED"
            assert 50 <= retry_delay_ms(error) <= 5_000
        describer.gate.set()
        answered = [call for call in calls if call.exception(DEADLINE_S) is None]
        assert len(answered) == THREADS + WAITING
        assert all(call.result().step_ms.value > 0 for call in answered)
        assert stubs[1].PredictJob(requests[-1], timeout=DEADLINE_S).step_ms.value > 0
        for channel in channels:
            channel.close()


def wait_for_refusals(calls: list[Any], count: int) -> list[Exception]:
    """Waits until so many calls have failed; the others go on."""
    failed: list[Exception] = []
    enough = threading.Event()

    def note(call: Any) -> None:
        if call.code() is not grpc.StatusCode.OK:
            failed.append(call)
        if len(failed) >= count:
            enough.set()

    for call in calls:
        call.add_done_callback(note)
    assert enough.wait(DEADLINE_S), f"{len(failed)} of {count} were refused"
    return list(failed)


def test_calls_of_a_client_that_went_away_leave_their_places(tmp_path: Path, describer: GatedDescriber) -> None:
    predictor, waiting = open_predictor(tmp_path / "graphs", describer), 6
    request = job_request(graphs()["wide"])
    with (
        listening_server(tmp_path, predictor, AdmissionQueue(1, waiting)) as address,
        grpc.insecure_channel(address) as channel,
    ):
        stub = stub_of(channel)
        under_way = stub.PredictJob.future(request, timeout=DEADLINE_S)
        assert describer.begun.acquire(timeout=DEADLINE_S)
        leaving = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        calls = [
            stub_of(leaving).PredictJob.future(job_request(dense_network([8 + number, 4])), timeout=DEADLINE_S)
            for number in range(waiting + 1)
        ]
        wait_for_refusals(calls, 1)  # the one too many: all the others stand in line
        leaving.close()
        describer.gate.set()
        assert under_way.result(DEADLINE_S).step_ms.value > 0
        # A call that is admitted waits behind those that went away, so when it is answered they are gone.
        assert ask_until_admitted(stub, request).step_ms.value > 0
        again = [stub.PredictJob.future(request, timeout=DEADLINE_S) for _ in range(waiting)]
        assert all(call.result(DEADLINE_S).step_ms.value > 0 for call in again)


def ask_until_admitted(stub: Any, request: messages.PredictJobRequest) -> messages.PredictJobResponse:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.1)):
        call = stub.PredictJob.future(request, timeout=DEADLINE_S)
        error = call.exception(DEADLINE_S)
        if error is None:
            answer: messages.PredictJobResponse = call.result()
            return answer
        assert reason_of(error) == "OVERLOADED"
        pause.wait(0.1)
    raise AssertionError("the line never emptied")


def test_a_call_whose_deadline_passes_in_line_is_never_begun(tmp_path: Path, describer: GatedDescriber) -> None:
    predictor = open_predictor(tmp_path / "graphs", describer)
    slow, late = graphs()["wide"], graphs()["deep"]
    with (
        listening_server(tmp_path, predictor, AdmissionQueue(threads=1, waiting_max=1)) as address,
        grpc.insecure_channel(address) as channel,
    ):
        stub = stub_of(channel)
        under_way = stub.PredictJob.future(job_request(slow), timeout=DEADLINE_S)
        assert describer.begun.acquire(timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError) as caught:
            stub.PredictJob(job_request(late), timeout=LATE_S)
        assert code_of(caught.value) is grpc.StatusCode.DEADLINE_EXCEEDED
        # The server counts the deadline from when it read the call, later than we did. What comes after it on the same
        # connection is read after its end, and refused, because it keeps its place: then the server knows of its end.
        wait_for_refusals([stub.PredictJob.future(job_request(slow), timeout=DEADLINE_S)], 1)
        describer.gate.set()
        assert under_way.result(DEADLINE_S).step_ms.value > 0
        assert ask_until_admitted(stub, job_request(slow)).step_ms.value > 0
        assert late not in describer.asked

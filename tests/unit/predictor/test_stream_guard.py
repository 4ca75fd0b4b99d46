"""Callers that begin to send and go silent: they hold few threads, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cotenant.v1 import prediction_pb2 as messages
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.stream_guard import StreamGuard
from tests.support.grpc_errors import code_of
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import running_server, stub_of

THREADS = 8
PATIENCE_S = 240.0


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def go_silent(first: Any, over: threading.Event) -> Iterator[Any]:
    yield first
    over.wait(10 * PATIENCE_S)


def test_silent_uploads_and_reflections_leave_threads_for_all_other_clients(
    tmp_path: Path, silence: threading.Event
) -> None:
    ended: SimpleQueue[Any] = SimpleQueue()
    with running_server(tmp_path, line=AdmissionQueue(THREADS)) as channel:
        stub = stub_of(channel)
        curious: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection = curious(go_silent(question, silence))
        answered = next(reflection)
        for _ in range(THREADS):
            stub.UploadGraph.future(go_silent(messages.UploadGraphRequest(), silence)).add_done_callback(ended.put)
        refused = [ended.get(timeout=PATIENCE_S).code() for _ in range(THREADS - 1)]
        assert len(stub.ListDevices(messages.ListDevicesRequest(), timeout=PATIENCE_S).devices) > 0
        with pytest.raises(grpc.RpcError) as caught:
            next(curious(iter([question])))
        silence.set()
    assert len(answered.list_services_response.service) >= 3
    assert set(refused) == {code_of(caught.value)} == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_stream_that_lasts_too_long_is_ended_and_its_place_is_free_again(
    tmp_path: Path, silence: threading.Event
) -> None:
    line = AdmissionQueue(THREADS)
    line.streams = StreamGuard(1, stream_s=0.2)
    with running_server(tmp_path, line=line) as channel:
        upload = stub_of(channel).UploadGraph
        with pytest.raises(grpc.RpcError) as caught:
            upload(go_silent(messages.UploadGraphRequest(), silence), timeout=PATIENCE_S)
        assert code_of(caught.value) is grpc.StatusCode.CANCELLED
        line.streams = StreamGuard(1)
        content = next(iter(graphs().values()))
        assert upload(iter([messages.UploadGraphRequest(chunk=content)])).graph_sha256

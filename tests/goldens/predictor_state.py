"""The state folder of a predictor that has answered, was told outcomes and stretches, and served a trained version."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from predictor_service.registry.model_registry import ModelRegistry
from tests.support.agent import wait_until
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.predictor_service import trained_store

START_S = 90.0
SETTINGS = resources_pb2.JobSettings(global_batch_size=32, optimizer=resources_pb2.OPTIMIZER_ADAM)


@contextmanager
def serving(state: Path) -> Iterator[prediction_pb2_grpc.PredictionServiceStub]:
    """A predictor as a process on a state folder; it learns nothing anew unless it must."""
    ready = state.parent / "ready.json"
    ready.unlink(missing_ok=True)
    arguments = ["--state-dir", str(state), "--ready-file", str(ready), "--address", "127.0.0.1:0"]
    arguments += ["--metrics-address", "", "--datasets", str(state.parent / "no-datasets")]
    with (state.parent / "predictor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "predictor_service", "serve", *arguments],
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the predictor serves", START_S)
        assert ready.exists(), (state.parent / "predictor.log").read_text()[-2000:]
        with grpc.insecure_channel(str(json.loads(ready.read_text())["address"])) as channel:
            yield prediction_pb2_grpc.PredictionServiceStub(channel)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=90)


def write_state(state: Path) -> dict[str, Any]:
    """Make the folder; returns what must be found in it later."""
    store = trained_store()
    shutil.copytree(store._root, state / "models")  # the folder that `train` has made
    ModelRegistry(state / "models", "the writer of goldens")
    with serving(state) as stub:
        sha256 = _upload(stub)
        answer = stub.PredictJob(question(sha256), timeout=90)
        outcome = messages.Outcome(
            prediction_id=answer.prediction_id, step_ms_mean=3.0, memory_peak_bytes=50_000_000, window_ms=20_000
        )
        recorded = stub.RecordOutcomes(messages.RecordOutcomesRequest(request_id="first", outcomes=[outcome]))
        kept = stub.RecordMeasurementWindows(
            messages.RecordMeasurementWindowsRequest(measurement_windows=[_window(sha256)]), timeout=90
        )
    assert (recorded.recorded, kept.recorded) == (1, 1)
    return {
        "graph_sha256": sha256,
        "prediction_id": answer.prediction_id,
        "model_version": answer.model_version,
        "job_key": answer.job_key,
        "stretch_id": _window(sha256).window_id,
    }


def question(sha256: str) -> messages.PredictJobRequest:
    """About the job that the state knows."""
    return messages.PredictJobRequest(graph_sha256=sha256, settings=SETTINGS, device=DEVICE)


def stretches_again(sha256: str) -> messages.RecordMeasurementWindowsRequest:
    """What was handed in before, with the same id."""
    return messages.RecordMeasurementWindowsRequest(measurement_windows=[_window(sha256)])


def _upload(stub: prediction_pb2_grpc.PredictionServiceStub) -> str:
    content = graphs()["medium"]
    return stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=content)]), timeout=90).graph_sha256


def _window(sha256: str) -> resources_pb2.MeasurementWindow:
    return resources_pb2.MeasurementWindow(
        window_id=f"{7:032x}",
        campaign="collected_0123abcd",
        device=DEVICE,
        job=resources_pb2.MeasuredJob(graph_sha256=sha256, settings=SETTINGS),
        micro_batch_size=32,
        steps=4_000,
        window_ms=20_000,
        utilization_ratio=0.7,
        memory_peak_bytes=50_000_000,
    )

"""A prediction service as a process, with the calls by which its models are learned."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from cotenant.v1 import models_pb2, models_pb2_grpc, prediction_pb2, prediction_pb2_grpc
from tests.support.loaded_programs import start_program
from tests.support.measured_dataset import graphs

PATIENCE_S = 240.0
"""Only what never comes is waited for so long: a starved machine learns in a minute or two."""


class RetrainingService:
    """One process that serves on the models in a folder.

    Args:
        folder: Has state/models and datasets.
        more: Arguments of `serve`.
    """

    def __init__(self, folder: Path, *more: str) -> None:
        self.state = folder / "state"
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        arguments = ["--state-dir", str(self.state), "--datasets", str(folder / "datasets"), "--ready-file", str(ready)]
        arguments += ["--address", "127.0.0.1:0", "--metrics-address", ""]
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = start_program(
                "predictor_service",
                ["serve", *arguments, *more],
                folder=Path.cwd(),
                environment={**os.environ, "OMP_NUM_THREADS": "1"},
                output=log,
                errors=log,
            )
        wait_until(ready.exists)
        self.address = str(json.loads(ready.read_text())["address"])

    def stop(self) -> None:
        """Ends the process as systemd would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def ask(self, call: Callable[[models_pb2_grpc.ModelServiceStub], models_pb2.Retraining]) -> models_pb2.Retraining:
        """Asks on a connection of its own, which is gone afterwards."""
        with grpc.insecure_channel(self.address) as channel:
            return call(models_pb2_grpc.ModelServiceStub(channel))

    def start(self, seed: int) -> str:
        """Starts a retraining; returns its id."""
        request = models_pb2.StartRetrainingRequest(seed=seed, why="a test", request_id=f"seed-{seed}")
        return self.ask(lambda stub: stub.StartRetraining(request, timeout=90).retraining).retraining_id

    def get(self, retraining_id: str) -> models_pb2.Retraining:
        """Returns how a retraining stands."""
        request = models_pb2.GetRetrainingRequest(retraining_id=retraining_id)
        return self.ask(lambda stub: stub.GetRetraining(request, timeout=90).retraining)

    def answering_version(self) -> str:
        """Returns the version that predicts a job now; empty = no model does."""
        with grpc.insecure_channel(self.address) as channel:
            request = prediction_pb2.PredictJobRequest(
                onnx_graph=graphs()["medium"],
                device="cpu-standin",
                settings={"global_batch_size": 32},  # type: ignore[arg-type]  # the stubs lack mappings
            )
            answer = prediction_pb2_grpc.PredictionServiceStub(channel).PredictJob(request, timeout=90)
        return str(answer.model_version)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits for what must come true."""
    for _ in range(int(PATIENCE_S / 0.1)):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")

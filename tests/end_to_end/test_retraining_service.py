"""Retraining a service that runs: over gRPC, without its caller, and cut short."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import models_pb2, models_pb2_grpc, prediction_pb2, prediction_pb2_grpc
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_history import VersionAction
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.retraining_run import LOCK_FILE
from tests.support.grpc_errors import code_of
from tests.support.loaded_programs import start_program
from tests.support.measured_dataset import graphs, write_dataset
from tests.support.predictor_service import trained_store

pytestmark = pytest.mark.slow
PATIENCE_S = 100.0


class Service:
    """One process that serves on a copy of the trained models."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        arguments = ["--state-dir", str(self.state), "--datasets", str(folder / "datasets"), "--ready-file", str(ready)]
        arguments += ["--address", "127.0.0.1:0", "--metrics-address", ""]
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = start_program(
                "predictor_service",
                ["serve", *arguments],
                folder=Path.cwd(),
                environment={**os.environ, "OMP_NUM_THREADS": "1"},
                output=log,
                errors=log,
            )
        wait_until(ready.exists)
        self.address = str(json.loads(ready.read_text())["address"])

    def ask(self, call: Callable[[models_pb2_grpc.ModelServiceStub], models_pb2.Retraining]) -> models_pb2.Retraining:
        """Asks on a connection of its own, which is gone afterwards."""
        with grpc.insecure_channel(self.address) as channel:
            return call(models_pb2_grpc.ModelServiceStub(channel))

    def start(self, seed: int) -> str:
        request = models_pb2.StartRetrainingRequest(seed=seed, why="a test", request_id=f"seed-{seed}")
        return self.ask(lambda stub: stub.StartRetraining(request, timeout=90).retraining).retraining_id

    def get(self, retraining_id: str) -> models_pb2.Retraining:
        request = models_pb2.GetRetrainingRequest(retraining_id=retraining_id)
        return self.ask(lambda stub: stub.GetRetraining(request, timeout=90).retraining)

    def predicts(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            request = prediction_pb2.PredictJobRequest(
                onnx_graph=graphs()["medium"],
                device="cpu-standin",
                settings={"global_batch_size": 32},  # type: ignore[arg-type]  # the stubs lack mappings
            )
            answer = prediction_pb2_grpc.PredictionServiceStub(channel).PredictJob(request, timeout=90)
        return bool(answer.model_version)


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.1)):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    write_dataset(tmp_path / "datasets" / "invented")
    store = trained_store()
    shutil.copytree(store._versions.parent, tmp_path / "state" / "models")
    running = Service(tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(60)


def test_a_retraining_runs_on_without_its_caller_and_another_one_is_cancelled(service: Service) -> None:
    first = service.start(seed=8)
    assert service.start(seed=8) == first, "the same request is the same retraining"
    with pytest.raises(grpc.RpcError) as refusal:
        service.start(seed=9)
    assert code_of(refusal.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert service.predicts()
    wait_until(lambda: service.get(first).state != models_pb2.RETRAINING_STATE_RUNNING)
    ended = service.get(first)
    assert ended.state in (models_pb2.RETRAINING_STATE_PROMOTED, models_pb2.RETRAINING_STATE_REFUSED)
    assert ended.reasons
    assert ended.version
    registry = ModelRegistry(service.state / "models", "a test")
    assert registry.store.current() == ended.served_version
    assert VersionAction.TRAINED in {event.action for event in registry.history.events() if event.who == "service"}
    registry.close()

    second = service.start(seed=10)
    request = models_pb2.CancelRetrainingRequest(retraining_id=second)
    cancelled = service.ask(lambda stub: stub.CancelRetraining(request, timeout=90).retraining)
    assert cancelled.state == models_pb2.RETRAINING_STATE_CANCELLED
    assert cancelled.served_version == ended.served_version
    with pytest.raises(grpc.RpcError) as unknown:
        service.get("nothing")
    assert code_of(unknown.value) is grpc.StatusCode.NOT_FOUND


def test_a_killed_service_leaves_nothing_half_active(service: Service, tmp_path: Path) -> None:
    store = VersionStore(service.state / "models")
    before = store.current()
    retraining_id = service.start(seed=11)
    wait_until(lambda: any("training" in line for line in service.get(retraining_id).progress))
    service.process.kill()
    service.process.wait()
    wait_until(lambda: is_free(service.state / "models" / LOCK_FILE))
    assert store.current() == before
    for name in store.names():
        store.load(name)
    again = Service(tmp_path)
    try:
        assert again.get(retraining_id).state == models_pb2.RETRAINING_STATE_INTERRUPTED
        assert again.predicts()
    finally:
        again.process.send_signal(signal.SIGTERM)
        again.process.wait(60)


def is_free(path: Path) -> bool:
    """Whether no retraining holds the lock: its process has gone with the service."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_version_that_was_trained_on_other_data_is_named_when_the_service_starts(
    service: Service, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "datasets" / "more", seed=3)
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(60)
    again = Service(tmp_path)
    wait_until(lambda: "more added" in again.log.read_text())
    again.process.send_signal(signal.SIGTERM)
    again.process.wait(60)
    assert "cotenant retrain" in again.log.read_text()

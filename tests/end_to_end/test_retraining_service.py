"""Retraining a service that runs: over gRPC, without its caller, and cut short."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import models_pb2
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_history import VersionAction
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.retraining_run import LOCK_FILE
from tests.support.grpc_errors import code_of
from tests.support.measured_dataset import write_dataset
from tests.support.predictor_service import trained_store
from tests.support.retraining_service import RetrainingService, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RetrainingService]:
    write_dataset(tmp_path / "datasets" / "invented")
    store = trained_store()
    shutil.copytree(store._versions.parent, tmp_path / "state" / "models")
    running = RetrainingService(tmp_path)
    yield running
    running.stop()


def test_a_retraining_runs_on_without_its_caller_and_another_one_is_cancelled(service: RetrainingService) -> None:
    first = service.start(seed=8)
    assert service.start(seed=8) == first, "the same request is the same retraining"
    with pytest.raises(grpc.RpcError) as refusal:
        service.start(seed=9)
    assert code_of(refusal.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    before = service.answering_version()
    wait_until(lambda: service.get(first).state != models_pb2.RETRAINING_STATE_RUNNING)
    ended = service.get(first)
    assert service.answering_version() == ended.served_version, "who hears of a promotion is answered by it"
    assert (ended.served_version != before) == (ended.state == models_pb2.RETRAINING_STATE_PROMOTED)
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


def test_a_killed_service_leaves_nothing_half_active(service: RetrainingService, tmp_path: Path) -> None:
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
    again = RetrainingService(tmp_path)
    try:
        assert again.get(retraining_id).state == models_pb2.RETRAINING_STATE_INTERRUPTED
        assert again.answering_version() == before
    finally:
        again.stop()


def is_free(path: Path) -> bool:
    """Whether no retraining holds the lock: its process has gone with the service."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_version_that_was_trained_on_other_data_is_named_when_the_service_starts(
    service: RetrainingService, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "datasets" / "more", seed=3)
    service.stop()
    again = RetrainingService(tmp_path)
    wait_until(lambda: "more added" in again.log.read_text())
    again.stop()
    assert "cotenant retrain" in again.log.read_text()

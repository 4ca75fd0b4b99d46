"""A running service while it is asked without pause: models are swapped, large graphs come in; it keeps its calm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.training import train
from tests.support.few_candidates import few_candidates
from tests.support.grpc_errors import code_of
from tests.support.loaded_programs import Process, start_program
from tests.support.measured_dataset import DEVICE, graphs, write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
START_S = 240.0
SWAP_S = 240.0
CALLERS = 4
GRAPH = graphs()["medium"]
GROWTH_BYTES_MAX = 512 << 20
FLOOD_CALLS, FLOOD_BYTES, FLOOD_GROWTH_BYTES_MAX = 100, 4 << 20, 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swap")


@pytest.fixture(scope="module")
def store(folder: Path) -> VersionStore:
    """Two versions; the first one is served."""
    made = VersionStore(folder / "state" / "models")
    with few_candidates():
        for number, noise in enumerate((0.02, 0.2)):
            datasets = folder / f"datasets-{number}"
            write_dataset(datasets / "invented", seed=number, noise=noise)
            train(datasets, made, seed=number)
    made.activate(made.names()[0])
    return made


@pytest.fixture(scope="module")
def service(folder: Path, store: VersionStore) -> Iterator[tuple[int, str]]:
    """A process on the store; its id and address."""
    ready = folder / "ready.json"
    arguments = ["serve", "--address", "127.0.0.1:0", "--metrics-address", "", "--state-dir", str(folder / "state")]
    arguments += ["--ready-file", str(ready), "--datasets", str(folder / "datasets-0")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        process = start_program(
            "predictor_service", arguments, folder=Path.cwd(), environment=environment, output=log, errors=log
        )
    try:
        yield process.pid, wait_for_address(process, ready, folder / "log")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0


def wait_for_address(process: Process, ready: Path, log: Path) -> str:
    for _ in range(int(START_S / 0.1)):
        if ready.exists():
            return str(json.loads(ready.read_text())["address"])
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"not ready: {log.read_text()[-2000:]}")


class Callers:
    """Ask without pause until stopped, each about other jobs every time."""

    def __init__(self, address: str, graph_sha256: str) -> None:
        self.versions: Counter[str] = Counter()
        self.failures: list[grpc.RpcError] = []
        self.changed = threading.Condition()
        self._stop = threading.Event()
        self._address, self._sha256 = address, graph_sha256
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, version: str) -> None:
        with self.changed:
            seen = self.changed.wait_for(lambda: self.versions[version] > 0 or bool(self.failures), SWAP_S)
        assert seen, f"{version} never answered"

    def forget(self) -> None:
        with self.changed:
            self.versions.clear()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with grpc.insecure_channel(self._address) as channel:
            stub = prediction_pb2_grpc.PredictionServiceStub(channel)
            batch = number
            while not self._stop.is_set():
                batch = batch % 500 + 1
                settings: Any = {"global_batch_size": batch, "optimizer": 1 + batch % 4}
                try:
                    request = messages.PredictJobRequest(graph_sha256=self._sha256, settings=settings, device=DEVICE)
                    version = stub.PredictJob(request, timeout=60).model_version
                except grpc.RpcError as error:
                    version = ""
                    self.failures.append(error)
                with self.changed:
                    self.versions[version] += 1
                    self.changed.notify_all()
                # Some hundred questions a second: more would only keep the cores from other tests.
                self._stop.wait(0.01)


def test_no_request_fails_while_models_are_swapped_and_every_version_answers(
    store: VersionStore, service: tuple[int, str]
) -> None:
    pid, address = service
    first, second = store.names()
    with grpc.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionServiceStub(channel)
        sha256 = stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=GRAPH)])).graph_sha256
    callers = Callers(address, sha256)
    try:
        callers.wait_for(first)
        before_bytes = memory_bytes(pid, "VmRSS")
        for version in (second, first, second):
            store.activate(version)
            callers.forget()
            callers.wait_for(version)
        after_bytes = memory_bytes(pid, "VmRSS")
    finally:
        callers.stop()
    assert callers.failures == []
    assert after_bytes - before_bytes < GROWTH_BYTES_MAX


def test_a_flood_of_large_graphs_is_answered_without_keeping_them(service: tuple[int, str]) -> None:
    pid, address = service
    before_bytes = memory_bytes(pid, "VmRSS")
    settings: Any = {"global_batch_size": 8}
    with grpc.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionServiceStub(channel)
        calls = [
            stub.PredictJob.future(
                messages.PredictJobRequest(
                    onnx_graph=number.to_bytes(4, "big") * (FLOOD_BYTES // 4), settings=settings, device=DEVICE
                ),
                timeout=110,
            )
            for number in range(1, FLOOD_CALLS + 1)
        ]
        codes = {code_of(error) for call in calls if (error := call.exception()) is not None}
    assert codes <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert memory_bytes(pid, "VmHWM") - before_bytes < FLOOD_GROWTH_BYTES_MAX


def test_a_damaged_version_is_not_swapped_in(folder: Path, store: VersionStore, service: tuple[int, str]) -> None:
    _, address = service
    models = folder / "state" / "models"
    good = store.current()
    damaged = next(name for name in store.names() if name != good)
    file = next(models.glob(f"versions/{damaged}/*.onnx"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (models / "current").write_text(f"{damaged}\n")
    with grpc.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionServiceStub(channel)
        sha256 = stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=GRAPH)])).graph_sha256
        settings: Any = {"global_batch_size": 8}
        request = messages.PredictJobRequest(graph_sha256=sha256, settings=settings, device=DEVICE)
        wait_for_line(folder / "log", "version_refused")
        assert stub.PredictJob(request, timeout=60).model_version == good


def wait_for_line(log: Path, text: str) -> None:
    pause = threading.Event()
    for _ in range(int(SWAP_S / 0.1)):
        if text in log.read_text():
            return
        pause.wait(0.1)
    raise AssertionError(f"the log never says {text!r}")


def memory_bytes(pid: int, name: str) -> int:
    """VmRSS (now) or VmHWM (at most so far) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

"""The prediction service as a process: it trains itself, answers, survives kill -9 and drains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from cotenant.client import PredictorClient
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from tests.support.cases import sampled
from tests.support.grpc_errors import code_of, details_of, error_info_of
from tests.support.hostile_graphs import hostile_graphs
from tests.support.loaded_programs import run_program, start_program
from tests.support.measured_dataset import graphs, write_dataset

pytestmark = pytest.mark.slow
START_S = 240.0
GRAPHS = graphs()


class Service:
    """One process on a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready = folder / "ready.json"
        self.ready.unlink(missing_ok=True)
        arguments = ["serve", "--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
        arguments += ["--state-dir", str(folder / "state"), "--datasets", str(folder / "datasets")]
        arguments += ["--ready-file", str(self.ready)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("ab") as log:
            self.process = start_program(
                "predictor_service", arguments, folder=Path.cwd(), environment=environment, output=log, errors=log
            )
        self.channel = grpc.insecure_channel(self._address())
        self.stub = prediction_pb2_grpc.PredictionServiceStub(self.channel)

    def _address(self) -> str:
        for _ in range(int(START_S / 0.1)):
            if self.ready.exists():
                return str(json.loads(self.ready.read_text())["address"])
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        raise AssertionError(f"not ready: {(self.folder / 'log').read_text()[-2000:]}")

    def end(self, number: signal.Signals) -> int:
        self.channel.close()
        self.process.send_signal(number)
        return self.process.wait(START_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("predictor")
    write_dataset(root / "datasets" / "invented")
    return root


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    running = Service(folder)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGTERM)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program("predictor_service", arguments, folder=Path.cwd(), environment=os.environ, timeout_s=START_S)


def upload(service: Service, content: bytes, part: int = 4096) -> messages.UploadGraphResponse:
    chunks = (messages.UploadGraphRequest(chunk=content[at : at + part]) for at in range(0, len(content), part))
    return service.stub.UploadGraph(chunks)


def job_request(sha256: str, **fields: Any) -> messages.PredictJobRequest:
    settings: Any = {"global_batch_size": 32, "optimizer": "OPTIMIZER_ADAM"}
    return messages.PredictJobRequest(graph_sha256=sha256, settings=settings, device="cpu-standin", **fields)


def test_it_trains_itself_and_answers_from_the_graph(service: Service) -> None:
    sha256 = upload(service, GRAPHS["medium"]).graph_sha256
    answer = service.stub.PredictJob(job_request(sha256))
    assert answer.memory_bytes.level == 3
    assert answer.model_version not in ("", "none")
    everything = service.stub.ListDevices(messages.ListDevicesRequest(page_size=1000))
    trained = {device.name for device in everything.devices if device.trained}
    assert {"cpu-standin", "NVIDIA A100-SXM4-40GB"} <= trained, "its own set and public ones"


def test_the_client_asks_how_likely_a_set_of_jobs_runs_out_of_memory(service: Service) -> None:
    client = PredictorClient(service.channel)
    sha256 = client.upload_graph(GRAPHS["wide"]).graph_sha256
    job: Any = {"graph_sha256": sha256, "settings": {"global_batch_size": 32, "optimizer": "OPTIMIZER_ADAM"}}
    jobs: Any = [{"job_id": str(copy), **job} for copy in range(3)]
    alone = client.predict_memory_risk(messages.PredictMemoryRiskRequest(device="cpu-standin", jobs=jobs[:1]))
    tight_bytes = int(3 * alone.memory_bytes[0].value)
    risks = [
        client.predict_memory_risk(
            messages.PredictMemoryRiskRequest(device="cpu-standin", jobs=jobs[:count], device_memory_bytes=tight_bytes)
        )
        for count in (1, 2, 3)
    ]
    assert [answer.bounds_fit for answer in risks] == [True, True, False]
    chances = [answer.union_bound_risk_ratio for answer in risks]
    assert chances == sorted(chances)
    assert chances[0] == 0.0 < chances[2] <= 1.0


def test_the_health_service_says_serving(service: Service) -> None:
    answer = health_pb2_grpc.HealthStub(service.channel).Check(  # type: ignore[attr-defined]  # the stubs lack it
        health_pb2.HealthCheckRequest(service="cotenant.v1.PredictionService")
    )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_the_same_request_id_gives_the_same_answer_and_another_body_a_conflict(service: Service) -> None:
    sha256 = upload(service, GRAPHS["wide"]).graph_sha256
    first = service.stub.PredictJob(job_request(sha256, request_id="r-1"))
    assert service.stub.PredictJob(job_request(sha256, request_id="r-1")) == first
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.PredictJob(job_request(sha256, request_id="r-1", explain=True))
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS


def test_a_refusal_carries_reason_remedy_and_field(service: Service) -> None:
    request = job_request("0" * 64)
    request.device = "Abacus"
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.PredictJob(request)
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    assert info.reason == "UNKNOWN_DEVICE"
    assert "cpu-standin" in info.metadata["remedy"]


HOSTILE = hostile_graphs()


@pytest.mark.parametrize("name", sampled(sorted(HOSTILE), 4))
def test_a_hostile_graph_is_refused_with_a_remedy_while_others_are_answered(service: Service, name: str) -> None:
    """A pool without the service refuses each in every run (tests/unit/features/test_hostile_graphs.py)."""
    sha256 = upload(service, GRAPHS["medium"]).graph_sha256
    settings: Any = {"global_batch_size": 8}
    hostile = messages.PredictJobRequest(onnx_graph=HOSTILE[name](), settings=settings, device="cpu-standin")
    refusal = service.stub.PredictJob.future(hostile, timeout=90)
    assert service.stub.PredictJob(job_request(sha256), timeout=90).step_ms.value > 0
    error = refusal.exception(timeout=90)
    assert error is not None
    assert code_of(error) in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    info = error_info_of(error)
    assert info.reason
    assert info.metadata["remedy"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": {"global_batch_size": 0}}, "batch"),
        ({"settings": {"global_batch_size": 10**9}}, "batch"),
        ({"settings": {"global_batch_size": 8, "input_wait_ratio": 1.5}}, "input_wait"),
        ({"settings": {"global_batch_size": 8, "input_wait_ratio": float("nan")}}, "input_wait"),
        ({"settings": {"global_batch_size": 8, "input_wait_ms": 1e308}}, "input_wait_ms"),
        ({"settings": {"global_batch_size": 8, "input_wait_ms": 5.0, "input_wait_ratio": 0.5}}, "both stated"),
        ({"device": ""}, "device"),
        ({"confidence": 7.0}, "confidence"),
        ({"micro_batch_sizes": [0]}, "micro_batch_size"),
        ({"device_memory_bytes": -1}, "memory"),
    ],
)
def test_absurd_numbers_are_refused_by_name(service: Service, change: dict[str, Any], named: str) -> None:
    fields: dict[str, Any] = {"settings": {"global_batch_size": 8}, "device": "cpu-standin", **change}
    request = messages.PredictJobRequest(graph_sha256=upload(service, GRAPHS["medium"]).graph_sha256, **fields)
    with pytest.raises(grpc.RpcError) as caught:
        service.stub.PredictJob(request, timeout=90)
    assert code_of(caught.value) == grpc.StatusCode.INVALID_ARGUMENT
    assert named in details_of(caught.value)


def test_an_upload_beyond_the_limit_is_refused_however_small_its_parts(service: Service) -> None:
    parts = (messages.UploadGraphRequest(chunk=bytes(1 << 20)) for _ in range(40))
    with pytest.raises(grpc.RpcError, match="exceeds"):
        service.stub.UploadGraph(parts)


def test_outcomes_join_known_predictions_only(service: Service) -> None:
    sha256 = upload(service, GRAPHS["tall"]).graph_sha256
    prediction_id = service.stub.PredictJob(job_request(sha256)).prediction_id
    outcomes: Any = [{"prediction_id": prediction_id, "step_ms_mean": 3.0}, {"prediction_id": "never"}]
    answer = service.stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=outcomes))
    assert (answer.recorded, list(answer.unknown_prediction_ids)) == (1, ["never"])


def test_devices_come_in_pages_without_gaps(service: Service) -> None:
    whole = service.stub.ListDevices(messages.ListDevicesRequest(page_size=1000))
    everything = [device.name for device in whole.devices]
    paged: list[str] = []
    token = ""
    while True:
        page = service.stub.ListDevices(messages.ListDevicesRequest(page_size=5, page_token=token))
        paged += [device.name for device in page.devices]
        token = page.next_page_token
        if not token:
            break
    assert paged == everything


def test_uploaded_graphs_and_models_survive_kill_9_and_sigterm_ends_cleanly(folder: Path, service: Service) -> None:
    sha256 = upload(service, GRAPHS["deep"]).graph_sha256
    before = service.stub.PredictJob(job_request(sha256))
    service.end(signal.SIGKILL)
    again = Service(folder)
    after = again.stub.PredictJob(job_request(sha256))
    after.prediction_id = before.prediction_id
    assert after == before
    assert again.end(signal.SIGTERM) == 0


def test_other_addresses_than_loopback_are_refused_without_tls(folder: Path) -> None:
    done = run("serve", "--address", "0.0.0.0:0", "--state-dir", str(folder / "x"))
    assert done.returncode == 2
    assert "--insecure" in done.stderr


def test_a_job_that_does_not_fit_ends_the_offline_command_with_4(folder: Path) -> None:
    graph = folder / "wide.onnx"
    graph.write_bytes(GRAPHS["wide"])
    job = ("--device", "cpu-standin", "--batch-size", "900000")
    done = run("predict", str(graph), *job, "--state-dir", str(folder / "state"), "-o", "json")
    assert done.returncode == 4, done.stderr
    answer = json.loads(done.stdout)
    assert answer["fits"] is False
    assert 0 < int(answer["largest_batch_size_that_fits"]) < 900_000

"""The contract from another language: Node with gRPC's own packages, stubs made from protos/ when it runs.

It needs Node and npm with a registry, which few machines have; elsewhere it says so and is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_predictor import FakePredictor
from tests.support.scheduler_process import SchedulerProcess

pytestmark = pytest.mark.strangers
PACKAGES = ("@grpc/grpc-js@1", "@grpc/proto-loader@0.7")
INSTALLING_S = 100
PROTOS = Path(__file__).parents[2] / "protos"
CALL = """
const [protos, file, service, address, method, request] = process.argv.slice(2);
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const stubs = grpc.loadPackageDefinition(loader.loadSync(file, {includeDirs: [protos], keepCase: true, enums: String}));
const client = new stubs.cotenant.v1[service](address, grpc.credentials.createInsecure());
client[method](JSON.parse(request), (error, answer) => {
  if (error) { console.error(String(error)); process.exit(1); }
  console.log(JSON.stringify(answer));
  client.close();
});
"""


@pytest.fixture
def node_folder(tmp_path: Path) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("NOT RUN: stubs from Node need node and npm on this machine")
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(tmp_path), *PACKAGES]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALLING_S)
    except subprocess.TimeoutExpired:
        pytest.skip("NOT RUN: npm did not answer in time")
    if done.returncode:
        pytest.skip(f"NOT RUN: npm could not install {' '.join(PACKAGES)}: {done.stderr[-200:]}")
    (tmp_path / "call.js").write_text(CALL)
    return tmp_path


def call(folder: Path, method: str, address: str, request: dict[str, Any]) -> Any:
    file, service, name = method.split("/")
    words = [str(PROTOS), f"cotenant/v1/{file}.proto", service, address, name, json.dumps(request)]
    done = subprocess.run(["node", "call.js", *words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node_asks_for_a_decision_and_for_a_prediction(node_folder: Path, tmp_path: Path) -> None:
    gpu = {"gpu_id": "n0.0", "device": "A100", "memory_bytes": 2**34, "healthy": True}
    job = {"job_id": "a", "gpus": 1, "stated_memory_bytes": 2**30, "stated_step_ms": 10.0, "steps_total": 100}
    snapshot = {
        "nodes": [{"node_id": "n0", "schedulable": True, "gpus": [gpu]}],
        "pending": [{"job": job, "submitted_at_ms": 1}],
    }
    with SchedulerProcess(tmp_path, arguments=("--predictor", "", "--policy", "fifo")) as scheduler:
        request = {"policy": "horus", "snapshot": snapshot, "keep_base": True}
        answer = call(node_folder, "scheduling/SchedulingService/Decide", scheduler.address, request)
    (decision,) = answer["decisions"]
    assert [part["gpu_id"] for part in decision["start"]["assignments"]] == ["n0.0"]
    assert len(answer["base_token"]) == 64
    with FakePredictor() as predictor:
        question = {"device": "A100", "graph_sha256": "0" * 64, "settings": {"global_batch_size": 8}}
        predicted = call(node_folder, "prediction/PredictionService/PredictJob", predictor.address, question)
    assert predicted["utilization_ratio"]["value"] == pytest.approx(0.4)

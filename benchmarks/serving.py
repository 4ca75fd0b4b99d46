"""Server CPU of predictions beside a raw gRPC echo of the same run, as JSON.

Each figure is the best of five rounds; every request differs in its batch, so no result is ever reused. CPU seconds are
those of the server's process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from cotenant.graph_file import strip_weights
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from tests.support.onnx_graphs import resnet50

ROUNDS = 5
REQUESTS = 300
ECHO_BYTES = 1024
START_S = 180.0
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> dict[str, Any]:
    """Starts both servers, measures each and returns the figures."""
    with tempfile.TemporaryDirectory() as name:
        return measure(Path(name))


def measure(folder: Path) -> dict[str, Any]:
    """Starts both servers and measures each."""
    ready = folder / "predictor.json"
    command = [sys.executable, "-m", "predictor_service", "serve", "--address", "127.0.0.1:0", "--metrics-address", ""]
    predictor = start([*command, "--state-dir", str(folder / "state"), "--ready-file", str(ready)], ready)
    echo_ready = folder / "echo.json"
    echo = start([sys.executable, "-m", "benchmarks.serving", "--echo-server", str(echo_ready)], echo_ready)
    try:
        return {
            "unit": "ms of server CPU per request",
            "target": {"predict_job_warm": 3.0, "predict_job_cold_resnet50": 40.0},
            **measure_predictor(predictor),
            "echo_1_kib": measure_echo(echo),
        }
    finally:
        for process, _ in (predictor, echo):
            process.terminate()
            process.wait()


def measure_predictor(server: tuple[subprocess.Popen[bytes], str]) -> dict[str, float]:
    """Measures cold and warm predictions of ResNet-50 and pairs of 200 jobs."""
    process, address = server
    graph = strip_weights(resnet50().SerializeToString())
    with grpc.insecure_channel(address) as channel:
        stub = prediction_pb2_grpc.PredictionServiceStub(channel)

        def predict(number: int, sha256: str = "", content: bytes = b"") -> None:
            settings: Any = {"batch_size": 1 + number % 256, "optimizer": 1 + number % 4}
            source: Any = {"graph_sha256": sha256} if sha256 else {"onnx_graph": content}
            stub.PredictJob(messages.PredictJobRequest(settings=settings, device="cpu-standin", **source))

        # Another producer name makes another graph: each of these is described anew.
        cold = [
            graph + b"\x12" + bytes([len(text)]) + text for text in (f"cold{n}".encode() for n in range(5 * ROUNDS))
        ]
        cold_ms = best(process, lambda number: predict(number, content=cold[number]), 5)
        stub.PredictJob(
            messages.PredictJobRequest(onnx_graph=graph, settings={"batch_size": 1}, device="cpu-standin")  # type: ignore[arg-type]
        )
        sha256 = stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=graph)])).graph_sha256
        warm_ms = best(process, lambda number: predict(number, sha256=sha256), REQUESTS)
        pairs_ms = best(process, lambda number: stub.PredictPairs(pairs_request(200, number)), 5)
    return {"predict_job_warm": warm_ms, "predict_job_cold_resnet50": cold_ms, "predict_pairs_200_jobs": pairs_ms}


def pairs_request(jobs: int, number: int) -> messages.PredictPairsRequest:
    """Returns a question about jobs of which everything is known."""
    refs: Any = [
        {
            "job_id": str(index),
            "settings": {"batch_size": 8},
            "known_step_ms": 5.0 + index + number,
            "known_utilization_ratio": 0.3 + 0.003 * index,
            "known_memory_bytes": (100 + index) << 20,
        }
        for index in range(jobs)
    ]
    return messages.PredictPairsRequest(device="cpu-standin", jobs=refs)


def measure_echo(server: tuple[subprocess.Popen[bytes], str]) -> float:
    """Measures a server that returns what it gets."""
    process, address = server
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/benchmark.Echo/Echo")
        return best(process, lambda _: call(bytes(ECHO_BYTES)), REQUESTS)


def best(process: subprocess.Popen[bytes], ask: Callable[[int], object], requests: int) -> float:
    """Server CPU of one request in milliseconds, children included: the best of all rounds."""
    figures = []
    for turn in range(ROUNDS):
        before_s = cpu_s(process.pid)
        for number in range(requests):
            ask(turn * requests + number)
        figures.append(1e3 * (cpu_s(process.pid) - before_s) / requests)
    return round(min(figures), 4)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its living children so far."""
    total = 0.0
    for number in (pid, *child_ids(pid)):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S
    return total


def child_ids(pid: int) -> list[int]:
    """Ids of a process' living children, whichever thread started them."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def start(command: list[str], ready: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a server and waits for its address."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(int(START_S / 0.1)):
        if ready.exists():
            return process, json.loads(ready.read_text())["address"]
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise SystemExit(f"{command} did not start")


def serve_echo(ready: Path) -> None:
    """Serves the echo until ended."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(ThreadPoolExecutor(32))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    partial = ready.with_suffix(".partial")
    partial.write_text(json.dumps({"address": f"127.0.0.1:{port}"}))
    partial.replace(ready)
    server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--echo-server", type=Path, help="Run the other side of the echo; for this program itself.")
    arguments = parser.parse_args()
    if arguments.echo_server:
        serve_echo(arguments.echo_server)
    else:
        print(json.dumps(main(), indent=1))

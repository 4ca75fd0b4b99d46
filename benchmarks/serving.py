"""Server CPU of predictions beside a raw gRPC echo of the same run, as JSON.

Each figure is the best of five rounds; no two requests of a round are equal, so no answer is ever reused. "warm" means
that the graph is known: `predict_job_warm` varies batch and optimizer of a job as a scheduler does that tries
sub-batches, `predict_job_warm_new_settings` also varies the input wait, so that every request is a job never asked
about. CPU seconds are those of the server's process; `pairs_end_to_end` adds those of the client that reads the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from cotenant.graph_file import strip_weights
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from tests.support.onnx_graphs import resnet50

ROUNDS = 5
REQUESTS = 1000
PAIR_REQUESTS = 20
IN_FLIGHT = 32
ECHO_BYTES = 1024
START_S = 180.0
TARGETS = {
    "predict_job_warm": 1.0,
    "predict_job_cold_resnet50": 40.0,
    "predict_pairs_200_jobs_end_to_end": 200.0,
    "throughput_to_echo_ratio_at_least": 0.5,
}
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
            "target": TARGETS,
            **(figures := {**measure_predictor(predictor), **measure_echo(echo)}),
            "throughput_to_echo_ratio": round(
                figures["echo_1_kib_in_flight"] / figures["predict_job_warm_in_flight"], 4
            ),
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

        def request(number: int, wait_ratio: float = 0.0, **source: str | bytes) -> messages.PredictJobRequest:
            settings: Any = {
                "batch_size": 1 + number % 4093,
                "optimizer": 1 + number % 4,
                "input_wait_ratio": wait_ratio,
            }
            return messages.PredictJobRequest(settings=settings, device="cpu-standin", **source)  # type: ignore[arg-type]

        # Another producer name makes another graph: each of these is described anew.
        cold = [
            graph + b"\x12" + bytes([len(text)]) + text for text in (f"cold{n}".encode() for n in range(5 * ROUNDS))
        ]
        cold_ms = best(process, lambda number: stub.PredictJob(request(number, onnx_graph=cold[number])), 5)
        sha256 = stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=graph)])).graph_sha256
        warm_ms = best(process, lambda number: stub.PredictJob(request(number, graph_sha256=sha256)), REQUESTS)
        new_ms = best(
            process,
            lambda number: stub.PredictJob(request(number, (number % 9973) / 10_000, graph_sha256=sha256)),
            REQUESTS // 2,
        )
        in_flight_ms = best_in_flight(
            process, lambda number: stub.PredictJob.future(request(number, graph_sha256=sha256)), REQUESTS
        )
        pairs_ms = best(process, lambda number: ask_pairs(stub, number), PAIR_REQUESTS)
        before_s = time.process_time()
        for number in range(PAIR_REQUESTS):
            ask_pairs(stub, number)
        client_ms = 1e3 * (time.process_time() - before_s) / PAIR_REQUESTS
    return {
        "predict_job_warm": warm_ms,
        "predict_job_warm_new_settings": new_ms,
        "predict_job_warm_in_flight": in_flight_ms,
        "predict_job_cold_resnet50": cold_ms,
        "predict_pairs_200_jobs": pairs_ms,
        "predict_pairs_200_jobs_end_to_end": round(pairs_ms + client_ms, 4),
    }


def ask_pairs(stub: prediction_pb2_grpc.PredictionServiceStub, number: int) -> npt.NDArray[np.float32]:
    """Asks about 200 jobs and reads the matrix, as a scheduler does."""
    answer = stub.PredictPairs(pairs_request(200, number))
    return np.array(answer.slowdown_ratio, dtype=np.float32).reshape(200, 200)


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


def measure_echo(server: tuple[subprocess.Popen[bytes], str]) -> dict[str, float]:
    """Measures a server that returns what it gets."""
    process, address = server
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/benchmark.Echo/Echo")
        return {
            "echo_1_kib": best(process, lambda _: call(bytes(ECHO_BYTES)), REQUESTS),
            "echo_1_kib_in_flight": best_in_flight(process, lambda _: call.future(bytes(ECHO_BYTES)), REQUESTS),
        }


def best_in_flight(process: subprocess.Popen[bytes], ask: Callable[[int], grpc.Future[Any]], requests: int) -> float:
    """Server CPU of one request in milliseconds while `IN_FLIGHT` are always under way."""

    def ask_all(turn: int) -> None:
        under_way: deque[grpc.Future[Any]] = deque()
        for number in range(turn * requests, (turn + 1) * requests):
            if len(under_way) == IN_FLIGHT:
                under_way.popleft().result()
            under_way.append(ask(number))
        for future in under_way:
            future.result()

    return round(best(process, ask_all, 1) / requests, 4)


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

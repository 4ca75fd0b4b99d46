"""Server CPU of predictions next to a raw gRPC echo of the same run, as JSON.

Each figure is the best of five, but `..._throughput_to_echo_cpu_ratio`, which is the median of five pairs. "warm" means
that the graph is known. `predict_job_warm` varies batch, optimizer, precision and mode as a scheduler does that tries
what fits; no two requests are equal. `predict_job_warm_new_settings` also varies the input wait, so that every request
is a job never asked about. `predict_job_warm_all_cores` is `predict_job_warm` while the server's threads may run
anywhere, which they otherwise do not (`shared_core`).
`messages_only` is the floor: gRPC, reading the question and writing an answer, with nothing between them. CPU seconds
are those of the server's process; `pairs_end_to_end` adds those of the client that reads the answer. `flood_answers`
counts by code what came back of 4,000 calls at once; what is not OK must be RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt

from cotenant.graph_file import strip_weights
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from tests.support.interruptions import unwind_when_ended
from tests.support.onnx_graphs import resnet50

ROUNDS = 5
REQUESTS = 2000
PAIR_REQUESTS = 20
IN_FLIGHT = 32
FLOOD_CALLS, FLOOD_CONNECTIONS = 4_000, 20
ECHO_BYTES = 1024
ECHO_SERVICE = "benchmark.Echo"
UNASKED = 0.00002
"""An input wait that the sequential rounds do not use, so that no question in flight was ever asked before."""
START_S = 180.0
TARGETS = {
    "predict_job_warm": 1.0,
    "predict_job_cold_resnet50": 40.0,
    "predict_pairs_200_jobs_end_to_end": 200.0,
    "throughput_to_echo_ratio_at_least": 0.5,
    "predict_job_warm_new_settings_throughput_to_echo_cpu_ratio_at_least": 0.3,
}
GRAPH = strip_weights(resnet50().SerializeToString())
ESTIMATE: Any = {
    "value": 0.51,
    "lower": 0.41,
    "upper": 0.81,
    "confidence": 0.9,
    "upper_99": 0.9,
    "level": 3,
    "in_domain": True,
}
ANSWER = messages.PredictJobResponse(
    prediction_id="p" * 45,
    model_version="v" * 16,
    utilization_ratio=ESTIMATE,
    memory_bytes=ESTIMATE,
    step_ms=ESTIMATE,
    fits=True,
    graph=resources_pb2.GraphSummary(
        graph_sha256="g" * 64, parameters=25_557_032, forward_macs_per_sample=1 << 32, nodes=126
    ),
    device_memory_bytes=1 << 36,
    job_key="k" * 64,
)

Process = subprocess.Popen[bytes]
Stub = prediction_pb2_grpc.PredictionServiceStub
EchoCall: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
Ask: TypeAlias = Callable[[int], "grpc.Future[Any]"]
MessageCall: TypeAlias = "grpc.UnaryUnaryMultiCallable[messages.PredictJobRequest, messages.PredictJobResponse]"


def main() -> dict[str, Any]:
    """Starts both servers, measures each and returns the figures."""
    with tempfile.TemporaryDirectory() as name:
        return measure(Path(name))


def measure(folder: Path) -> dict[str, Any]:
    """Starts both servers and measures each."""
    ready = folder / "predictor.json"
    command = [sys.executable, "-m", "predictor_service", "serve", "--address", "127.0.0.1:0", "--metrics-address", ""]
    predictor, address = start([*command, "--state-dir", str(folder / "state"), "--ready-file", str(ready)], ready)
    echo_ready = folder / "echo.json"
    echo, echo_address = start(
        [sys.executable, "-m", "benchmarks.serving", "--echo-server", str(echo_ready)], echo_ready
    )
    try:
        with grpc.insecure_channel(address) as channel, grpc.insecure_channel(echo_address) as echo_channel:
            stub = prediction_pb2_grpc.PredictionServiceStub(channel)
            return {
                "unit": "ms of server CPU per request",
                "target": TARGETS,
                **measure_jobs(predictor, stub),
                **measure_pairs(predictor, stub),
                "echo_1_kib": measure_echo(echo, echo_channel),
                **compare_in_flight(predictor, stub, echo, echo_channel),
                "flood_answers": flood(address, upload(stub)),
            }
    finally:
        for process in (predictor, echo):
            process.terminate()
            process.wait()


def measure_jobs(process: Process, stub: Stub) -> dict[str, float]:
    """Measures cold and warm predictions of ResNet-50."""
    # Another producer name makes another graph: each of these is described anew.
    names = [f"cold{number}".encode() for number in range(5 * ROUNDS)]
    cold = [GRAPH + b"\x12" + bytes([len(name)]) + name for name in names]
    sha256 = upload(stub)
    return {
        "predict_job_warm": best(process, lambda n: stub.PredictJob(job_request(n, graph_sha256=sha256)), REQUESTS),
        "predict_job_warm_new_settings": best(
            process,
            lambda n: stub.PredictJob(job_request(n, (n % 9973) / 10_000, graph_sha256=sha256)),
            REQUESTS // 2,
        ),
        "predict_job_cold_resnet50": best(
            process, lambda n: stub.PredictJob(job_request(n, onnx_graph=cold[n])), len(cold) // ROUNDS
        ),
    }


def measure_echo(process: Process, channel: grpc.Channel) -> float:
    """Measures echoes one after the other."""
    call: EchoCall = channel.unary_unary(f"/{ECHO_SERVICE}/Echo")
    return best(process, lambda _: call(bytes(ECHO_BYTES)), REQUESTS)


def measure_pairs(process: Process, stub: Stub) -> dict[str, float]:
    """Measures pairs of 200 jobs: all known, and all to be predicted from a graph first."""
    sha256 = upload(stub)
    known_ms = best(process, lambda n: ask_pairs(stub, pairs_request(200, n)), PAIR_REQUESTS)
    graphs_ms = best(process, lambda n: ask_pairs(stub, graph_pairs_request(200, n, sha256)), PAIR_REQUESTS)
    before_s = time.process_time()
    for number in range(PAIR_REQUESTS):
        ask_pairs(stub, pairs_request(200, number))
    client_ms = 1e3 * (time.process_time() - before_s) / PAIR_REQUESTS
    return {
        "predict_pairs_200_jobs": known_ms,
        "predict_pairs_200_graphs": graphs_ms,
        "predict_pairs_200_jobs_end_to_end": round(max(known_ms, graphs_ms) + client_ms, 4),
    }


def compare_in_flight(process: Process, stub: Stub, echo: Process, channel: grpc.Channel) -> dict[str, float]:
    """Measures predictions and echoes in turn, `IN_FLIGHT` always under way, so that all see the same machine."""
    sha256 = upload(stub)
    plain: EchoCall = channel.unary_unary(f"/{ECHO_SERVICE}/Echo")
    messages_only: MessageCall = channel.unary_unary(
        f"/{ECHO_SERVICE}/Messages",
        messages.PredictJobRequest.SerializeToString,
        messages.PredictJobResponse.FromString,
    )
    asked: dict[str, tuple[Process, Ask]] = {
        "predict_job_warm": (process, lambda n: stub.PredictJob.future(job_request(n, UNASKED, graph_sha256=sha256))),
        "predict_job_warm_all_cores": (
            process,
            lambda n: stub.PredictJob.future(job_request(n, 2 * UNASKED, graph_sha256=sha256)),
        ),
        "predict_job_warm_new_settings": (
            process,
            lambda n: stub.PredictJob.future(job_request(n, UNASKED + (n % 9973) / 10_000, graph_sha256=sha256)),
        ),
        "messages_only": (echo, lambda n: messages_only.future(job_request(n, graph_sha256=sha256))),
        "echo_1_kib": (echo, lambda _: plain.future(bytes(ECHO_BYTES))),
    }
    cpu_ms: dict[str, list[float]] = {name: [] for name in asked}
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(ROUNDS):
        for name, (server, ask) in asked.items():
            with anywhere(process) if name.endswith("all_cores") else nullcontext():
                took_ms, rate = in_flight(server, ask, range(turn * REQUESTS, (turn + 1) * REQUESTS))
            cpu_ms[name].append(took_ms)
            rates[name].append(rate)
    return {
        **{f"{name}_in_flight": min(figures) for name, figures in cpu_ms.items()},
        **{f"{name}_requests_per_s": max(figures) for name, figures in rates.items()},
        **{
            f"{name}_throughput_to_echo_ratio": round(max(rates[name]) / max(rates["echo_1_kib"]), 4)
            for name in asked
            if name != "echo_1_kib"
        },
        **{
            f"{name}_throughput_to_echo_cpu_ratio": median_ratio(cpu_ms["echo_1_kib"], figures)
            for name, figures in cpu_ms.items()
            if name != "echo_1_kib"
        },
        "throughput_to_echo_ratio": round(max(rates["predict_job_warm"]) / max(rates["echo_1_kib"]), 4),
        "throughput_to_echo_cpu_ratio": round(min(cpu_ms["echo_1_kib"]) / min(cpu_ms["predict_job_warm"]), 4),
    }


def median_ratio(echo_ms: Sequence[float], asked_ms: Sequence[float]) -> float:
    """Middle one of the ratios of CPU to that of the echo next to it: other load on the machine burdens both."""
    return round(median(echo / asked for echo, asked in zip(echo_ms, asked_ms, strict=True)), 4)


@contextmanager
def anywhere(process: Process) -> Iterator[None]:
    """Lets all threads of a process run on every core that this program has, for a while."""
    threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    before = {thread: os.sched_getaffinity(thread) for thread in threads}
    place_threads(dict.fromkeys(threads, os.sched_getaffinity(0)))
    try:
        yield
    finally:
        place_threads(before)


def place_threads(cores: Mapping[int, Set[int]]) -> None:
    """Places threads by id; one that has ended since is left out."""
    for thread, allowed in cores.items():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, allowed)


def flood(address: str, sha256: str) -> dict[str, int]:
    """Asks everything at once over several connections and counts the answers by their code."""
    with ExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(address, options)) for _ in range(FLOOD_CONNECTIONS)]
        stubs = [prediction_pb2_grpc.PredictionServiceStub(channel) for channel in channels]
        calls = [
            stubs[number % len(stubs)].PredictJob.future(job_request(number, graph_sha256=sha256))
            for number in range(FLOOD_CALLS)
        ]
        return dict(Counter(call.code().name for call in calls))


def upload(stub: Stub) -> str:
    """Sends ResNet-50 and returns its hash."""
    return stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=GRAPH)])).graph_sha256


def job_request(number: int, wait_ratio: float = 0.0, **source: str | bytes) -> messages.PredictJobRequest:
    """Returns a question that differs from those before it in its batch, its optimizer or its input wait."""
    return messages.PredictJobRequest(
        settings=settings_of(number, wait_ratio),  # type: ignore[arg-type]
        device="cpu-standin",
        device_memory_bytes=1 << 36,
        **source,  # type: ignore[arg-type]
    )


def settings_of(number: int, wait_ratio: float = 0.0) -> dict[str, Any]:
    """Returns settings that repeat after 16,288 numbers."""
    way, batch = divmod(number, 509)
    return {
        "global_batch_size": 1 + batch,
        "optimizer": 1 + way % 4,
        "precision": 1 + way // 4 % 4,
        "mode": 1 + way // 16 % 2,
        "input_wait_ratio": wait_ratio,
    }


def ask_pairs(stub: Stub, request: messages.PredictPairsRequest) -> npt.NDArray[np.float32]:
    """Asks, and reads the matrix as a scheduler does."""
    answer = stub.PredictPairs(request)
    return np.array(answer.slowdown_ratio, dtype=np.float32).reshape(len(request.jobs), -1)


def graph_pairs_request(jobs: int, number: int, sha256: str) -> messages.PredictPairsRequest:
    """Returns a question about jobs of which only graph and settings are known."""
    refs: Any = [
        {"job_id": str(index), "graph_sha256": sha256, "settings": settings_of(number * jobs + index)}
        for index in range(jobs)
    ]
    return messages.PredictPairsRequest(device="cpu-standin", jobs=refs)


def pairs_request(jobs: int, number: int) -> messages.PredictPairsRequest:
    """Returns a question about jobs of which everything is known."""
    refs: Any = [
        {
            "job_id": str(index),
            "settings": {"global_batch_size": 8},
            "known_step_ms": 5.0 + index + number,
            "known_utilization_ratio": 0.3 + 0.003 * index,
            "known_memory_bytes": (100 + index) << 20,
        }
        for index in range(jobs)
    ]
    return messages.PredictPairsRequest(device="cpu-standin", jobs=refs)


def in_flight(process: Process, ask: Callable[[int], grpc.Future[Any]], numbers: range) -> tuple[float, float]:
    """Server CPU of one request in milliseconds, and requests a second, while `IN_FLIGHT` are always under way."""
    under_way: deque[grpc.Future[Any]] = deque()
    before_s, started_s = cpu_s(process.pid), time.perf_counter()
    for number in numbers:
        if len(under_way) == IN_FLIGHT:
            under_way.popleft().result()
        under_way.append(ask(number))
    for future in under_way:
        future.result()
    took_s = time.perf_counter() - started_s
    return round(1e3 * (cpu_s(process.pid) - before_s) / len(numbers), 4), round(len(numbers) / took_s, 1)


def best(process: Process, ask: Callable[[int], object], requests: int) -> float:
    """Server CPU of one request in milliseconds, children included: the best of all rounds."""
    figures = []
    for turn in range(ROUNDS):
        before_s = cpu_s(process.pid)
        for number in range(requests):
            ask(turn * requests + number)
        figures.append(1e3 * (cpu_s(process.pid) - before_s) / requests)
    return round(min(figures), 4)


def cpu_s(pid: int) -> float:
    """CPU seconds of the threads of a process and its children that live, from the scheduler's account.

    The usual account counts ticks of 10 ms: two thousand requests are some thirty of them, of which five are chance.
    """
    tasks = (task for number in (pid, *child_ids(pid)) for task in Path(f"/proc/{number}/task").iterdir())
    return sum(map(_task_ns, tasks)) / 1e9


def _task_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended since it was listed


def child_ids(pid: int) -> list[int]:
    """Ids of a process' living children, whichever thread started them."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def start(command: list[str], ready: Path) -> tuple[Process, str]:
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
    """Serves the echo, and the floor of any prediction, until ended."""
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
        "Messages": grpc.unary_unary_rpc_method_handler(
            lambda request, context: ANSWER,
            messages.PredictJobRequest.FromString,
            messages.PredictJobResponse.SerializeToString,
        ),
    }
    server = grpc.server(ThreadPoolExecutor(32))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    partial = ready.with_suffix(".partial")
    partial.write_text(json.dumps({"address": f"127.0.0.1:{port}"}))
    partial.replace(ready)
    server.wait_for_termination()


if __name__ == "__main__":
    unwind_when_ended()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--echo-server", type=Path, help="Run the other side of the echo; for this program itself.")
    arguments = parser.parse_args()
    if arguments.echo_server:
        serve_echo(arguments.echo_server)
    else:
        print(json.dumps(main(), indent=1))

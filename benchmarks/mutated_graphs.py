"""A thousand broken real graphs against a running service: `python -m benchmarks.mutated_graphs` prints JSON.

Every graph is sent over gRPC, and after every tenth one a good job must be answered. Reported: the slowest answer
(wall time, so that a busy machine makes it worse, never better), the largest memory of the service with its workers,
and how many answers of each kind there were. INTERNAL, UNKNOWN or UNAVAILABLE, or a service that ended, is a crash.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from benchmarks.serving import Process, Stub, child_ids, job_request, start, upload
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc
from tests.support.grpc_errors import code_of, error_info_of
from tests.support.mutated_graphs import mutated_graphs

COUNT = 1_000
SEED = 11
ANSWER_S_MAX = 2.0
TARGET = {"crashes": 0, "slowest_s_at_most": ANSWER_S_MAX, "memory_bytes_at_most": 3 << 30}
_CRASHES = ("INTERNAL", "UNKNOWN", "UNAVAILABLE")


def main(count: int = COUNT) -> dict[str, Any]:
    """Starts the service and sends every graph."""
    with tempfile.TemporaryDirectory() as name:
        ready = Path(name) / "predictor.json"
        command = [sys.executable, "-m", "predictor_service", "serve", "--address", "127.0.0.1:0"]
        command += ["--metrics-address", "", "--state-dir", str(Path(name) / "state"), "--ready-file", str(ready)]
        process, address = start(command, ready)
        try:
            with grpc.insecure_channel(address) as channel:
                return send(process, prediction_pb2_grpc.PredictionServiceStub(channel), count)
        finally:
            process.terminate()
            process.wait()


def send(process: Process, stub: Stub, count: int) -> dict[str, Any]:
    """Sends the graphs one after the other and collects what came back."""
    answers: Counter[str] = Counter()
    took: list[tuple[float, str, str]] = []
    memory_bytes, sha256 = 0, upload(stub)
    for number, (name, content) in enumerate(mutated_graphs(count, SEED)):
        started_s = time.perf_counter()
        answer = ask(stub, content)
        took.append((time.perf_counter() - started_s, name, answer))
        answers[answer] += 1
        memory_bytes = max(memory_bytes, resident_bytes(process))
        if number % 10 == 0:
            stub.PredictJob(job_request(number, graph_sha256=sha256), timeout=30)
    took.sort(reverse=True)
    return {
        "target": TARGET,
        "graphs": count,
        "crashes": sum(number for kind, number in answers.items() if kind.startswith(_CRASHES)),
        "slowest_s": round(took[0][0], 3),
        "slowest": [{"s": round(s, 3), "mutation": name, "answer": answer} for s, name, answer in took[:5]],
        "median_s": round(took[len(took) // 2][0], 4),
        "memory_bytes": memory_bytes,
        "answers": dict(answers.most_common()),
    }


def ask(stub: Stub, content: bytes) -> str:
    """Asks about one graph and returns the kind of answer."""
    settings: Any = {"global_batch_size": 8}
    try:
        stub.PredictJob(
            messages.PredictJobRequest(onnx_graph=content, settings=settings, device="cpu-standin"), timeout=30
        )
    except grpc.RpcError as error:
        reason = error_info_of(error).reason if code_of(error) is not grpc.StatusCode.UNAVAILABLE else "gone"
        return f"{code_of(error).name} {reason}"
    return "OK"


def resident_bytes(process: Process) -> int:
    """Resident memory of a process and its children; what they share counts for each."""
    total = 0
    for pid in (process.pid, *child_ids(process.pid)):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except FileNotFoundError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    return total


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))

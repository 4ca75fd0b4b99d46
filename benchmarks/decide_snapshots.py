"""What Decide costs, and whether any snapshot fails as a whole: CPU ms from bytes to bytes, and fuzzed snapshots.

    python -m benchmarks.decide_snapshots [--seeds 10000] [--policies fifo,horus]

The small cluster has 64 GPUs and one waiting job, the large one 8,000 GPUs, 1,000 running and 200 waiting jobs; their
predictions are part of the snapshot. Each figure is the least of some calls, counted in CPU time of the whole process,
threads included, without gRPC; what gRPC itself takes for messages of these sizes stands next to it (`grpc_echo`, both
ends in one process), by which figures of different machines can be compared.

    first_snapshot  a whole snapshot, and nothing of it was seen before
    next_snapshot   a whole snapshot after others of the same caller, in each of which time and every job went on
    base_kept       the same where nodes and predictions were kept before (keep_base) and jobs alone are sent

A fuzzed snapshot is drawn, spoiled in up to four fields, and a row of it repeated; it fails if it is refused whole, if
its answer cannot be carried out, or if a start breaks a limit that the job states.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.commands.serve import ALLOCATIONS_PER_COLLECTION
from scheduler_service.errors import SchedulerServiceError
from scheduler_service.grpc_api.snapshots.decide import decide, deciding_thread
from scheduler_service.grpc_api.snapshots.snapshot_bases import SnapshotBases
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest
from scheduler_service.policy_registry import POLICIES
from tests.support.random_snapshots import SnapshotMaker, break_somewhere, faults_of, repeat_somewhere

GIB = 2**30
DEVICE = "NVIDIA A100-SXM4-80GB"
KEYS = 50
SMALL_CALLS, LARGE_CALLS = 30, 7
ECHO_OPTIONS = [("grpc.max_receive_message_length", 64 * 2**20)]
LARGE_POLICIES = ("horus", "optimus", "tiresias", "fifo", "sjf_bsbf", "srtf", "pollux", "elastic", "ojpp")


def main(seeds: int = 10_000, policies: tuple[str, ...] = LARGE_POLICIES) -> dict[str, object]:
    """Return CPU ms by policy for both clusters, and what became of the fuzzed snapshots."""
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)  # as the service has it
    small, large = snapshot(gpus=64, running=32, pending=1), snapshot(gpus=8_000, running=1_000, pending=200)
    return {
        "gpus_64_pending_1_cpu_ms": costs(small, policies, SMALL_CALLS),
        "gpus_8000_running_1000_pending_200_cpu_ms": costs(large, policies, LARGE_CALLS),
        "fuzzed": fuzz(seeds),
    }


def snapshot(*, gpus: int, running: int, pending: int) -> scheduling_pb2.Snapshot:
    """Return a cluster of nodes with 8 GPUs in which every running job has a GPU of its own."""
    generator = random.Random(1)
    made = scheduling_pb2.Snapshot(now_ms=10_000_000)
    for number in range(gpus // 8):
        node = made.nodes.add(node_id=f"n{number:05}", schedulable=True, cpu_cores=128, host_memory_bytes=1024 * GIB)
        for index in range(8):
            node.gpus.add(gpu_id=f"n{number:05}.{index}", device=DEVICE, memory_bytes=80 * GIB, healthy=True)
    held = generator.sample(range(gpus), running)
    for number, gpu in enumerate(held):
        row = made.running.add(job=_job(f"r{number:05}", generator), micro_batch_size=32, steps_done=1_000)
        row.assignments.add(gpu_id=f"n{gpu // 8:05}.{gpu % 8}")
    for number in range(pending):
        made.pending.add(job=_job(f"p{number:05}", generator), submitted_at_ms=number)
    for key in range(KEYS):
        _add_predictions(made, key, generator)
    return made


def _job(job_id: str, generator: random.Random) -> scheduling_pb2.SnapshotJob:
    return scheduling_pb2.SnapshotJob(
        job_id=job_id,
        job_key=f"k{generator.randrange(KEYS)}",
        gpus=1,
        global_batch_size=32,
        steps_total=generator.randrange(2_000, 100_000),
        share=resources_pb2.SHARE_MODE_SAFE,
        max_slowdown_ratio=0.3,
    )


def _add_predictions(made: scheduling_pb2.Snapshot, key: int, generator: random.Random) -> None:
    about = {"device": DEVICE, "level": resources_pb2.ESTIMATE_LEVEL_GRAPH, "in_domain": True}
    ratio = generator.uniform(0.2, 0.9)
    known = made.job_predictions.add(job_key=f"k{key}", utilization_ratio=ratio, **about)
    used_bytes = generator.randrange(4, 40) * GIB
    known.micro_batches.add(micro_batch_size=32, memory_bytes=used_bytes, memory_bytes_upper_99=used_bytes + 2 * GIB)
    known.step_times.add(gpus=1, micro_batch_size=32, step_ms=generator.uniform(50, 500))
    for other in range(KEYS):
        made.pair_predictions.add(
            victim_job_key=f"k{key}", other_job_key=f"k{other}", slowdown_ratio=generator.uniform(0, 0.6), **about
        )


def costs(given: scheduling_pb2.Snapshot, policies: Sequence[str], calls: int) -> dict[str, dict[str, float]]:
    """Return CPU ms by what is sent and by policy, and of gRPC by what is sent."""
    with _deciding() as deciding:
        whole = [_gone_on(given, call) for call in range(calls)]
        first = {name: _least(deciding.cost(name, one, SnapshotBases()) for one in whole) for name in policies}
        bases = SnapshotBases()
        again = {name: _least(deciding.cost(name, one, bases) for one in whole) for name in policies}
        base_token = deciding.answer(policies[0], given, bases, keep_base=True).base_token
        rest = [_jobs_of(one, base_token) for one in whole]
        kept = {name: _least(deciding.cost(name, one, bases) for one in rest) for name in policies}
        echo = {
            name: _least(deciding.run(echo_ms(_request(policies[0], one), calls)))
            for name, one in (("whole", given), ("base_kept", rest[0]))
        }
    return {"first_snapshot": first, "next_snapshot": again, "base_kept": kept, "grpc_echo": echo}


class _Deciding:
    """Decisions in a thread of their own, as the service takes them.

    Args:
        run: Waits for an answer.
    """

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.run, self._thread = run, deciding_thread()

    def cost(self, policy: str, given: scheduling_pb2.Snapshot, bases: SnapshotBases) -> float:
        """Return the CPU ms of one call, from a serialized request to a serialized answer."""
        request = _request(policy, given)
        began = time.process_time()
        self._answer(UnreadRequest.read(request), bases).SerializeToString()
        return (time.process_time() - began) * 1_000

    def answer(
        self, policy: str, given: scheduling_pb2.Snapshot, bases: SnapshotBases, *, keep_base: bool
    ) -> scheduling_pb2.DecideResponse:
        """Return the answer."""
        request = scheduling_pb2.DecideRequest(policy=policy, snapshot=given, keep_base=keep_base)
        return self._answer(UnreadRequest.read(request.SerializeToString()), bases)

    def _answer(self, message: UnreadRequest, bases: SnapshotBases) -> scheduling_pb2.DecideResponse:
        answering = decide(message, predictor=None, seconds_left=600, thread=self._thread, bases=bases)
        answer: scheduling_pb2.DecideResponse = self.run(answering)
        return answer


@contextmanager
def _deciding() -> Iterator[_Deciding]:
    # asyncio.Runner would set and reset signal handlers at every call, which no server does.
    loop = asyncio.new_event_loop()
    try:
        yield _Deciding(loop.run_until_complete)
    finally:
        loop.close()


async def echo_ms(request: bytes, calls: int) -> list[float]:
    """Return the CPU ms of calls that send so many bytes over a gRPC channel on this machine and answer nothing."""

    async def answer(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b""

    server = grpc.aio.server(options=ECHO_OPTIONS)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmarks.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/benchmarks.Echo/Echo")
        for _ in range(calls):
            began = time.process_time()
            await ask(request)
            found.append((time.process_time() - began) * 1_000)
    await server.stop(grace=None)
    return found


def _least(found: Iterable[float]) -> float:
    return round(min(found), 2)


def _request(policy: str, given: scheduling_pb2.Snapshot) -> bytes:
    return scheduling_pb2.DecideRequest(policy=policy, snapshot=given).SerializeToString()


def _gone_on(given: scheduling_pb2.Snapshot, calls: int) -> scheduling_pb2.Snapshot:
    """Return a snapshot some seconds later, in which every running job has done some steps more."""
    later = scheduling_pb2.Snapshot()
    later.CopyFrom(given)
    later.now_ms += calls * 1_000
    for row in later.running:
        row.steps_done += calls
        row.attained_gpu_ms += calls * 1_000
    return later


def _jobs_of(given: scheduling_pb2.Snapshot, base_token: str) -> scheduling_pb2.Snapshot:
    return scheduling_pb2.Snapshot(
        now_ms=given.now_ms, base_token=base_token, running=given.running, pending=given.pending
    )


def fuzz(seeds: int) -> dict[str, object]:
    """Decide on fuzzed snapshots under one policy after the other."""
    names, refused, faulty, warned = sorted(POLICIES), [], [], 0
    with asyncio.Runner() as runner:
        for seed in range(seeds):
            given = SnapshotMaker(seed).make()
            break_somewhere(given, seed)
            if seed % 3 == 0:
                repeat_somewhere(given, seed)
            request = scheduling_pb2.DecideRequest(policy=names[seed % len(names)], snapshot=given)
            try:
                answer = runner.run(decide(request, predictor=None, seconds_left=600))
            except SchedulerServiceError as error:
                refused.append(f"{seed}: {error}"[:200])
                continue
            warned += bool(answer.warnings)
            faulty += [f"{seed}: {fault}" for fault in faults_of(given, answer)]
    return {"snapshots": seeds, "refused_whole": refused, "faulty": faulty, "answered_with_warnings": warned}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--policies", default=",".join(LARGE_POLICIES))
    asked = parser.parse_args()
    print(json.dumps(main(asked.seeds, tuple(asked.policies.split(","))), indent=2))

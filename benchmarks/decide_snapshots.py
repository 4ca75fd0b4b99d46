"""What Decide costs, and whether any snapshot fails as a whole: CPU ms from bytes to bytes, and fuzzed snapshots.

    python -m benchmarks.decide_snapshots [--seeds 10000] [--policies fifo,horus]

The small cluster has 64 GPUs and one waiting job, the large one 8,000 GPUs, 1,000 running and 200 waiting jobs; their
predictions are part of the snapshot. Each figure is the least of five calls, counted in CPU time of the whole process;
nothing is kept between them, except where the nodes and predictions were kept before (keep_base) and jobs alone are
sent.
A fuzzed snapshot is drawn, spoiled in up to four fields, and a row of it repeated; it fails if it is refused whole, if
its answer cannot be carried out, or if a start breaks a limit that the job states.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.errors import SchedulerServiceError
from scheduler_service.grpc_api.decide import decide, deciding_thread
from scheduler_service.grpc_api.snapshot_bases import SnapshotBases
from scheduler_service.policy_registry import POLICIES
from tests.support.random_snapshots import SnapshotMaker, break_somewhere, faults_of, repeat_somewhere

GIB = 2**30
DEVICE = "NVIDIA A100-SXM4-80GB"
KEYS = 50
CALLS = 5
LARGE_POLICIES = ("horus", "optimus", "tiresias", "fifo", "sjf_bsbf", "srtf", "pollux", "elastic", "ojpp")


def main(seeds: int = 10_000, policies: tuple[str, ...] = LARGE_POLICIES) -> dict[str, object]:
    """Return CPU ms by policy for both clusters, and what became of the fuzzed snapshots."""
    small, large = snapshot(gpus=64, running=32, pending=1), snapshot(gpus=8_000, running=1_000, pending=200)
    return {
        "gpus_64_pending_1_cpu_ms": {name: round(cpu_ms(small, name), 2) for name in policies},
        "gpus_64_pending_1_base_kept_cpu_ms": {
            name: round(cpu_ms(small, name, base_kept=True), 2) for name in policies
        },
        "gpus_8000_running_1000_pending_200_cpu_ms": {name: round(cpu_ms(large, name), 1) for name in policies},
        "gpus_8000_running_1000_pending_200_base_kept_cpu_ms": {
            name: round(cpu_ms(large, name, base_kept=True), 1) for name in policies
        },
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


def cpu_ms(given: scheduling_pb2.Snapshot, policy: str, *, base_kept: bool = False) -> float:
    """Return the CPU time of one call, from a serialized request to a serialized answer; the least of some."""
    found: list[float] = []
    bases, thread = SnapshotBases(), deciding_thread()
    with asyncio.Runner() as runner:
        if base_kept:
            keeping = scheduling_pb2.DecideRequest(policy=policy, snapshot=given, keep_base=True)
            answer = runner.run(decide(keeping, predictor=None, seconds_left=600, thread=thread, bases=bases))
            given = _jobs_of(given, answer.base_token)
        request = scheduling_pb2.DecideRequest(policy=policy, snapshot=given).SerializeToString()
        for _ in range(CALLS):
            began = time.process_time()
            message = scheduling_pb2.DecideRequest.FromString(request)
            answering = decide(message, predictor=None, seconds_left=600, thread=thread, bases=bases)
            runner.run(answering).SerializeToString()
            found.append((time.process_time() - began) * 1_000)
    return min(found)


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

"""What a team's queue costs: `python -m benchmarks.team_queue [POLICY ...] [--pending N] [--decisions N]`, as JSON.

10,000 jobs wait before 64 x 8 GPUs that are all taken, since two jobs need more memory than one GPU has (with
--consent: since no two accept each other's slowdown, which is looked up for each). One running job ends per decision,
500 times. The jobs are those of four tenants with quotas and weights, in three classes, of 50 families and 1 to 4
GPUs. The same once more with one tenant and one class: what the layer before the policies adds. CPU milliseconds of a
whole handled fact; after each one every waiting job has its reason. Garbage is collected as seldom as in the service.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Sequence
from time import process_time_ns

from scheduler_service.commands.serve import ALLOCATIONS_PER_COLLECTION
from scheduler_service.core import events, queue_events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.queue.tenants import TenantRule, TenantRules
from scheduler_service.core.records import Gpu, JobPrediction, JobRequest, MemoryPoint, Node, PairPrediction, Phase
from scheduler_service.policy_registry import make_policy

GIB = 2**30
NODES, GPUS_PER_NODE = 64, 8
FAMILIES = 50
WIDTHS = (1, 1, 1, 1, 1, 1, 1, 2, 2, 4)
CLASSES = (0, 0, 0, 100, -100)
DEVICE = "gpu"
RULES = TenantRules(
    rules={
        "a": TenantRule(gpus_max=64, weight=1),
        "b": TenantRule(gpus_max=192, weight=3),
        "c": TenantRule(gpus_max=256, weight=2),
        "d": TenantRule(weight=1),
    }
)
"""The quotas of all do not suffice for the cluster, so that the fourth tenant always has room."""


def measure(
    policy: str, *, pending: int, decisions: int, with_layer: bool, by_consent: bool = False
) -> dict[str, object]:
    """Return quantiles of the CPU time of one handled fact in ms."""
    engine = fill(policy, pending=pending, with_layer=with_layer, by_consent=by_consent)
    draw = random.Random(1)
    now_ms, spent_ms = engine.state.now_ms, []
    for _ in range(decisions):
        now_ms += 1_000
        job = engine.state.jobs[draw.choice(list(engine.state.in_phase(Phase.STARTING)))]
        ended = events.JobFinished(
            at_ms=now_ms, job_id=job.job_id, attempt=job.attempt, fence=job.fence, steps_done=job.request.steps_total
        )
        began_ns = process_time_ns()
        engine.handle(ended)
        spent_ms.append((process_time_ns() - began_ns) / 1e6)
        waiting = engine.state.in_phase(Phase.PENDING)
        without = [name for name in waiting if name not in engine.state.decisions]
        if without:
            raise AssertionError(f"{len(without)} jobs wait without a reason")
    spent_ms.sort()
    return {
        "p50_ms": round(spent_ms[len(spent_ms) // 2], 2),
        "p99_ms": round(spent_ms[int(len(spent_ms) * 0.99)], 2),
        "most_ms": round(spent_ms[-1], 2),
        "pending_at_the_end": len(engine.state.in_phase(Phase.PENDING)),
        "gpus_in_use": sum(job.held_gpus for job in engine.state.jobs.values()),
    }


def fill(policy: str, *, pending: int, with_layer: bool, by_consent: bool = False) -> SchedulerEngine:
    """Return a full cluster with so many jobs waiting."""
    engine = SchedulerEngine(make_policy=make_policy, policy="sjf", ended_jobs_max=1_000)
    draw = random.Random(0)
    if with_layer:
        engine.handle(queue_events.TenantsChosen(at_ms=0, rules=RULES))
    for number in range(pending + NODES * GPUS_PER_NODE):
        engine.handle(events.JobSubmitted(at_ms=number, request=_request(number, draw, with_layer), graph_sha256="g"))
    now_ms = engine.state.now_ms
    for index in range(NODES):
        engine.handle(events.NodeJoined(at_ms=now_ms, node=_node(index)))
        if index == 0:
            _predict(engine, now_ms, memory_bytes=(4 if by_consent else 10) * GIB)
    engine.handle(events.PolicyChosen(at_ms=now_ms, policy=policy))
    return engine


def _request(number: int, draw: random.Random, with_layer: bool) -> JobRequest:
    tenant, priority = draw.choice("abcd"), draw.choice(CLASSES)
    return JobRequest(
        job_id=f"job-{number}",
        key=f"family-{draw.randrange(FAMILIES)}",
        tenant=tenant if with_layer else "",
        gpus=draw.choice(WIDTHS),
        global_batch_size=16,
        steps_total=draw.randrange(1_000, 100_000),
        terms=QueueTerms(priority=priority if with_layer else 0),
    )


def _node(index: int) -> Node:
    gpus = tuple(
        Gpu(gpu_id=f"n{index:02d}.{place}", device=DEVICE, memory_bytes=16 * GIB, index=place)
        for place in range(GPUS_PER_NODE)
    )
    return Node(node_id=f"n{index:02d}", gpus=gpus)


def _predict(engine: SchedulerEngine, at_ms: int, memory_bytes: int) -> None:
    """Every pair slows each other down more than anybody accepts: the cluster is full when each GPU has one job."""
    point = MemoryPoint(memory_bytes=memory_bytes, memory_bytes_upper_99=memory_bytes + GIB)
    keys = [f"family-{number}" for number in range(FAMILIES)]
    for number, key in enumerate(keys):
        known = JobPrediction(
            key=key, device=DEVICE, utilization_ratio=0.6, memory={16: point}, step_ms={(1, 16): 100.0 + number}
        )
        engine.handle(events.PredictionArrived(at_ms=at_ms, prediction=known))
    pairs = tuple(
        PairPrediction(victim_key=one, other_key=other, device=DEVICE, slowdown_ratio=0.8, upper_ratio=0.9)
        for one in keys
        for other in keys
    )
    engine.handle(events.PairPredictionsArrived(at_ms=at_ms, pairs=pairs))


def main(
    policies: Sequence[str] = ("horus", "srtf"),
    *,
    pending: int = 10_000,
    decisions: int = 500,
    by_consent: bool = False,
) -> dict[str, object]:
    """Measure policies with the layer and without it."""
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    return {
        policy: {
            name: measure(policy, pending=pending, decisions=decisions, with_layer=with_layer, by_consent=by_consent)
            for name, with_layer in (("tenants_and_classes", True), ("one_tenant_one_class", False))
        }
        for policy in policies
    }


def _number(name: str, default: int) -> int:
    return int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if not word.startswith("--") and not word.isdecimal()]
    sizes = {"pending": _number("--pending", 10_000), "decisions": _number("--decisions", 500)}
    found = main(chosen or ("horus", "srtf"), **sizes, by_consent="--consent" in sys.argv)
    json.dump(found, sys.stdout, indent=2)
    sys.stdout.write("\n")

"""Which vacant GPUs a job is promised, found at once, against a look at every node of which it takes the best."""

from __future__ import annotations

import random

import pytest

from scheduler_service.core.cluster_view.capacity import Resident
from scheduler_service.core.cluster_view.inventory import kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.records import Node
from scheduler_service.policies.placement.free_gpus import ranked
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import PreemptionPlan
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from tests.support.scheduling import gpu, job, node, prediction, running, store, view

KNOWN = store([prediction("key", step_ms={(gpus, 1): 10.0 for gpus in range(1, 9)})])
CLUSTERS = 1_500
SEARCHES = 4


class EveryNode(PreemptionPlanner):
    """The plain rule: no shortcut to vacant GPUs."""

    def _vacant_anywhere(self, *_: object) -> None:
        return None


def cluster(generator: random.Random) -> SchedulingView:
    """A few nodes of one or two kinds of GPU, whose jobs run, are being stopped, or share GPUs."""
    devices = generator.choice((("a",), ("a", "b")))
    names = iter(generator.sample(range(16), 16))  # the order of ids is not that of nodes
    nodes = [
        node(
            f"n{number}",
            [gpu(f"g{next(names)}", index=index, device=generator.choice(devices)) for index in range(size)],
        )
        for number, size in enumerate(generator.choices((1, 2, 4), k=generator.randint(1, 4)))
    ]
    holding = [one for machine in nodes for one in holders(generator, machine)]
    nodes_max = generator.choice((0, 0, 1, 2))
    free_ids = sorted({one.gpu_id for machine in nodes for one in machine.gpus})
    kept = frozenset(generator.sample(free_ids, 1)) if generator.random() < 0.2 else frozenset()
    return view(nodes=nodes, holding=holding, predictions=KNOWN, kept_gpu_ids=kept, nodes_per_job_max=nodes_max)


def holders(generator: random.Random, machine: Node) -> list[RunningJob]:
    ids, found = [one.gpu_id for one in machine.gpus], list[RunningJob]()
    while ids and generator.random() < 0.8:
        gpu_ids, ids = ids[: (width := generator.choice((1, 1, 2)))], ids[width:]
        for part in range(generator.choice((1, 1, 1, 2))):
            request = job(
                f"{gpu_ids[0]}-{part}",
                key="key",
                gpus=len(gpu_ids),
                global_batch_size=len(gpu_ids),
                steps_total=generator.randint(1, 100),
                cpu_cores=generator.choice((0.0, 0.0, 2.0)),
            )
            found.append(running(request, gpu_ids, is_stopping=generator.random() < 0.5))
    return found


def plans(planner: PreemptionPlanner, seen: SchedulingView, generator: random.Random) -> list[PreemptionPlan | None]:
    """Look for several jobs one after the other, each of which keeps what it is promised; between them some start."""
    kinds = sorted({kind_of(entry.gpu) for entry in seen.gpus.values()})
    found: list[PreemptionPlan | None] = []
    for number in range(SEARCHES):
        request = job(f"w{number}", key="key", gpus=generator.choice((1, 2, 3, 5)))
        found.append(planner.find(request, generator.choice(kinds), float(generator.randint(0, 900))))
        if (plan := found[-1]) is not None:
            planner.promise(plan)
        if generator.random() < 0.5:
            start_somewhere(planner, seen, generator)
    return found


def start_somewhere(planner: PreemptionPlanner, seen: SchedulingView, generator: random.Random) -> None:
    """Give a job a free GPU that no other was promised, if there is one."""
    ledger = planner._ledger
    open_ids = sorted(
        gpu_id for gpu_id in seen.index.free_gpu_ids if ledger.is_free(gpu_id) and gpu_id not in planner._promised
    )
    if open_ids:
        started = Resident(request=job("s", key="key"), micro_batch_size=1, memory_reserved_bytes=1)
        ledger.place(started, ranked([generator.choice(open_ids)]))


def planner_of(kind: type[PreemptionPlanner], seen: SchedulingView) -> PreemptionPlanner:
    ledger = Ledger(seen)
    return kind(ledger, long_running=LongRunning(ledger))


@pytest.mark.parametrize("seed", range(3))
def test_a_job_is_promised_the_vacant_gpus_that_a_look_at_every_node_finds(seed: int) -> None:
    generator, widths = random.Random(seed), set[int]()
    for _ in range(CLUSTERS):
        seen, jobs_seed = cluster(generator), generator.random()
        quick = plans(planner_of(PreemptionPlanner, seen), seen, random.Random(jobs_seed))
        plain = plans(planner_of(EveryNode, seen), seen, random.Random(jobs_seed))
        assert quick == plain
        widths |= {len(plan.gpu_ids) for plan in quick if plan is not None and not plan.victims}
    assert widths == {1, 2, 3, 5}

"""A search for victims that columns narrow, against the one that looks at every GPU of every node."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest

from scheduler_service.core.cluster_view.inventory import Kind, kind_of
from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import RunningJob, SchedulingView
from scheduler_service.core.records import JobRequest, Node
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.offered_gpus import PreemptionPlan
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from tests.support.scheduling import GIB, gpu, job, node, prediction, running, store, view

KINDS = (("standin", 8 * GIB), ("standin", 16 * GIB))
KNOWN = store([prediction("key", step_ms={(gpus, 1): 1_000.0 for gpus in range(1, 9)})])


def drawn_node(generator: random.Random, number: int) -> Node:
    """Four GPUs of one kind, now and then of two, on a host that may be too small for all that ask for it."""
    kinds = [generator.choice(KINDS)] * 4 if generator.random() < 0.8 else [*KINDS, *KINDS]
    gpus = [gpu(f"n{number}.{index}", memory_bytes=kind[1], index=index) for index, kind in enumerate(kinds)]
    return node(f"n{number}", gpus, cpu_cores=generator.choice((0.0, 8.0, 16.0)))


def drawn_jobs(generator: random.Random, gpu_ids: list[str]) -> list[RunningJob]:
    """Jobs alone or co-located, some leaving, some of unknown length, of few lengths so that many are equal."""
    found = []
    for number in range(generator.randrange(12)):
        held = generator.sample(gpu_ids, k=min(generator.choice((1, 1, 2, 4)), len(gpu_ids)))
        if generator.random() < 0.85:
            gpu_ids = [gpu_id for gpu_id in gpu_ids if gpu_id not in held]
        request = job(
            f"r{number}",
            key="key",
            gpus=len(held),
            global_batch_size=len(held),
            steps_total=generator.choice((0, 50, 100, 100, 200, 200, 300)),
            cpu_cores=generator.choice((0.0, 4.0)),
        )
        if held:
            found.append(running(request, held, is_stopping=generator.random() < 0.2))
    return found


def drawn_view(generator: random.Random, nodes_max: int) -> SchedulingView:
    nodes = [drawn_node(generator, number) for number in range(4)]
    gpu_ids = [one.gpu_id for machine in nodes for one in machine.gpus]
    holding = drawn_jobs(generator, gpu_ids)
    return view(
        nodes=nodes,
        holding=holding,
        predictions=KNOWN,
        nodes_per_job_max=nodes_max,
        kept_gpu_ids=frozenset(generator.sample(gpu_ids, k=generator.randrange(3))),
        protected_job_ids=frozenset(one.request.job_id for one in holding if generator.random() < 0.1),
    )


def full_view(generator: random.Random) -> SchedulingView:
    """Every GPU is held by one job alone, of one node or several, that runs as long as few others."""
    nodes = [
        node(f"n{number}", [gpu(f"n{number}.{index}", index=3 - index) for index in range(4)]) for number in range(3)
    ]
    gpu_ids = [one.gpu_id for machine in nodes for one in machine.gpus]
    generator.shuffle(gpu_ids)
    holding: list[RunningJob] = []
    while gpu_ids:
        held = [gpu_ids.pop() for _ in range(min(generator.choice((1, 1, 2, 4)), len(gpu_ids)))]
        steps = generator.choice((0, *range(100, 200, 10)))
        request = job(f"r{len(holding)}", key="key", gpus=len(held), global_batch_size=len(held), steps_total=steps)
        holding.append(running(request, held))
    return view(nodes=nodes, holding=holding, predictions=KNOWN)


@pytest.mark.parametrize("by_rank", [False, True])
def test_on_a_full_cluster_the_job_that_runs_longest_leaves_though_no_node_is_looked_at(
    by_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[object](), PreemptionPlanner._on_one_node

    def note(self: PreemptionPlanner, request: JobRequest, kind: Kind) -> PreemptionPlan | None:
        looks.append(request)
        return look(self, request, kind)

    plans = 0
    for seed in range(400):
        seen = full_view(random.Random(seed))
        drawn = map(float, random.Random(seed).sample(range(100, 200), len(seen.running)))
        ranks = dict(zip(seen.running, drawn, strict=True))
        measures = np.array([ranks[seen.gpus[gpu_id].job_ids[0]] for gpu_id in seen.index.arrays.gpu_ids])
        found: list[list[PreemptionPlan | None]] = []
        for is_quick in (False, True):
            ledger = Ledger(seen)
            columns = LongRunning(ledger, measures if by_rank else None) if is_quick else None
            rank_of = ranks.__getitem__ if by_rank else None
            planner = PreemptionPlanner(
                ledger, gain_min_ms=0 if by_rank else 10_000, rank_of=rank_of, long_running=columns
            )
            with monkeypatch.context() as patched:
                patched.setattr(PreemptionPlanner, "_on_one_node", note if is_quick else look)
                found.append([])
                for length in (10.0, 90.0, 120.0, 150.0):
                    ms = length if by_rank else 1_000.0 * length
                    plan = planner.find(job("w", key="key"), kind_of(seen.nodes["n0"].gpus[0]), ms)
                    found[-1].append(plan)
                    if plan is not None:
                        planner.promise(plan)
                        plans += is_quick
        assert found[1] == found[0], seed
    assert len(looks) < plans / 2


@pytest.mark.parametrize("nodes_max", [0, 1, 2])
@pytest.mark.parametrize("asks_hosts", [False, True])
def test_columns_find_the_same_victims(nodes_max: int, asks_hosts: bool) -> None:
    plans = 0
    # In one of a thousand views it matters that GPUs are held by two jobs, of which the columns tell nothing.
    for seed in range(900):
        generator = random.Random(seed)
        seen = drawn_view(generator, nodes_max)
        ledgers = Ledger(seen), Ledger(seen)
        slow = PreemptionPlanner(ledgers[0], gain_min_ms=10_000)
        quick = PreemptionPlanner(ledgers[1], gain_min_ms=10_000, long_running=LongRunning(ledgers[1]))
        for number in range(4):
            gpus, steps = generator.choice((1, 1, 2, 3, 4, 6)), generator.choice((10, 60, 120, 190))
            cores = generator.choice((2.0, 8.0)) if asks_hosts else 0.0
            request = job(f"w{number}", key="key", gpus=gpus, global_batch_size=gpus, cpu_cores=cores)
            kind = generator.choice(KINDS)
            expected = slow.find(request, kind, steps * 1_000.0)
            assert quick.find(request, kind, steps * 1_000.0) == expected, (seed, number)
            if expected is not None:
                plans += bool(expected.victims)
                slow.promise(expected)
                quick.promise(expected)
    assert plans > 50


@pytest.mark.parametrize("nodes_max", [0, 1, 2])
def test_where_a_promise_opens_nothing_who_found_no_gpus_before_it_finds_none_after_it(nodes_max: int) -> None:
    counts = {True: 0, False: 0}
    found_after_opening = 0
    for seed in range(60):
        generator = random.Random(seed)
        seen = drawn_view(generator, nodes_max)
        probed, other = (PreemptionPlanner(one := Ledger(seen), long_running=LongRunning(one)) for _ in range(2))
        probes = [
            (job(f"p{gpus}", key="key", gpus=gpus, global_batch_size=gpus, cpu_cores=cores), kind, 150_000.0)
            for gpus, cores in ((1, 0.0), (1, 4.0), (2, 4.0), (4, 0.0))
            for kind in KINDS
        ]
        for number in range(3):
            gpus, cores = generator.choice((1, 1, 2, 3)), generator.choice((0.0, 4.0))
            request = job(f"w{number}", key="key", gpus=gpus, global_batch_size=gpus, cpu_cores=cores)
            plan = other.find(request, generator.choice(KINDS), 40_000.0)
            if plan is None:
                continue
            in_vain = [probe for probe in probes if probed.find(*probe) is None]
            is_opening = probed.promise(plan)
            assert other.promise(plan) is is_opening
            counts[is_opening] += 1
            # The other planner was not asked before, so that it looks.
            found = [probe for probe in in_vain if other.find(*probe) is not None]
            assert is_opening or not found, (seed, number)
            found_after_opening += bool(found)
    assert min(counts[True], found_after_opening) > 0
    assert counts[False] > 0 or nodes_max == 2


def vacating(gpu_id: str, key: str, steps: int, *, is_stopping: bool = False, cpu_cores: float = 0.0) -> RunningJob:
    request = job(f"on-{gpu_id}", key=key, steps_total=steps, cpu_cores=cpu_cores)
    return running(request, [gpu_id], is_stopping=is_stopping)


@pytest.mark.parametrize("in_columns", [False, True])
def test_cores_of_a_victim_are_room_for_a_job_that_found_none_before_although_its_gpu_is_promised(
    in_columns: bool,
) -> None:
    small, large = (
        gpu(name, memory_bytes=kind[1], index=index) for index, (name, kind) in enumerate(zip("ab", KINDS, strict=True))
    )
    seen = view(
        nodes=[node("n0", [small, large], cpu_cores=8.0)],
        holding=[vacating("a", "key", 200, cpu_cores=8.0), vacating("b", "key", 300)],
        predictions=KNOWN,
    )
    ledger = Ledger(seen)
    planner = PreemptionPlanner(ledger, long_running=LongRunning(ledger) if in_columns else None)
    on_large = job("w", key="key", cpu_cores=8.0), KINDS[1], 250_000.0
    assert planner.find(*on_large) is None, "the job on the other GPU has all cores, and ends before this one would"
    plan = planner.find(job("short", key="key"), KINDS[0], 10_000.0)
    assert plan is not None
    assert plan.victims == ("on-a",)
    assert planner.promise(plan)
    found = planner.find(*on_large)
    assert found is not None
    assert found.victims == ("on-b",)


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_promise_may_lead_a_job_of_few_nodes_to_those_that_suffice(in_columns: bool) -> None:
    sizes = (1, 1, 2)
    nodes = [node(f"n{n}", [gpu(f"n{n}.{i}", index=i) for i in range(size)]) for n, size in enumerate(sizes)]
    gpu_ids = [one.gpu_id for machine in nodes for one in machine.gpus]
    seen = view(
        nodes=nodes,
        holding=[vacating(gpu_id, "key", 100, is_stopping=True) for gpu_id in gpu_ids],
        predictions=KNOWN,
        nodes_per_job_max=2,
    )
    ledger = Ledger(seen)
    planner = PreemptionPlanner(ledger, long_running=LongRunning(ledger) if in_columns else None)
    kind = ("standin", nodes[0].gpus[0].memory_bytes)
    wide = job("w", key="key", gpus=3, global_batch_size=3), kind, 10_000.0
    assert planner.find(*wide) is None, "the first GPUs in order are on two nodes with one each"
    plan = planner.find(job("narrow", key="key"), kind, 10_000.0)
    assert plan is not None
    assert (plan.gpu_ids, plan.victims) == (("n0.0",), ())
    assert planner.promise(plan)
    found = planner.find(*wide)
    assert found is not None
    assert set(found.gpu_ids) == {"n1.0", "n2.0", "n2.1"}


def test_the_nodes_of_a_job_of_one_gpu_come_as_if_all_had_been_sorted() -> None:
    yielded = 0
    for seed in range(150):
        ledger = Ledger(drawn_view(random.Random(seed), 0))
        first, sorted_before = LongRunning(ledger), LongRunning(ledger)
        assert len([*sorted_before.nodes(2, 0.0)]) <= 4  # which sorts the GPUs of every node
        for remaining_ms in (0.0, 60_000.0, 150_000.0, 1e9):
            found = [*first.nodes(1, remaining_ms)]
            assert found == [*sorted_before.nodes(1, remaining_ms)], (seed, remaining_ms)
            yielded += len(found)
            first = LongRunning(ledger)
    assert yielded > 1_000


@pytest.mark.parametrize("nodes_max", [0, 1])
def test_what_a_round_keeps_in_order_is_what_it_would_put_in_order_anew(nodes_max: int) -> None:
    closed, opened = 0, 0
    for seed in range(150):
        generator = random.Random(seed)
        seen = drawn_view(generator, nodes_max)
        kept = LongRunning(Ledger(seen))
        promised: set[str] = set(seen.kept_gpu_ids)
        for _ in range(5):
            kept.reach_ms(generator.randrange(1, 20))
            kept.unheld_nodes()
            open_ids = [gpu_id for gpu_id in seen.gpus if gpu_id not in promised]
            # Two jobs that leave one GPU name it twice.
            left = generator.choices(open_ids, k=generator.randrange(4)) if open_ids else []
            taken = generator.sample(open_ids, k=min(generator.randrange(4), len(open_ids)))
            left = [gpu_id for gpu_id in left if gpu_id not in taken]
            kept.change(left=left, promised=taken)
            promised |= {*taken}
            closed, opened = closed + len(taken), opened + len(left)
            assert_in_order(kept, seen, nodes_max)
    assert closed > 500
    assert opened > 500


def assert_in_order(kept: LongRunning, seen: SchedulingView, nodes_max: int) -> None:
    """Compare with what is known of every GPU alone."""
    by_node = [sorted(kept.least_ms([gpu.gpu_id]) for gpu in one.gpus) for one in seen.nodes.values()]
    all_ms = sorted(least_ms for here in by_node for least_ms in here)
    for gpus in range(1, 20):
        sets = by_node if nodes_max == 1 else [all_ms]
        assert kept.reach_ms(gpus) == max((here[-gpus] for here in sets if gpus <= len(here)), default=-inf)
    for node_id, one in seen.nodes.items():
        unheld = [gpu.gpu_id for gpu in one.gpus if kept.least_ms([gpu.gpu_id]) == inf]
        assert sorted(kept.unheld(node_id)) == sorted(unheld)
        assert (node_id in kept.unheld_nodes()) is bool(unheld)

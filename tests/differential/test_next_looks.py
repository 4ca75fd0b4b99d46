"""Runs in which a policy is asked where time may change its mind, against runs that ask it at every multiple."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.truth.trace import GIB, Trace
from scheduler_service.core.cluster_view.cluster_index import KeptIndex
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.commands import Command, WakeAt
from scheduler_service.core.decisions import Decision
from scheduler_service.core.events import Event, JobProgressed, JobStarted
from scheduler_service.policies.pab import PerformanceAwareBinPacking
from scheduler_service.policies.tiresias import Tiresias
from tests.support.cases import sampled
from tests.support.simulated_runs import kind, noting_orders, simulation, trace_job, trace_of

POLICIES: dict[str, tuple[type, dict[str, object]]] = {
    "pab": (PerformanceAwareBinPacking, {"interval_ms": 10_000, "warm_up_ms": 37_000}),
    "tiresias": (Tiresias, {"queues": 3, "queue_limit_gpu_ms": 600_000, "run_min_ms": 90_000}),
}
CHARGES = OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=3_000)


def mixed(seed: int) -> Trace:
    """Jobs of a few kinds, some of which slow each other down to less than half of their speed."""
    generator = random.Random(seed)
    kinds = {f"kind-{gib}": kind(memory_bytes=gib * GIB) for gib in (3, 5, 6)}
    found = [
        trace_job(
            f"j{number:03}",
            at_s=10 * generator.randrange(90),
            seconds=generator.choice((30, 300, generator.randrange(1, 2_000))),
            key=generator.choice(list(kinds)),
            gpus=generator.choice((1, 1, 1, 2, 4)),
            migration_cost_ms=generator.choice((0, 20_000)),
        )
        for number in range(40)
    ]
    found.sort(key=lambda one: (one.submitted_at_ms, one.request.job_id))
    return trace_of(*found, kinds=kinds, slowdowns={("kind-6", "kind-5"): 1.4, ("kind-5", "kind-6"): 0.2})


def run_once(policy: str, trace: Trace, report_interval_ms: int = 0) -> tuple[list[object], int]:
    """Return all orders, and how many facts there were."""
    found: list[object] = []
    _, parameters = POLICIES[policy]
    run = simulation(
        trace,
        cluster="2x4",
        policy=policy,
        parameters=parameters,
        observe=noting_orders(found),
        charges=CHARGES,
        report_interval_ms=report_interval_ms,
    )
    return found, run.run().events


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", sampled(range(2), 1))
def test_fewer_looks_give_the_same_orders(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = mixed(seed)
    found, facts = run_once(policy, trace)
    assert any(len(one) == 2 for one in found if isinstance(one, tuple))
    monkeypatch.delattr(POLICIES[policy][0], "next_look_ms")
    at_every_multiple, more_facts = run_once(policy, trace)
    assert found == at_every_multiple
    assert facts < more_facts


@pytest.mark.parametrize(("seed", "report_interval_ms"), sampled(product(range(4), (20_000, 0)), 1))
def test_tiresias_orders_nothing_more_where_it_is_asked_once_more_and_for_every_change_of_a_job(
    seed: int, report_interval_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, decide = list[int](), Tiresias.decide

    def note(self: Tiresias, view: SchedulingView) -> Sequence[Decision]:
        asks.append(view.now_ms)
        return decide(self, view)

    monkeypatch.setattr(Tiresias, "decide", note)
    found, _ = run_once("tiresias", mixed(seed), report_interval_ms)
    asks_before = len(asks)
    monkeypatch.setattr(Tiresias, "settles", False)
    monkeypatch.setattr(KeptIndex, "service_measures", lambda self, rules: None)
    plain, _ = run_once("tiresias", mixed(seed), report_interval_ms)
    assert found == plain
    assert asks_before < len(asks) - asks_before


@pytest.mark.parametrize("policy", POLICIES)
def test_few_reports_lead_to_another_look(policy: str) -> None:
    reports, heeded = list[Event](), list[Event]()

    def note(event: Event, commands: list[Command]) -> None:
        if isinstance(event, JobProgressed | JobStarted):
            reports.append(event)
            heeded.extend(event for order in commands if isinstance(order, WakeAt))

    _, parameters = POLICIES[policy]
    simulation(mixed(0), cluster="2x4", policy=policy, parameters=parameters, observe=note, charges=CHARGES).run()
    assert len(heeded) < len(reports) / 4

"""Runs that look at shapes of jobs and load classes of GPUs, against runs that look at every job and GPU.

Equal orders, and equal reasons for the jobs that wait.
"""

from __future__ import annotations

import random

import pytest

from cotenant_simulator.truth.trace import GIB, Trace
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event
from scheduler_service.core.records import Phase, Share
from scheduler_service.policies.packing import ojpp_packing
from scheduler_service.policies.placement import length_queue
from scheduler_service.policies.placement.horus_placement import HorusPlacement
from tests.support.simulated_runs import kind, noting_orders, simulation, trace_job, trace_of

ALWAYS, NEVER = 0, 10**9
POLICIES = {"horus": {}, "obp": {}, "pab": {"interval_ms": 300_000}}
SHARES = (Share.ANY, Share.ANY, Share.SAFE, Share.NEVER)


def crowd(seed: int, widths: tuple[int, ...]) -> Trace:
    """Jobs of few shapes, most of which share a GPU with some others; some ask much of hosts."""
    generator = random.Random(seed)
    sizes = (2, 5, 6, 9, 15)
    kinds = {f"kind-{gib}": kind(memory_bytes=gib * GIB, utilization_ratio=gib / 20) for gib in sizes}
    found = []
    for number in range(50):
        gpus = generator.choice(widths)
        wishes = {"cpu_cores": 3.0 * gpus} if generator.random() < 0.2 else {}
        found.append(
            trace_job(
                f"j{number:03}",
                at_s=generator.randrange(900),
                seconds=generator.choice((30, 300, generator.randrange(1, 2_000))),
                key=generator.choice(list(kinds)),
                gpus=gpus,
                share=generator.choice(SHARES),
                max_slowdown_ratio=generator.choice((0.3, 1.5)),
                **wishes,
            )
        )
    found.sort(key=lambda one: (one.submitted_at_ms, one.request.job_id))
    slowdowns = {(one, other): generator.choice((0.1, 0.6, 1.4)) for one in kinds for other in kinds}
    return trace_of(*found, kinds=kinds, slowdowns=slowdowns)


def story(policy: str, trace: Trace, monkeypatch: pytest.MonkeyPatch, *, least: int) -> list[object]:
    """Return all orders, and after every event why each waiting job waits."""
    found: list[object] = []

    note_orders = noting_orders(found)

    def note(event: Event, commands: list[Command]) -> None:
        note_orders(event, commands)
        state = run.engine.state
        found.append([(job_id, state.decisions.get(job_id)) for job_id in state.in_phase(Phase.PENDING)])

    monkeypatch.setattr(length_queue, "QUEUE_LONG_MIN", least)
    if policy != "horus":  # which looks at classes anyway
        monkeypatch.setattr(ojpp_packing, "GPUS_IN_ARRAYS_MIN", least)
    run = simulation(
        trace, cluster="3x4", policy=policy, parameters=POLICIES[policy], observe=note, nodes_per_job_max=0
    )
    assert run.run().rejected_decisions == 0
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_shapes_and_classes_change_no_order_and_no_reason(
    policy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pab looks every few seconds as long as a job waits: one too wide for the cluster would wait for ever.
    trace = crowd(seed, (1, 1, 1, 2, 4) if policy == "pab" else (1, 1, 1, 2, 4, 13))
    plain = story(policy, trace, monkeypatch, least=NEVER)
    assert story(policy, trace, monkeypatch, least=ALWAYS) == plain


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_were_nearest_before_change_no_order_and_no_reason(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = crowd(seed, (1, 1, 1, 2, 4, 13))
    quick = story("horus", trace, monkeypatch, least=ALWAYS)
    monkeypatch.setattr(HorusPlacement, "_still_waits", lambda *_: None)
    assert story("horus", trace, monkeypatch, least=ALWAYS) == quick

"""Runs of SRTF that pass over the jobs they can, against runs that look at every job: equal orders."""

from __future__ import annotations

import random

import pytest

from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event
from scheduler_service.policies.placement import length_queue
from tests.support.simulated_runs import kind, simulation, trace_job, trace_of

ALWAYS, NEVER = 0, 10**9

Orders = list[tuple[int, str, tuple[str, ...]]]
"""When, which job, on which GPUs; none = it was stopped."""


def long_queue(seed: int, *, jobs: int = 80) -> Trace:
    """A queue that grows long: jobs of a few kinds and widths, some of equal length, some that ask much of hosts."""
    generator = random.Random(seed)
    kinds = {
        f"kind-{name}": kind(step_ms_by_gpus=dict.fromkeys((1, 2, 4, 8), generator.choice((997.0, 1_000.0, 333.3))))
        for name in range(3)
    }
    found = []
    for number in range(jobs):
        gpus = generator.choice((1, 1, 1, 2, 4, 8, 16))
        wishes = {"cpu_cores": 3.0 * gpus} if generator.random() < 0.2 else {}
        found.append(
            trace_job(
                f"j{number:03}",
                at_s=generator.randrange(900),
                seconds=generator.choice((30, 30, 300, generator.randrange(1, 5_000))),
                key=generator.choice(list(kinds)),
                gpus=gpus,
                **wishes,
            )
        )
    found.sort(key=lambda one: (one.submitted_at_ms, one.request.job_id))
    return trace_of(*found, kinds=kinds, slowdowns={})


def orders(trace: Trace, monkeypatch: pytest.MonkeyPatch, *, long_min: int, nodes_max: int) -> Orders:
    found: Orders = []

    def note(event: Event, commands: list[Command]) -> None:
        for order in commands:
            if isinstance(order, LaunchJob):
                found.append((event.at_ms, order.job_id, tuple(part.gpu_id for part in order.assignments)))
            elif isinstance(order, StopJob):
                found.append((event.at_ms, order.job_id, ()))

    monkeypatch.setattr(length_queue, "QUEUE_LONG_MIN", long_min)
    run = simulation(
        trace, cluster="3x4", policy="srtf", observe=note, nodes_per_job_max=nodes_max, report_interval_ms=20_000
    )
    assert run.run().rejected_decisions == 0
    return found


@pytest.mark.parametrize("nodes_max", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_passing_over_changes_no_order(seed: int, nodes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = long_queue(seed)
    plain = orders(trace, monkeypatch, long_min=NEVER, nodes_max=nodes_max)
    assert any(not gpu_ids for _, _, gpu_ids in plain)
    assert orders(trace, monkeypatch, long_min=ALWAYS, nodes_max=nodes_max) == plain

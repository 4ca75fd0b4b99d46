"""Runs of SJF-BSBF that skip the jobs they can, against runs that look at every job and every GPU: equal orders."""

from __future__ import annotations

import random
from itertools import product

import pytest

from cotenant_simulator.truth.kinds import EVERY_DEVICE
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event
from scheduler_service.policies.pairing import sharing_queue, sjf_sharing
from tests.support.cases import sampled
from tests.support.simulated_runs import kind, simulation, trace_job, trace_of

ALWAYS, NEVER = 0, 10**9

Orders = list[tuple[int, str, tuple[str, ...], int]]
"""When, which job, on which GPUs, at which micro-batch."""


def long_queue(seed: int, *, jobs: int = 120) -> Trace:
    """A queue that grows long: jobs of a few kinds and widths, some of equal length, some that share badly or never."""
    generator = random.Random(seed)
    kinds = {
        f"kind-{name}": kind(
            batch=generator.choice((1, 8)),
            step_ms_by_gpus=dict.fromkeys((1, 2, 4, 8), generator.choice((997.0, 1_000.0, 333.3))),
        )
        for name in range(4)
    }
    slowdowns = {
        (victim, other, EVERY_DEVICE): generator.choice((0.0, 0.2, 0.5, 0.5, generator.uniform(0, 1.2)))
        for victim in kinds
        for other in kinds
        if generator.random() < 0.7
    }
    found = []
    for number in range(jobs):
        key, gpus = generator.choice(list(kinds)), generator.choice((1, 1, 1, 2, 4, 8))
        seconds = generator.choice((30, 30, 300, generator.randrange(1, 5_000)))
        wishes = {"cpu_cores": 2.0} if generator.random() < 0.1 else {}
        batch = gpus * (8 if kinds[key].batch == 8 else 1)
        found.append(
            trace_job(
                f"j{number:03}",
                at_s=generator.randrange(600),
                seconds=seconds,
                key=key,
                gpus=gpus,
                global_batch_size=batch,
                max_slowdown_ratio=generator.choice((0.3, 1.0, 1.0)),
                **wishes,
            )
        )
    found.sort(key=lambda one: (one.submitted_at_ms, one.request.job_id))
    return trace_of(*found, kinds=kinds, slowdowns=slowdowns)


def orders(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, *, long_min: int, columns_min: int, nodes_max: int, weighed_max: int
) -> Orders:
    found: Orders = []

    def note(event: Event, commands: list[Command]) -> None:
        for order in commands:
            if isinstance(order, LaunchJob):
                gpu_ids = tuple(part.gpu_id for part in order.assignments)
                found.append((event.at_ms, order.job_id, gpu_ids, order.micro_batch_size))
            elif isinstance(order, StopJob):
                found.append((event.at_ms, order.job_id, (), 0))

    monkeypatch.setattr(sharing_queue, "QUEUE_LONG_MIN", long_min)
    monkeypatch.setattr(sjf_sharing, "GPUS_IN_ARRAYS_MIN", columns_min)
    run = simulation(
        trace,
        cluster="3x4",
        policy="sjf_bsbf",
        observe=note,
        nodes_per_job_max=nodes_max,
        parameters={"weighed_jobs_max": weighed_max},
        report_interval_ms=20_000,
    )
    result = run.run()
    assert result.rejected_decisions == 0
    return found


@pytest.mark.parametrize(("seed", "weighed_max", "nodes_max"), sampled(product(range(4), (4, 100), (0, 1)), 3))
def test_passing_over_changes_no_order(
    seed: int, weighed_max: int, nodes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = long_queue(seed)
    wishes = {"nodes_max": nodes_max, "weighed_max": weighed_max}
    plain = orders(trace, monkeypatch, long_min=NEVER, columns_min=NEVER, **wishes)
    assert len(plain) > len(trace.jobs) // 2
    assert orders(trace, monkeypatch, long_min=ALWAYS, columns_min=ALWAYS, **wishes) == plain
    assert orders(trace, monkeypatch, long_min=ALWAYS, columns_min=NEVER, **wishes) == plain

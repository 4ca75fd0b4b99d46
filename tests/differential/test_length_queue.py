"""Runs of SJF, SRTF, Tiresias that pass over what they can, against runs that look at every job and GPU."""

from __future__ import annotations

import random
from itertools import product

import pytest

from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.cluster_view.view import PendingJob
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.decisions import Decision
from scheduler_service.core.events import Event
from scheduler_service.policies.placement import length_queue, long_running
from scheduler_service.policies.placement.exclusive_round import ExclusiveRound
from tests.support.cases import sampled
from tests.support.simulated_runs import kind, simulation, trace_job, trace_of

ALWAYS, NEVER = 0, 10**9
POLICIES = {
    "sjf": {},
    "srtf": {},
    "tiresias": {"queues": 3, "queue_limit_gpu_ms": 600_000, "run_min_ms": 60_000, "run_per_cost_ratio": 2.0},
}

Orders = list[tuple[int, str, tuple[str, ...]]]
"""When, which job, on which GPUs; none = it was stopped."""


def long_queue(seed: int, *, widths: tuple[int, ...] = (1, 1, 1, 2, 4, 8, 16)) -> Trace:
    """A queue that grows long: jobs of a few kinds and widths, some of equal length, some that ask much of hosts."""
    generator = random.Random(seed)
    kinds = {
        f"kind-{name}": kind(step_ms_by_gpus=dict.fromkeys((1, 2, 4, 8), generator.choice((997.0, 1_000.0, 333.3))))
        for name in range(3)
    }
    found = []
    for number in range(80):
        gpus = generator.choice(widths)
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


def orders(
    policy: str, trace: Trace, monkeypatch: pytest.MonkeyPatch, *, long_min: int, columns_min: int, nodes_max: int
) -> Orders:
    found: Orders = []

    def note(event: Event, commands: list[Command]) -> None:
        for order in commands:
            if isinstance(order, LaunchJob):
                found.append((event.at_ms, order.job_id, tuple(part.gpu_id for part in order.assignments)))
            elif isinstance(order, StopJob):
                found.append((event.at_ms, order.job_id, ()))

    monkeypatch.setattr(length_queue, "QUEUE_LONG_MIN", long_min)
    monkeypatch.setattr(long_running, "GPUS_IN_COLUMNS_MIN", columns_min)
    run = simulation(
        trace,
        cluster="3x4",
        policy=policy,
        parameters=POLICIES[policy],
        observe=note,
        nodes_per_job_max=nodes_max,
        report_interval_ms=20_000,
        charges=OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=3_000),
    )
    assert run.run().rejected_decisions == 0
    return found


@pytest.mark.parametrize(("policy", "seed", "nodes_max"), sampled(product(POLICIES, (0, 1), (0, 1, 2)), 6))
def test_passing_over_changes_no_order(policy: str, seed: int, nodes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tiresias looks every minute as long as a job waits: one too wide for its nodes would wait for ever.
    trace = long_queue(seed) if policy != "tiresias" else long_queue(seed, widths=(1, 1, 1, 2, 4))
    plain = orders(policy, trace, monkeypatch, long_min=NEVER, columns_min=NEVER, nodes_max=nodes_max)
    assert any(not gpu_ids for _, _, gpu_ids in plain) is (policy != "sjf")
    for long_min, columns_min in ((ALWAYS, NEVER), (NEVER, ALWAYS)):
        found = orders(policy, trace, monkeypatch, long_min=long_min, columns_min=columns_min, nodes_max=nodes_max)
        assert found == plain


def test_few_jobs_of_a_long_queue_are_looked_at_by_sjf(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, looked_at = ExclusiveRound.decide, list[str]()

    def counted(self: ExclusiveRound, job: PendingJob) -> Decision:
        looked_at.append(job.request.job_id)
        return decide(self, job)

    monkeypatch.setattr(ExclusiveRound, "decide", counted)
    trace, looks = long_queue(0), list[int]()
    for long_min in (NEVER, ALWAYS):
        orders("sjf", trace, monkeypatch, long_min=long_min, columns_min=NEVER, nodes_max=0)
        looks.append(len(looked_at))
        looked_at.clear()
    assert looks[1] < looks[0] / 3

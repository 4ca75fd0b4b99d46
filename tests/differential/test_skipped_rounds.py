"""Runs in which a policy is not asked while no job waits, against runs that ask it after every fact that may matter."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from cotenant_simulator.run.records import OverheadCosts, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.policy_registry import POLICIES, make_policy
from tests.support.simulated_runs import noting_orders, trace_job, trace_of

DECIDE_ONLY_WAITING = [name for name in POLICIES if getattr(make_policy(name, {}), "decides_only_waiting", False)]
CHARGES = OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=3_000)


class CountedPolicy:
    """A policy that counts how often it is asked, and how often while no job waits."""

    def __init__(self, policy: Policy, *, is_always_asked: bool) -> None:
        self._policy = policy
        self.decides_only_waiting = not is_always_asked
        self.interval_ms = getattr(policy, "interval_ms", 0)
        self.asks = self.asks_without_jobs = 0

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        self.asks += 1
        self.asks_without_jobs += not view.pending
        return self._policy.decide(view)


def light_load(seed: int) -> Trace:
    """Jobs that mostly find free GPUs, and a few wide or long ones for which others wait or leave."""
    generator = random.Random(seed)
    jobs = [
        trace_job(
            f"j{number:03}",
            at_s=60 * number + generator.randrange(60),
            seconds=generator.choice((30, 90, generator.randrange(1, 1_500))),
            gpus=generator.choice((1, 1, 1, 2, 4)),
        )
        for number in range(60)
    ]
    return trace_of(*sorted(jobs, key=lambda one: one.submitted_at_ms))


def play(name: str, trace: Trace, *, is_always_asked: bool) -> tuple[list[object], CountedPolicy]:
    """Return all orders of a run, and its policy."""
    found, made = list[object](), list[CountedPolicy]()

    def make(policy: str, parameters: Mapping[str, object]) -> Policy:
        made.append(CountedPolicy(make_policy(policy, parameters), is_always_asked=is_always_asked))
        return made[-1]

    cluster, predictor = read_cluster("3x4", device=trace.device), TruthPredictor(trace.truth, NoErrors())
    Simulation(
        trace, cluster, predictor, RunSettings(policy=name, charges=CHARGES), observe=noting_orders(found), make=make
    ).run()
    return found, made[0]


def test_policies_that_leave_running_jobs_alone_say_so() -> None:
    assert {"fifo", "sjf", "srtf", "tiresias"} <= set(DECIDE_ONLY_WAITING)


@pytest.mark.parametrize("name", DECIDE_ONLY_WAITING)
@pytest.mark.parametrize("seed", range(3))
def test_a_policy_is_not_asked_while_no_job_waits_and_orders_the_same(name: str, seed: int) -> None:
    found, asked = play(name, light_load(seed), is_always_asked=False)
    always, more_asked = play(name, light_load(seed), is_always_asked=True)
    assert found == always
    assert asked.asks_without_jobs == 0 < more_asked.asks_without_jobs
    assert asked.asks == more_asked.asks - more_asked.asks_without_jobs

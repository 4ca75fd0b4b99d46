"""Rounds that promise vacant GPUs at once, against rounds in which every job is looked at by the plain rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event
from scheduler_service.policies.placement import length_queue, long_running
from tests.support.scheduling import gpu, node
from tests.support.simulated_runs import kind, simulation, trace_job, trace_of

POLICIES = {
    "srtf": {},
    "tiresias": {"queues": 3, "queue_limit_gpu_ms": 600_000, "run_min_ms": 60_000, "run_per_cost_ratio": 2.0},
}
DEVICES = "fast", "slow"
JOBS = 70
SEEDS = 1, 2, 12, 15, 28, 46
"""One, two, or any number of nodes for a job, and one or two kinds of GPU."""


def crowd(generator: random.Random, *, is_mixed: bool) -> Trace:
    """Jobs of one or a few GPUs that come faster than they end, some of them on the heels of others."""
    times_s = sorted(generator.choice((0, 60, 61, generator.randrange(1_500))) for _ in range(JOBS))
    jobs = [
        trace_job(
            f"j{number:02}",
            at_s=at_s,
            seconds=generator.choice((30, 300, generator.randrange(1, 3_000))),
            key=generator.choice(("one", "other")),
            gpus=generator.choice((1, 1, 1, 2, 3, 4)),
            cpu_cores=generator.choice((0.0,) * 9 + (2.0,)),
        )
        for number, at_s in enumerate(times_s)
    ]
    kinds = {name: kind(step_ms_by_gpus=dict.fromkeys(range(1, 5), 1_000.0)) for name in ("one", "other")}
    speeds = {"fast": 2.0, "slow": 1.0} if is_mixed else {}
    return trace_of(*jobs, kinds=kinds, slowdowns={}, speeds=speeds)


def machines(generator: random.Random, *, is_mixed: bool) -> Cluster:
    devices = DEVICES if is_mixed else DEVICES[:1]
    nodes = [
        node(
            f"n{number}",
            [gpu(f"n{number}.{index}", index=index, device=devices[number % len(devices)]) for index in range(4)],
            cpu_cores=8.0,
        )
        for number in range(generator.choice((2, 3)))
    ]
    return Cluster(name="small", nodes=nodes)


def told(policy: str, seed: int, *, nodes_max: int, is_mixed: bool) -> Sequence[object]:
    """Return after every fact what was ordered, and why each job waits."""
    generator, found = random.Random(seed), list[object]()
    trace, cluster = crowd(generator, is_mixed=is_mixed), machines(generator, is_mixed=is_mixed)

    def note(event: Event, commands: Sequence[Command]) -> None:
        orders = [one for one in commands if isinstance(one, LaunchJob | StopJob)]
        state = run.engine.state
        waiting = [job.request.job_id for job in state.waiting.ready_jobs()]
        found.append((event.at_ms, orders, [(job_id, state.decisions.reason_of(job_id)) for job_id in waiting]))

    run: Simulation = simulation(
        trace,
        cluster=cluster,
        policy=policy,
        parameters=POLICIES[policy],
        observe=note,
        nodes_per_job_max=nodes_max,
        report_interval_ms=20_000,
        charges=OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=30_000),
    )
    assert run.run().rejected_decisions == 0
    return found


@pytest.mark.parametrize(("policy", "seed"), list(product(POLICIES, SEEDS)))
def test_jobs_are_promised_at_once_what_the_plain_rule_promises_them(
    policy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes_max, is_mixed = seed % 3, seed // 3 % 2 == 1
    monkeypatch.setattr(long_running, "GPUS_IN_COLUMNS_MIN", 1)
    promised, promise = list[object](), length_queue._promise_vacant

    def count(*arguments: object) -> object:
        held = promise(*arguments)  # type: ignore[arg-type]
        promised.extend([] if held is None else [held])
        return held

    with monkeypatch.context() as patched:
        patched.setattr(length_queue, "_promise_vacant", count)
        quick = told(policy, seed, nodes_max=nodes_max, is_mixed=is_mixed)
    monkeypatch.setattr(length_queue, "_promise_vacant", lambda *_: None)
    assert quick == told(policy, seed, nodes_max=nodes_max, is_mixed=is_mixed)
    assert bool(promised) is (nodes_max < 2)

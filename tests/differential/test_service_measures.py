"""Numbers that are kept for running jobs, against those of the same instant that are found in columns."""

from __future__ import annotations

import random
from bisect import bisect_right
from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core import queue_events
from scheduler_service.core.cluster_view.remaining_times import ServiceTimes
from scheduler_service.core.cluster_view.service_measures import LEVEL_MS, KeptServiceMeasures, ServiceRules
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event, JobStopped, NodeDisconnected, TimerFired
from scheduler_service.core.records import Phase
from tests.support.cases import sampled
from tests.support.engine_play import Play
from tests.support.simulated_runs import simulation, trace_job, trace_of

CHARGES = OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=3_000)
RULES = ServiceRules(limits_gpu_ms=(200_000.0, 660_000.0, 2_178_000.0), run_min_ms=45_000, run_per_cost_ratio=3.3)
"""Not those of the policy, which are kept beside them in turns."""


def crowd(seed: int) -> Trace:
    """Jobs of some widths for which others are stopped now and then."""
    generator = random.Random(seed)
    jobs = [
        trace_job(
            f"j{number:02}",
            at_s=10 * generator.randrange(60),
            seconds=generator.randrange(1, 1_500),
            gpus=generator.choice((1, 1, 2, 4, 6)),
            migration_cost_ms=generator.choice((0, 7_777, 40_000)),
        )
        for number in range(30)
    ]
    return trace_of(*sorted(jobs, key=lambda one: (one.submitted_at_ms, one.request.job_id)))


def found_in_columns(view: SchedulingView, times: ServiceTimes, at_ms: int) -> NDArray[np.float64]:
    """Return the numbers by the rules, in words: -inf while a job is protected, inf where no job is alone."""
    earned_ms = np.maximum(RULES.run_min_ms, RULES.run_per_cost_ratio * times.migration_cost_ms)
    levels = np.array(RULES.limits_gpu_ms).searchsorted(times.attained_gpu_ms, side="right")
    measures = levels * LEVEL_MS + times.submitted_at_ms
    alone = view.index.counted_arrays.jobs_on == 1
    return np.where(alone, np.where(at_ms - times.started_at_ms < earned_ms, -inf, measures), inf)


class Watch:
    """Compares the numbers after every fact of a run."""

    def __init__(self) -> None:
        self.run: Simulation | None = None
        self.checks = self.changes_by_time = 0
        self.sees_shared = False
        self.numbers = set[float]()

    def __call__(self, event: Event, commands: list[Command]) -> None:
        assert self.run is not None
        view = self.run.engine._view(explain=False)
        kept = view.index.service_measures(RULES)
        assert kept is not None
        found = found_in_columns(view, view.index.service_times, view.now_ms)
        assert kept.least.tolist() == [*found.tolist(), -inf]
        assert kept.in_order == sorted(kept.least.tolist())
        self.check_turns(view, kept)
        self.numbers.update(found.tolist())
        self.sees_shared |= bool((view.index.counted_arrays.jobs_on > 1).any())
        self.checks += 1
        for measure_min in (-1e300, float(view.now_ms - 200_000), LEVEL_MS, 2 * LEVEL_MS):
            self.check_next_change(view, kept, found, measure_min)

    def check_turns(self, view: SchedulingView, kept: KeptServiceMeasures) -> None:
        """Every job that holds a GPU stands where its record puts it, also one that is protected or leaves."""
        turns = sorted(
            (bisect_right(RULES.limits_gpu_ms, job.attained_gpu_ms), job.submitted_at_ms, job_id)
            for job_id, job in view.running.items()
        )
        assert [kept.turn_of(job_id) for *_, job_id in turns] == turns
        for job_id, job in view.running.items():
            earned_ms = max(RULES.run_min_ms, RULES.run_per_cost_ratio * job.request.migration_cost_ms)
            assert kept.is_protected(job_id, view.now_ms) is (view.now_ms - job.started_at_ms < earned_ms)
        assert [kept.jobs_before(turn) for turn in turns] == [*range(len(turns))]
        assert kept.jobs_before((len(RULES.limits_gpu_ms) + 1, 0, "")) == len(turns)

    def check_next_change(
        self, view: SchedulingView, kept: KeptServiceMeasures, found: NDArray[np.float64], measure_min: float
    ) -> None:
        """Until then nothing becomes as large that was smaller, however long it takes."""
        assert self.run is not None
        next_ms = kept.next_change_ms(measure_min)
        before_ms = view.now_ms + 10**9 if next_ms == inf else int(next_ms) - 1
        assert before_ms >= view.now_ms
        times = self.run.engine._index._times._times
        assert times is not None
        then = found_in_columns(view, times.services_at(before_ms), before_ms)
        assert ((then >= measure_min) == (found >= measure_min)).all()
        self.changes_by_time += next_ms < inf


class RareWatch(Watch):
    """Looks at every tenth fact only, so that many jobs have come and left since the last look."""

    def __call__(self, event: Event, commands: list[Command]) -> None:
        self.facts = getattr(self, "facts", 0) + 1
        if self.facts % 10 == 0:
            super().__call__(event, commands)


def watched(seed: int, watch: Watch | None = None, **settings: Any) -> Watch:
    watch = watch or Watch()
    watch.run = simulation(
        crowd(seed), cluster="2x4", observe=watch, charges=CHARGES, **{"policy": "tiresias", **settings}
    )
    watch.run.run()
    return watch


@pytest.mark.parametrize("seed", sampled(range(8), 2))
def test_kept_numbers_are_those_that_a_look_at_every_gpu_finds_after_every_fact(seed: int) -> None:
    parameters = {"queues": 2, "queue_limit_gpu_ms": 400_000, "run_min_ms": 30_000}
    watch = watched(seed, parameters=parameters, report_interval_ms=20_000 * (seed % 2))
    assert watch.checks > 300
    assert watch.changes_by_time > watch.checks
    assert {-inf, inf} < watch.numbers
    assert {number // LEVEL_MS for number in watch.numbers if abs(number) < inf} >= {0.0, 1.0, 2.0}


def test_numbers_are_found_anew_where_a_node_leaves() -> None:
    watch = watched(3)
    assert watch.run is not None
    node_id = next(iter(watch.run.engine.state.nodes))
    now_ms = watch.run.engine.state.now_ms
    watch(NodeDisconnected(at_ms=now_ms, node_id=node_id), [])
    watch.run.engine.handle(NodeDisconnected(at_ms=now_ms, node_id=node_id))
    view = watch.run.engine._view(explain=False)
    kept = view.index.service_measures(RULES)
    assert kept is not None
    assert len(kept.least) == len(view.gpus) + 1 == 5


@pytest.mark.parametrize(("policy", "left_max"), [("fifo", 0), ("fifo", 5), ("horus", 0)])
def test_jobs_are_forgotten_of_which_nobody_says_that_they_have_left(
    policy: str, left_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_service.core.cluster_view.occupancy.LEFT_JOBS_MAX", left_max)
    monkeypatch.setattr("scheduler_service.core.cluster_view.cluster_index.UNREAD_JOBS_MAX", left_max)
    # Of policies that read no numbers themselves, so that nothing is read between two looks; the last one shares GPUs.
    watch = watched(2, RareWatch(), policy=policy)
    assert watch.checks > 5
    assert watch.sees_shared is (policy == "horus")


def test_a_job_that_starts_again_where_it_ran_is_protected_again_though_nobody_looked_in_between() -> None:
    play = Play("fifo")

    def number() -> float:
        kept = play.engine._view(explain=False).index.service_measures(RULES)
        assert kept is not None
        return kept.least.item(0)

    play.submit("only")
    play.tell(TimerFired, after_ms=60_000)
    assert abs(number()) < inf
    play.tell(queue_events.JobHeld, job_id="only", stops_running=True)
    play.report(JobStopped, "only", exit_class="checkpointed")
    play.tell(queue_events.JobReleased, job_id="only")
    assert play.phase("only") is Phase.STARTING
    assert number() == -inf


class DueWatch(Watch):
    """Counts the instants that are kept, and the jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = list[tuple[int, int]]()

    def __call__(self, event: Event, commands: list[Command]) -> None:
        super().__call__(event, commands)
        assert self.run is not None
        kept = self.run.engine._view(explain=False).index.service_measures(RULES)
        assert kept is not None
        self.counts.append((len(kept._dues), len(kept._noted)))


@pytest.mark.parametrize("dues_per_job_max", [1, 8])
def test_instants_that_facts_have_overtaken_are_forgotten(
    dues_per_job_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_service.core.cluster_view.service_measures.DUES_PER_JOB_MAX", dues_per_job_max)
    watch = DueWatch()
    watched(1, watch, policy="fifo")
    dues_max, jobs_max = map(max, zip(*watch.counts, strict=True))
    assert (dues_max > jobs_max) is (dues_per_job_max > 1)

"""A seeded swarm of faults around the engine: nothing bad ever happens, and in the end everything finishes."""

from __future__ import annotations

import json

import pytest

from scheduler_service.core.codec import decode_event
from scheduler_service.core.records import Phase
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.drawn_faults import Faults
from tests.support.simulated_cluster import SimulatedCluster, new_engine, restored_engine


def run_to_the_end(world: SimulatedCluster) -> None:
    world.run()
    unfinished = {request.job_id for request in world.requests} - world.outcomes().keys()
    assert not unfinished


def every_policy(seeds: range) -> list[tuple[int, str]]:
    """Every policy once among as many seeds."""
    return [(seed, sorted(POLICIES)[seed % len(POLICIES)]) for seed in seeds]


def check_that_jobs_end_well(seed: int, policy: str) -> None:
    world = SimulatedCluster(seed, policy=policy)
    run_to_the_end(world)
    for job_id, phase in world.outcomes().items():
        job = world.engine.state.jobs[job_id]
        if phase is Phase.FINISHED:
            assert job.steps_done >= world.steps_total[job_id]
        elif phase is Phase.CANCELLED:
            assert job_id in world.cancelled
        else:
            assert job.reason.code in {"OUT_OF_MEMORY", "LAUNCH_REFUSED_FOR_GOOD"}, job.history


@for_each("seed, policy", every_policy(range(len(POLICIES))))
def test_every_job_ends_well_whatever_went_wrong(seed: int, policy: str) -> None:
    check_that_jobs_end_well(seed, policy)


@pytest.mark.endurance
@for_each("seed, policy", every_policy(range(len(POLICIES), 3 * len(POLICIES))))
def test_every_job_ends_well_under_more_seeds_too(seed: int, policy: str) -> None:
    check_that_jobs_end_well(seed, policy)


@for_each("seed", range(30), always=6)
def test_every_job_ends_well_although_it_is_moved_all_the_time(seed: int) -> None:
    world = SimulatedCluster(3_000 + seed, policy="restless")
    run_to_the_end(world)
    for job_id, phase in world.outcomes().items():
        job = world.engine.state.jobs[job_id]
        assert phase is not Phase.FINISHED or job.steps_done >= world.steps_total[job.job_id]


@for_each("seed", range(30), always=6)
def test_every_job_ends_well_although_it_is_paused_again_and_again(seed: int) -> None:
    world = SimulatedCluster(5_000 + seed, policy="pausing")
    run_to_the_end(world)
    for job_id, phase in world.outcomes().items():
        job = world.engine.state.jobs[job_id]
        assert phase is not Phase.FINISHED or job.steps_done >= world.steps_total[job.job_id]


def test_pauses_are_carried_out_and_end_without_a_restart() -> None:
    world = SimulatedCluster(1, faults=Faults(), policy="pausing")
    run_to_the_end(world)
    assert world.pauses > 10
    assert set(world.outcomes().values()) == {Phase.FINISHED}
    assert not any(job.counts.restarts for job in world.engine.state.jobs.values())


def test_moves_and_reshapes_are_carried_out_without_a_restart() -> None:
    # A move takes as long as its preparation, also to another node: one cluster alone has few.
    worlds = [SimulatedCluster(seed, faults=Faults(), policy="restless", nodes=4) for seed in (5, 6, 7)]
    for world in worlds:
        run_to_the_end(world)
    jobs = [job for world in worlds for job in world.engine.state.jobs.values()]
    assert sum(job.counts.migrations for job in jobs) > 5
    assert sum(job.counts.reshapes for job in jobs) > 1
    assert not any(job.counts.restarts or job.counts.preemptions for job in jobs)
    assert all(world.preparations > 1 for world in worlds)
    assert all(job.attempt == 1 + job.counts.migrations + job.counts.reshapes for job in jobs)


@for_each("seed", range(5), always=2)
@pytest.mark.parametrize("policy", ["horus", "restless", "pausing"])
def test_a_recorded_log_gives_a_fresh_engine_the_same_commands(seed: int, policy: str) -> None:
    world = SimulatedCluster(1_000 + seed, policy=policy)
    run_to_the_end(world)
    fresh = new_engine(policy)
    replayed = [fresh.handle(decode_event(json.loads(line))) for line in world.log]
    assert replayed == world.returned
    assert fresh.snapshot() == world.engine.snapshot()


@for_each("seed", range(5), always=2)
def test_without_faults_every_job_finishes_at_its_first_attempt(seed: int) -> None:
    world = SimulatedCluster(seed, faults=Faults(), policy="horus_f")
    run_to_the_end(world)
    assert set(world.outcomes().values()) == {Phase.FINISHED}
    assert all(job.attempt == 1 for job in world.engine.state.jobs.values())


@for_each("seed", range(10), always=3)
@pytest.mark.parametrize("policy", ["horus", "restless", "pausing"])
def test_a_restored_engine_goes_on_like_the_one_that_was_saved(seed: int, policy: str) -> None:
    world = SimulatedCluster(2_000 + seed, policy=policy)
    world.run(until_ms=20_000)
    copy = restored_engine(json.dumps(world.engine.snapshot()))
    start = len(world.log)
    run_to_the_end(world)
    went_on = [copy.handle(decode_event(json.loads(line))) for line in world.log[start:]]
    assert went_on == world.returned[start:]

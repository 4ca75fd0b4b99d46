"""Trials among lost nodes, crashes and failing jobs: every job ends, and a replayed log gives the same commands."""

from __future__ import annotations

import json

import pytest

from scheduler_service.core.codec import decode_event
from scheduler_service.core.records import Phase
from scheduler_service.core.trial_sharing import first_measurement_rules, measuring_starts
from tests.support.cases import for_each, sampled
from tests.support.drawn_faults import Faults
from tests.support.simulated_cluster import new_engine
from tests.support.unsure_cluster import UnsureCluster


@for_each("seed", range(16), always=6)
def test_every_job_ends_well_although_jobs_are_tried_among_faults(seed: int) -> None:
    world = UnsureCluster(7_000 + seed, policy=("horus", "ojpp")[seed % 2], nodes=2, gpus=1)
    world.run()
    assert world.outcomes().keys() == {request.job_id for request in world.requests}
    for job_id, phase in world.outcomes().items():
        job = world.engine.state.jobs[job_id]
        assert phase is not Phase.FINISHED or job.steps_done >= world.steps_total[job.job_id]


def test_without_faults_jobs_are_tried_and_some_trials_break() -> None:
    worlds = [UnsureCluster(seed, faults=Faults(), nodes=2, gpus=1) for seed in range(4)]
    for world in worlds:
        world.run()
        assert set(world.outcomes().values()) == {Phase.FINISHED}
        assert not any(job.counts.restarts for job in world.engine.state.jobs.values())
    assert sum(world.trials for world in worlds) > 8
    assert sum(world.broken_trials for world in worlds) > 2


@pytest.mark.parametrize("seed", sampled(range(4), 1))
def test_a_recorded_log_with_trials_gives_a_fresh_engine_the_same_commands(seed: int) -> None:
    world = UnsureCluster(8_000 + seed, nodes=2, gpus=1)
    world.run()
    fresh = new_engine("horus")
    assert [fresh.handle(decode_event(json.loads(line))) for line in world.log] == world.returned
    assert fresh.snapshot() == world.engine.snapshot()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a few seconds lend as much of their lives as long ones do of theirs in minutes."""
    monkeypatch.setattr(first_measurement_rules, "PAUSE_REPORTS_LEAST", 0.5)
    monkeypatch.setattr(first_measurement_rules, "LENT_RATIO_LEAST", 0.4)
    monkeypatch.setattr(first_measurement_rules, "LENT_RATIO_MAX", 0.4)
    monkeypatch.setattr(measuring_starts, "HOST_REMAINING_PAUSES_MIN", 1.0)


def lent_pauses(world: UnsureCluster) -> int:
    return sum(job.counts.lent_pauses for job in world.engine.state.jobs.values())


@pytest.mark.usefixtures("hasty")
@for_each("seed", range(12), always=4)
def test_every_job_ends_well_although_new_jobs_are_measured_next_to_paused_jobs_among_faults(seed: int) -> None:
    world = UnsureCluster(9_000 + seed, policy=("horus", "sjf_bsbf")[seed % 2], nodes=1, gpus=2)
    world.run()
    assert world.outcomes().keys() == {request.job_id for request in world.requests}
    assert not world.engine.state.pauses
    fresh = new_engine(world.first_policy)
    assert [fresh.handle(decode_event(json.loads(line))) for line in world.log] == world.returned


@pytest.mark.usefixtures("hasty")
def test_without_faults_new_jobs_are_measured_next_to_paused_jobs_and_some_stay() -> None:
    worlds = [UnsureCluster(seed, faults=Faults(), nodes=1, gpus=1) for seed in range(4)]
    for world in worlds:
        world.run()
        assert set(world.outcomes().values()) == {Phase.FINISHED}
    assert sum(map(lent_pauses, worlds)) > 3
    stories = [line.message for world in worlds for job in world.engine.state.jobs.values() for line in job.history]
    assert any("is measured while" in line for line in stories)
    assert any(line.startswith("shares with") for line in stories)

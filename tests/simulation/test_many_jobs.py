"""Thousands of jobs: cost per event must not grow with the number of jobs that have been."""

from __future__ import annotations

import pytest

from scheduler_service.core.records import Phase
from tests.support.cases import sampled
from tests.support.drawn_faults import Faults
from tests.support.simulated_cluster import SimulatedCluster


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("jobs", sampled([1_000, 4_000], 1))
@pytest.mark.parametrize("policy", sampled(["horus", "fifo"], 1))
def test_thousands_of_jobs_all_finish(policy: str, jobs: int) -> None:
    """What an event costs is counted elsewhere; a scan of all jobs per event would take minutes here."""
    world = SimulatedCluster(4, jobs=jobs, nodes=8, gpus=8, policy=policy, faults=Faults(), is_checked=False)
    world.run(until_ms=10**9)
    assert world.is_done
    assert len(world.engine.state.in_phase(Phase.FINISHED)) == jobs

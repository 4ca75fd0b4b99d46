"""Thousands of jobs: cost per event must not grow with the number of jobs that have been."""

from __future__ import annotations

import pytest

from scheduler_service.core.records import Phase
from tests.support.drawn_faults import Faults
from tests.support.simulated_cluster import SimulatedCluster


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("policy", [pytest.param("fifo", marks=pytest.mark.endurance), "horus"])
def test_four_thousand_jobs_all_finish(policy: str) -> None:
    """The deadline is generous: a scan per event would take minutes."""
    world = SimulatedCluster(4, jobs=4_000, nodes=8, gpus=8, policy=policy, faults=Faults(), is_checked=False)
    world.run(until_ms=10**9)
    assert world.is_done
    assert len(world.engine.state.in_phase(Phase.FINISHED)) == 4_000

"""Whatever state faults leave a cluster in, it can be simulated on, and most of its waiting jobs start."""

from __future__ import annotations

import json
from typing import Any

from cotenant_simulator.run.present_changes import changed_snapshot
from cotenant_simulator.run.present_run import PresentRun
from scheduler_service.core import events
from tests.support.cases import for_each
from tests.support.simulated_cluster import SimulatedCluster

EVERY = 29


@for_each("policy", ["fifo", "horus", "sjf_bsbf", "srtf", "elastic"])
def test_a_state_in_the_middle_of_faults_is_simulated_on(policy: str) -> None:
    world = SimulatedCluster(101, policy=policy)
    tell, told, waiting, started = world.tell, 0, 0, 0

    def watch(event_type: type[events.Event], **values: Any) -> None:
        nonlocal told, waiting, started
        tell(event_type, **values)
        told += 1
        if told % EVERY or world.engine.state.policy != policy:
            return
        snapshot, _ = changed_snapshot(json.loads(json.dumps(world.engine.snapshot())), {})
        run = PresentRun(snapshot, now_ms=world.engine.state.now_ms, seed="1")
        started += len(run.run().at_ms)
        waiting += len(run.waiting)

    world.tell = watch  # type: ignore[method-assign]
    world.run()
    assert waiting > 5
    assert started > 0.7 * waiting

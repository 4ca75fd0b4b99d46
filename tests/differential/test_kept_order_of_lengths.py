"""What the remaining times of an earlier instant say of room under srtf, against a look at every GPU."""

from __future__ import annotations

import random

import pytest

from cotenant_simulator.run.records import OverheadCosts
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.remaining_time_queue import Turn
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.srtf import _LongerMakeRoom
from tests.support.cases import sampled
from tests.support.simulated_runs import simulation, trace_job, trace_of

CHARGES = OverheadCosts(launch_ms=1_000, restart_ms=5_000, checkpoint_ms=3_000)


def full_cluster(seed: int) -> Trace:
    """Jobs of many lengths, most on one GPU, that come twice as fast as 64 GPUs can serve them."""
    generator = random.Random(seed)
    jobs = [
        trace_job(
            f"j{number:03}",
            at_s=generator.randrange(1_500),
            seconds=generator.choice((30, 300, generator.randrange(1, 6_000), generator.randrange(1, 6_000))),
            gpus=generator.choice((1, 1, 1, 1, 2, 4, 8)),
        )
        for number in range(70)
    ]
    return trace_of(*sorted(jobs, key=lambda one: (one.submitted_at_ms, one.request.job_id)))


@pytest.mark.parametrize("seed", sampled(range(6), 1))
def test_no_room_is_overlooked_by_what_was_known_before(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, without_look = _LongerMakeRoom.may_make_room, list[bool]()

    def compared(self: _LongerMakeRoom, gpus: int, turn: Turn) -> bool:
        has_looked = self._has_looked
        found = ask(self, gpus, turn)
        if not has_looked:
            # Nothing was promised in this round: another look finds what the first one would.
            every_gpu = LongRunning(self._ledger)
            every_gpu._is_whole = False
            least_ms = turn[0] + self._policy.preemption_gain_min_ms
            assert found is (least_ms <= every_gpu.reach_ms(gpus))
            without_look.append(not self._has_looked)
        return found

    monkeypatch.setattr(_LongerMakeRoom, "may_make_room", compared)
    result = simulation(full_cluster(seed), cluster="8x8", policy="srtf", charges=CHARGES).run()
    assert result.unfinished == 0
    assert sum(job.preemptions for job in result.jobs) > 5
    assert sum(without_look) > len(without_look) / 4

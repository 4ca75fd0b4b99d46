"""How many commands of Slurm the bridge starts: each takes some 10 ms of a core, and short jobs wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.engines.bridge import Bridge
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.cases import for_each
from tests.support.fake_slurm import FakeSlurm

DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)]
HEAVY = "cotenant memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"


class CountedSlurm(FakeSlurm):
    """Counts its commands by their first two words."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def query(self, command: Sequence[str]) -> Mapping[str, Any]:
        """See `SlurmCommands.query`."""
        self.counts[command[0]] += 1
        return super().query(command)

    def order(self, command: Sequence[str]) -> None:
        """See `SlurmCommands.order`."""
        named = "annotate" if command[3:] and command[3].startswith("AdminComment") else command[1]
        self.counts[named] += 1
        super().order(command)


def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


@for_each("jobs", [4, 40])
def test_a_job_costs_one_order_and_a_round_two_questions_and_one_release(jobs: int) -> None:
    slurm, rounds = CountedSlurm(), 0
    for number in range(1, jobs + 1):
        slurm.submit(str(number), HEAVY)
    bridge = Bridge(SlurmEngine(slurm, DEVICES), ask, policy="horus", places=True)
    while slurm.jobs:
        rounds += 1
        report = bridge.run_round(now_ms=1_000 * rounds, notes_max=0)
        assert report.placed
        for job_id in report.placed:
            del slurm.jobs[job_id]
    assert slurm.counts == {"squeue": rounds, "sinfo": rounds, "update": jobs, "release": rounds}

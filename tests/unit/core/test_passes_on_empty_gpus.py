"""A batch that no GPU holds at once starts alone, in several passes of one optimizer step, where its owner allows."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.records import MemoryPoint, Phase, Share
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import GIB, prediction

SIZES = {size: MemoryPoint(memory_bytes=int(size * 0.3 * GIB), memory_bytes_upper_99=int(size * 0.31 * GIB))
         for size in (1, 2, 4, 8, 16, 32, 64)}  # fmt: skip
"""64 samples need 19.2 GiB, 32 need 9.6, 16 need 4.8; a GPU has 8."""
POLICIES = ["sjf_bsbf", "fifo", "srtf", "sjf_ffs", "elastic", "optimus", "pollux", "tiresias"]


def play(policy: str, *, gpus_on_node: int = 1, **changes: Any) -> tuple[Play, list[commands.LaunchJob]]:
    made = Play(policy, gpus=gpus_on_node)
    fields = {"key": "k", "graph": "g", "global_batch_size": 64, "share": Share.ANY, **changes}
    found = made.submit(**fields)
    step_ms = {(count, size): 64 / count * 10.0 for count in (1, 2) for size in SIZES}
    found += made.tell(events.PredictionArrived, prediction=prediction("k", memory=SIZES, step_ms=step_ms))
    found += made.tell(events.PairPredictionsFailed, device="standin", keys=("k",), code="UNAVAILABLE")
    found += made.tell(events.TimerFired, after_ms=3_600_000)
    return made, [command for command in found if isinstance(command, commands.LaunchJob)]


@for_each("policy", POLICIES)
def test_a_batch_too_large_for_an_empty_gpu_starts_in_passes_with_the_same_step(policy: str) -> None:
    made, (launch,) = play(policy)
    assert (launch.micro_batch_size, launch.accumulation_steps) == (16, 4)
    reason = made.engine.state.jobs["j0"].reason
    assert reason.code == "STARTS_ALONE_IN_PASSES"
    assert (reason.numbers["micro_batch_size"], reason.numbers["accumulation_steps"]) == (16, 4)


def test_a_gang_shares_the_batch_and_makes_its_passes_on_every_gpu() -> None:
    _, (launch,) = play("sjf_bsbf", gpus_on_node=2, gpus=2)
    assert (launch.micro_batch_size, launch.accumulation_steps) == (16, 2)


@pytest.mark.parametrize("changes", [{"share": Share.NEVER}, {"takes_whole_batch": True}])
@for_each("policy", POLICIES)
def test_a_job_that_refuses_smaller_batches_waits_as_before(policy: str, changes: dict[str, Any]) -> None:
    made, launches = play(policy, **changes)
    assert not [launch for launch in launches if launch.accumulation_steps > 1]
    assert launches or made.phase() is Phase.PENDING


@pytest.mark.parametrize("changes", [{"memory_request_bytes": 20 * GIB}, {"memory_floor_bytes": 20 * GIB}])
def test_a_stated_or_raised_need_does_not_shrink_with_the_passes(changes: dict[str, int]) -> None:
    made, launches = play("sjf_bsbf", **changes)
    assert not launches
    assert made.code() == "MEMORY_EXCEEDS_GPU"

"""What need not be done for jobs that have their GPUs for themselves, as nearly all have."""

from __future__ import annotations

import random
from typing import NoReturn

import pytest

from cotenant_simulator.run.attempts import Attempt, GpuOccupancy
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.truth.kinds import GroundTruth
from tests.support.scheduling import gpu
from tests.support.simulated_runs import ends_s, run, trace_job, trace_of


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("it was looked at")


def test_of_a_job_alone_no_neighbour_is_disturbed_or_slows_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [trace_job("wide", gpus=2, seconds=20), trace_job("late", at_s=5, seconds=10)]
    expected = ends_s(run(trace_of(*jobs), policy="fifo", cluster="1x2"))
    monkeypatch.setattr(Machines, "_disturb", refuse)
    monkeypatch.setattr(GpuOccupancy, "_slowdown", refuse)
    assert ends_s(run(trace_of(*jobs), policy="fifo", cluster="1x2")) == expected


def on(job_id: str, gpu_ids: list[str]) -> Attempt:
    """An attempt on these GPUs, that trains."""
    attempt = Attempt(
        job_id=job_id,
        key="key",
        attempt=1,
        fence=1,
        gpu_ids=tuple(gpu_ids),
        device="standin",
        step_ms=1.0,
        steps_total=9,
        memory_bytes=1,
        utilization_ratio=0.2,
        work_left_ms=9.0,
        launched_at_ms=0,
    )
    attempt.is_training = True
    return attempt


@pytest.mark.parametrize("seed", range(20))
def test_attempts_have_as_neighbours_whoever_trains_on_any_of_their_gpus_as_they_come_and_go(seed: int) -> None:
    draw, gpus = random.Random(seed), {f"g{number}": gpu(f"g{number}") for number in range(5)}
    occupancy = GpuOccupancy(truth=GroundTruth(kinds={}, slowdown_ratio=0.5), gpus=gpus, checkpoint_interval_ms=0)
    for number in range(40):
        living = [*occupancy.attempts.values()]
        if living and draw.random() < 0.45:
            occupancy.remove(draw.choice(living))
        else:
            occupancy.put(on(f"j{number}", draw.sample([*gpus], draw.randint(1, 3))))
        for one in occupancy.attempts.values():
            others = [other for other in occupancy.attempts.values() if {*other.gpu_ids} & {*one.gpu_ids}]
            assert {other.job_id for other in occupancy.neighbours(one)} == {other.job_id for other in others} - {
                one.job_id
            }
            occupancy.refresh_pace(one)
            assert (one.pace > 1.0) is (len(others) > 1)
    for one in [*occupancy.attempts.values()]:
        occupancy.remove(one)
    assert not occupancy._shared_gpu_ids

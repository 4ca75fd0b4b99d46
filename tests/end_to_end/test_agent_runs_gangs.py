"""A real agent runs one job as a gang of two, of one, and of two again; only the scheduler is a fake."""

from __future__ import annotations

import sys
from pathlib import Path

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from tests.support import gang_training
from tests.support.agent import REPOSITORY, TWO_STANDINS, running_agent
from tests.support.fake_scheduler import FakeScheduler, key, launch

GPUS = ("standin-node-a-0", "standin-node-a-1")
STEPS = 60


def order(folder: Path, attempt: int, ranks: int) -> messages.LaunchJob:
    command = [sys.executable, gang_training.__file__, str(folder), str(STEPS), "20", "sharded"]
    found = launch(
        "job-1", command, GPUS[0], attempt=attempt, fence=attempt, ranks=2, steps_total=STEPS,
        granted_fences=tuple(range(attempt - 1, 0, -1)), environment={"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    del found.assignments[:]
    # As a policy may list them: the ranks decide.
    for rank in reversed(range(ranks)):
        found.assignments.append(scheduling_pb2.Assignment(gpu_id=GPUS[rank], rank=rank))
    return found


def journal(folder: Path, rank: int) -> list[list[str]]:
    return [line.split() for line in (folder / f"job-1.{rank}.journal").read_text().splitlines()]


def test_a_gang_goes_on_with_as_many_ranks_as_it_is_given_devices(tmp_path: Path) -> None:
    flags = ("--allow-any-command",)
    with (
        FakeScheduler() as scheduler,
        running_agent(tmp_path / "state", scheduler, *flags, devices=TWO_STANDINS),
    ):
        # Steps are slow until the last attempt, so that each is still under way when it is stopped.
        pace = tmp_path / "job-1.step_ms"
        pace.write_text("200")
        for attempt, ranks in ((1, 2), (2, 1)):
            scheduler.send(launch_job=order(tmp_path, attempt, ranks))
            scheduler.wait_for_observation("job-1", lambda seen, least=15 * attempt: seen.steps_done >= least)  # type: ignore[misc]
            scheduler.send(
                stop_job=messages.StopJob(key=key("job-1", attempt, attempt), cause="reshaped", checkpoint=True)
            )
            left = scheduler.wait_for_exit("job-1", attempt)
            assert (left.exit_class, left.checkpoint_step) == ("checkpointed", left.steps_done)
        pace.unlink()
        scheduler.send(launch_job=order(tmp_path, 3, 2))
        assert scheduler.wait_for_exit("job-1", 3).exit_class == "done"
    starts = [line for line in journal(tmp_path, 0) if line[0] == "start"]
    second, third = (int(line[2]) for line in starts[1:])
    # Two ranks add 3 in a step, one adds 1: each attempt went on from the sum of all before it, however many wrote it.
    sums = [0, 3 * second, 3 * second + (third - second)]
    assert [int(line[3]) for line in starts] == sums
    assert journal(tmp_path, 0)[-1] == ["end", "3", str(sums[2] + 3 * (STEPS - third))]
    assert {line[1] for line in journal(tmp_path, 1) if line[0] == "step"} == {"1", "3"}

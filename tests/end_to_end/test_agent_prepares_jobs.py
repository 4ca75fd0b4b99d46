"""A real agent starts attempts early: they wait for their launch, and nothing stays of those that are not launched."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing.checkpoint_pieces import read_pieces
from tests.support.agent import GPU, AgentProcess, find_early_processes, running_agent, wait_until
from tests.support.agent import write_script as written
from tests.support.fake_scheduler import FakeScheduler, key, launch
from tests.unit.agent.test_checkpoints import write_checkpoint

WAITS = """
import os, time
from cotenant import job
print("built", flush=True)
job.wait_for_go()
goes_on = f"from {job.resume_step()}" if job.resume_directory() else ""
print("step", os.environ["COTENANT_ATTEMPT"], *goes_on.split(), flush=True)
time.sleep(600)
"""
LEASE_MS = 6_000


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler(lease_ms=LEASE_MS, grace_ms=500) as server:
        yield server


@pytest.fixture
def agent(tmp_path: Path, scheduler: FakeScheduler) -> Iterator[AgentProcess]:
    with running_agent(tmp_path / "state", scheduler) as process:
        yield process


def order(tmp_path: Path, *words: str) -> messages.LaunchJob:
    command = [sys.executable, written(tmp_path, WAITS), *words]
    return launch("job-1", command, GPU, attempt=2, fence=5, memory_limit_bytes=1 << 20)


def prepare(scheduler: FakeScheduler, wanted: messages.LaunchJob) -> None:
    scheduler.forget()
    scheduler.send(prepare_job=messages.PrepareJob(key=wanted.key, launch=wanted))
    scheduler.wait_for(lambda message: message.attempt_prepared if message.HasField("attempt_prepared") else None)


def wait_for_end(scheduler: FakeScheduler) -> messages.PreparationEnded:
    return scheduler.wait_for(
        lambda message: message.preparation_ended if message.HasField("preparation_ended") else None
    )


def traces(state: Path) -> list[str]:
    return [entry.name for folder in ("jobs", "run") for entry in (state / folder).iterdir()]


def test_an_attempt_waits_through_a_kill_of_its_agent_until_it_is_launched(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    wanted = order(tmp_path)
    prepare(scheduler, wanted)
    agent.kill()
    other = AgentProcess(agent.state, scheduler)
    try:
        hello = scheduler.wait_for_hello()
        assert list(hello.attempts) == [], "it is none that the job has"
        prepare(scheduler, wanted)
        assert len(find_early_processes(tmp_path)) == 1
        scheduler.send(launch_job=wanted)
        scheduler.wait_for_start("job-1", 2)
        log = agent.state / "jobs" / "job-1.2" / "out.log"
        wait_until(lambda: "step" in log.read_text(), "it has begun")
        assert log.read_text() == "built\nstep 2\n"
        assert scheduler.wait_for_observation("job-1", lambda item: item.key.fence == 5)
    finally:
        other.kill()


class OtherNode(FakeScheduler):
    """Has a checkpoint of another node."""

    pieces: Sequence[messages.CheckpointPiece] = ()

    def FetchCheckpoint(  # noqa: N802
        self, request: messages.FetchCheckpointRequest, context: Any
    ) -> Iterator[messages.FetchCheckpointResponse]:
        """Pass it on."""
        for piece in self.pieces:
            yield messages.FetchCheckpointResponse(piece=piece)


def test_an_attempt_that_waits_on_another_node_begins_from_the_checkpoint_that_is_fetched_for_it(
    tmp_path: Path,
) -> None:
    scheduler = OtherNode(lease_ms=LEASE_MS, grace_ms=500)
    with scheduler, running_agent(tmp_path / "state", scheduler) as agent:
        scheduler.pieces = list(read_pieces(write_checkpoint(tmp_path / "there" / "job-1", 3), 1 << 20))
        wanted = order(tmp_path)
        prepare(scheduler, wanted)
        wanted.steps_done = 7
        wanted.granted_checkpoints.add(fence=3, node_id="there")
        scheduler.send(launch_job=wanted)
        scheduler.wait_for_start("job-1", 2)
        log = agent.state / "jobs" / "job-1.2" / "out.log"
        wait_until(lambda: "step" in log.read_text(), "it has begun")
        assert log.read_text() == "built\nstep 2 from 7\n", "it was prepared, and goes on from step 7"


class SlowNode(FakeScheduler):
    """Has a checkpoint that does not come."""

    def __init__(self) -> None:
        super().__init__(lease_ms=LEASE_MS, grace_ms=500)
        self.is_asked, self.is_over = threading.Event(), threading.Event()

    def FetchCheckpoint(  # noqa: N802
        self, request: messages.FetchCheckpointRequest, context: Any
    ) -> Iterator[messages.FetchCheckpointResponse]:
        """Let the agent wait."""
        self.is_asked.set()
        self.is_over.wait(120)
        yield from ()


def test_a_launch_that_is_given_up_while_its_checkpoint_is_fetched_leaves_nothing_and_the_scheduler_is_told(
    tmp_path: Path,
) -> None:
    scheduler = SlowNode()
    with scheduler, running_agent(tmp_path / "state", scheduler) as agent:
        wanted = order(tmp_path)
        prepare(scheduler, wanted)
        (pid,) = find_early_processes(tmp_path)
        wanted.steps_done = 7
        wanted.granted_checkpoints.add(fence=3, node_id="there")
        scheduler.send(launch_job=wanted)
        assert scheduler.is_asked.wait(60)
        scheduler.send(stop_job=messages.StopJob(key=wanted.key, cause="cancelled", grace_ms=1_000))
        assert scheduler.wait_for_refusal("job-1").code == "NO_SUCH_ATTEMPT", "that is the end of what was launched"
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")
        wait_until(lambda: traces(agent.state) == [], "nothing of it is left")
        scheduler.is_over.set()


def test_a_launch_that_is_refused_ends_what_was_started_early_for_it_long_before_its_lease(tmp_path: Path) -> None:
    scheduler = FakeScheduler(lease_ms=600_000, grace_ms=500)
    with scheduler, running_agent(tmp_path / "state", scheduler) as agent:
        wanted = order(tmp_path)
        prepare(scheduler, wanted)
        (pid,) = find_early_processes(tmp_path)
        # A part of a gang that has to go on from what nobody sends.
        resumed = messages.GrantedCheckpoint(fence=3, node_id="there")
        wanted.gang_part.CopyFrom(
            messages.GangPart(
                world_size=2, group_rank=1, nodes=2, master_address="10.0.0.1", master_port=20_007, resumed=resumed
            )
        )
        wanted.assignments[0].rank = 1
        scheduler.send(launch_job=wanted)
        assert scheduler.wait_for_refusal("job-1").message
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")
        wait_until(lambda: traces(agent.state) == [], "nothing of it is left")


def test_what_nobody_orders_any_more_ends_with_its_lease(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    prepare(scheduler, order(tmp_path))
    (pid,) = find_early_processes(tmp_path)
    agent.kill()
    other = AgentProcess(agent.state, scheduler)
    try:
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its lease is over")
        assert wait_for_end(scheduler).code == "PREPARATION_LOST"
        assert traces(agent.state) == []
    finally:
        other.kill()


@pytest.mark.parametrize("how", ["given up", "killed", "its shim is killed"])
def test_what_is_not_launched_leaves_nothing_and_a_launch_begins_from_nothing(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler, how: str
) -> None:
    wanted = order(tmp_path)
    prepare(scheduler, wanted)
    (pid,) = find_early_processes(tmp_path)
    if how == "given up":
        scheduler.send(stop_job=messages.StopJob(key=wanted.key, cause="not_needed"))
    else:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        os.kill(pid if how == "killed" else int(stat[1]), signal.SIGKILL)
    ended = wait_for_end(scheduler)
    assert (ended.key, ended.code) == (wanted.key, "PREPARATION_LOST")
    # Whoever collects orphans here may be slow to.
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "nothing of it runs")
    assert traces(agent.state) == []
    scheduler.send(launch_job=wanted)
    scheduler.wait_for_start("job-1", 2)


def test_a_program_that_is_no_python_script_is_refused_and_the_scheduler_told(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    wanted = launch("job-1", [sys.executable, "-c", "pass"], GPU, attempt=2, fence=5)
    scheduler.send(prepare_job=messages.PrepareJob(key=wanted.key, launch=wanted))
    assert wait_for_end(scheduler).code == "NOT_PREPARABLE"
    assert traces(agent.state) == []


def test_an_attempt_that_is_prepared_takes_no_memory_of_its_device(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    running = launch("job-1", [sys.executable, "-c", "import time; time.sleep(600)"], GPU, memory_limit_bytes=2 << 30)
    scheduler.send(launch_job=running)
    scheduler.wait_for_start("job-1")
    wanted = order(tmp_path)
    wanted.memory_limit_bytes = 2 << 30
    prepare(scheduler, wanted)
    scheduler.send(launch_job=wanted)
    assert scheduler.wait_for_refusal("job-1").code == "OVER_CAPACITY"
    scheduler.send(stop_job=messages.StopJob(key=key("job-1"), cause="moved", grace_ms=1_000))
    scheduler.wait_for_exit("job-1")

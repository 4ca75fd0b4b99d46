"""A real agent pauses real jobs, by signals and by the freezer, through stops, lost leases and kills."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.isolation.cgroups import detect
from tests.support.agent import GPU, TRAINING, AgentProcess, end_jobs, find_processes, running_agent, wait_until
from tests.support.agent import write_script as written
from tests.support.cases import sampled
from tests.support.fake_scheduler import FakeScheduler, key, launch

# Trains a line by gradient descent, steadily: the same numbers whenever it is paused. It sleeps between steps so that
# it lasts until it is paused, and computes so that a pause is seen in its CPU time.
FITTING = """
import os, sys, time
from cotenant import job
weight, loss, steps = 0.0, 0.0, int(sys.argv[1])
for step in range(steps):
    gradient = 0.0
    time.sleep(0.005)
    while step == steps - 1 and not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    for sample in range(1_000):
        gradient += (weight * sample - 3.0 * sample) * sample
    weight -= gradient * 6e-11
    loss = (weight - 3.0) ** 2
    job.report(step + 1, loss=loss)
print("loss", loss.hex(), flush=True)
"""
STEPS = 600
PAUSED_S = 5.0


BOTH_WAYS = pytest.mark.parametrize("flags", ["signals", "freezer"], indirect=True)
BY_SIGNALS = pytest.mark.parametrize("flags", sampled(["signals", "freezer"], 1), indirect=True)
"""The freezer in `make test-all`: what it does to a job is tested in every run, and what follows is the same code."""


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


@pytest.fixture
def flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Of the agent; skipped where the machine does not let the tests freeze a group."""
    if getattr(request, "param", "signals") == "signals":
        return ()
    groups = detect(f"test-freezer-{os.getpid()}")
    groups.remove_parents()
    if groups.freezer is None:
        pytest.skip("this machine does not let the tests make a control group that freezes")
    return ("--cgroups",)


@pytest.fixture
def agent(tmp_path: Path, scheduler: FakeScheduler, flags: tuple[str, ...]) -> Iterator[AgentProcess]:
    with running_agent(tmp_path / "state", scheduler, *flags) as process:
        yield process


def order_pause(scheduler: FakeScheduler, job: str, paused_ms_max: int) -> None:
    order = messages.PauseJob(key=key(job), cause="SLOWDOWN_TOO_HIGH", paused_ms_max=paused_ms_max)
    scheduler.send(pause_job=order)


def pause(scheduler: FakeScheduler, job: str) -> messages.AttemptObservation:
    order_pause(scheduler, job, 60_000)
    return scheduler.wait_for_observation(job, lambda item: item.state == messages.ATTEMPT_STATE_PAUSED)


def go_on(scheduler: FakeScheduler, job: str) -> messages.AttemptObservation:
    scheduler.forget()
    scheduler.send(resume_job=messages.ResumeJob(key=key(job)))
    return scheduler.wait_for_observation(job, lambda item: item.state == messages.ATTEMPT_STATE_RUNNING)


def window_ms(scheduler: FakeScheduler, job: str) -> int:
    """Time in windows that the agent has told of a job."""
    observed = (item for beat in scheduler.received for item in beat.heartbeat.attempts)
    return sum(item.window_ms for item in observed if item.key.job_id == job and item.window_steps)


def train(folder: Path, steps: int, step_s: float) -> list[str]:
    return [sys.executable, written(folder, TRAINING), str(steps), str(step_s)]


def record_of(agent: AgentProcess, job: str, name: str) -> dict[str, int]:
    return dict(json.loads((agent.state / "jobs" / f"{job}.1" / name).read_text()))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def start_training(tmp_path: Path, scheduler: FakeScheduler, steps: int = 100_000) -> None:
    scheduler.send(launch_job=launch("job-1", train(tmp_path, steps, 0.02), GPU))
    scheduler.wait_for_observation("job-1", lambda item: item.steps_done > 3)


@BOTH_WAYS
def test_a_paused_job_uses_no_cpu_time_and_ends_with_the_same_loss(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    gate = tmp_path / "may end"
    command = [sys.executable, written(tmp_path, FITTING), str(STEPS), str(gate)]
    began_s = time.monotonic()
    scheduler.send(launch_job=launch("paused", command, GPU))
    scheduler.wait_for_observation("paused", lambda item: item.window_steps > 0)
    still = pause(scheduler, "paused")
    gate.touch()
    scheduler.send(launch_job=launch("steady", command, GPU))
    pid = record_of(agent, "paused", "state.json")["job_pid"]
    before = cpu_ticks(pid)
    time.sleep(PAUSED_S)
    assert cpu_ticks(pid) == before
    steady = scheduler.wait_for_exit("steady")
    measured_ms = window_ms(scheduler, "paused")
    running = go_on(scheduler, "paused")
    assert running.paused_ms >= PAUSED_S * 1_000
    assert still.memory_bytes > 0
    paused = scheduler.wait_for_exit("paused")
    measured_ms += window_ms(scheduler, "paused")
    lived_ms = 1_000 * (time.monotonic() - began_s)
    assert 0 < measured_ms <= lived_ms - running.paused_ms, "no window counts the pause"
    assert (paused.exit_class, paused.steps_done) == ("done", STEPS)
    assert paused.log_tail == steady.log_tail
    assert paused.log_tail.startswith("loss 0x")
    # By now: a heartbeat may report the end of a pause before the agent's next look at its attempts logs it.
    assert [agent.output().count(f'"{event}"') for event in ("attempt_paused", "attempt_resumed")] == [1, 1]


@BY_SIGNALS
def test_a_paused_job_that_is_cancelled_writes_its_checkpoint(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    start_training(tmp_path, scheduler)
    pause(scheduler, "job-1")
    scheduler.send(stop_job=messages.StopJob(key=key("job-1"), checkpoint=True, cause="cancelled", grace_ms=20_000))
    exited = scheduler.wait_for_exit("job-1")
    assert (exited.exit_class, exited.exit_code) == ("checkpointed", 85)
    assert exited.checkpoint_step == exited.steps_done > 0


def test_a_paused_job_that_is_asked_for_a_checkpoint_goes_on_and_writes_it(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    start_training(tmp_path, scheduler)
    pause(scheduler, "job-1")
    scheduler.send(checkpoint_job=messages.CheckpointJob(key=key("job-1")))
    assert scheduler.wait_for_observation("job-1", lambda item: item.checkpoint_step > 0)
    assert agent.is_alive()


def test_a_pause_ends_by_itself_while_no_agent_is_there_and_the_next_agent_knows_of_it(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    start_training(tmp_path, scheduler)
    pause(scheduler, "job-1")
    until_boot_ms = record_of(agent, "job-1", "pause.json")["until_boot_ms"]
    agent.kill()
    scheduler.forget()
    second = AgentProcess(agent.state, scheduler)
    status = scheduler.wait_for_hello().attempts[0]
    assert status.state == messages.ATTEMPT_STATE_PAUSED
    assert status.paused_ms > 0
    # However long an agent takes to start: the pause is only now told to end soon.
    order_pause(scheduler, "job-1", 2_000)
    wait_until(lambda: record_of(agent, "job-1", "pause.json")["until_boot_ms"] < until_boot_ms, "an earlier end")
    second.kill()
    wait_until(lambda: record_of(agent, "job-1", "paused.json")["since_boot_ms"] == 0, "the pause is over")
    scheduler.forget()
    third = AgentProcess(agent.state, scheduler)
    again = scheduler.wait_for_hello().attempts[0]
    assert again.state == messages.ATTEMPT_STATE_RUNNING
    assert again.paused_ms > status.paused_ms
    steps = again.steps_done
    scheduler.wait_for_observation("job-1", lambda item: item.steps_done > steps)
    third.kill()


def test_a_job_whose_lease_ends_while_it_is_paused_leaves_in_good_order(tmp_path: Path) -> None:
    with (
        FakeScheduler(lease_ms=4_000, grace_ms=20_000) as scheduler,
        running_agent(tmp_path / "state", scheduler),
    ):
        start_training(tmp_path, scheduler)
        pause(scheduler, "job-1")
        # Renewed all the while: a pause is no reason for the end of a lease.
        time.sleep(5.5)
        assert not any(item.HasField("attempt_exited") for item in scheduler.received)
        scheduler.renew = False
        exited = scheduler.wait_for_exit("job-1")
        assert (exited.exit_class, exited.exit_code) == ("fenced", 85)
        assert exited.checkpoint_step > 0


@BY_SIGNALS
def test_nothing_is_left_of_a_paused_job_whose_keeper_is_killed(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    start_training(tmp_path, scheduler)
    pause(scheduler, "job-1")
    os.kill(record_of(agent, "job-1", "state.json")["shim_pid"], signal.SIGKILL)
    assert scheduler.wait_for_exit("job-1").exit_class == "lost"
    wait_until(lambda: not find_processes(str(tmp_path / "script.py")), "the job died with its keeper")


@BOTH_WAYS
def test_an_agent_that_comes_back_ends_a_paused_job_without_a_keeper(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler, flags: tuple[str, ...]
) -> None:
    start_training(tmp_path, scheduler)
    pause(scheduler, "job-1")
    agent.kill()
    os.kill(record_of(agent, "job-1", "state.json")["shim_pid"], signal.SIGKILL)
    scheduler.forget()
    second = AgentProcess(agent.state, scheduler, *flags)
    assert scheduler.wait_for_exit("job-1").exit_class == "lost"
    wait_until(lambda: not find_processes(str(tmp_path / "script.py")), "nothing is left of the job")
    second.kill()
    end_jobs(agent.state)


def test_what_makes_no_sense_is_refused_and_the_job_runs_on(
    tmp_path: Path, agent: AgentProcess, scheduler: FakeScheduler
) -> None:
    start_training(tmp_path, scheduler)
    for paused_ms_max in (0, -1, 60_001, 2**62):
        scheduler.forget()
        scheduler.send(pause_job=messages.PauseJob(key=key("job-1"), paused_ms_max=paused_ms_max))
        refused = scheduler.wait_for_refusal("job-1")
        assert refused.code == "NOT_PAUSABLE"
        assert "1 to 60000 ms" in refused.message
    go_on(scheduler, "job-1")
    scheduler.send(pause_job=messages.PauseJob(key=key("job-1", 1, 7), cause="x", paused_ms_max=1_000))
    scheduler.send(resume_job=messages.ResumeJob(key=key("nobody")))
    assert scheduler.wait_for_refusal("nobody").code == "NO_SUCH_ATTEMPT"
    scheduler.wait_for_observation("job-1", lambda item: item.window_steps > 0)

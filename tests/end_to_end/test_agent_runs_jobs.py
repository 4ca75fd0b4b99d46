"""A real agent process, real shims, real jobs; only the scheduler is a fake."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from tests.support.agent import (
    GPU,
    TRAINING,
    AgentProcess,
    end_jobs,
    find_processes,
    running_agent,
    wait_until,
    write_script,
)
from tests.support.fake_scheduler import FakeScheduler, key, launch


@pytest.fixture(scope="module")
def shared_scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory, shared_scheduler: FakeScheduler) -> Iterator[AgentProcess]:
    """One agent for all tests that leave it running: starting one takes a second."""
    flags = ("--allow-directory", str(tmp_path_factory.getbasetemp()))
    with running_agent(tmp_path_factory.mktemp("shared") / "state", shared_scheduler, *flags) as process:
        yield process


@pytest.fixture
def scheduler(shared_scheduler: FakeScheduler, shared_agent: AgentProcess) -> FakeScheduler:
    assert shared_agent.is_alive()
    return shared_scheduler


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job id of the test's own."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name)[:60]


@pytest.fixture
def own_scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


@pytest.fixture
def own_agent(tmp_path: Path, own_scheduler: FakeScheduler) -> Iterator[AgentProcess]:
    with running_agent(tmp_path / "state", own_scheduler) as process:
        yield process


def train(tmp_path: Path, steps: int, step_s: float, *gates: Path) -> list[str]:
    return [sys.executable, write_script(tmp_path, TRAINING), str(steps), str(step_s), *map(str, gates)]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a job waits for before its last step."""
    return tmp_path / "may end"


def test_a_job_runs_to_its_last_step_and_its_end_is_reported(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    scheduler.send(launch_job=launch(job, train(tmp_path, 30, 0.02, gate), GPU))
    scheduler.wait_for_start(job)
    observed = scheduler.wait_for_observation(job, lambda item: item.window_steps > 0)
    gate.touch()
    exited = scheduler.wait_for_exit(job)
    assert observed.window_ms >= observed.window_steps * 20
    assert observed.memory_bytes > 0
    assert (exited.exit_class, exited.exit_code, exited.steps_done) == ("done", 0, 30)
    assert "end at 30" in exited.log_tail


def test_hello_names_devices_and_what_is_enforced(shared_agent: AgentProcess, scheduler: FakeScheduler) -> None:
    hello = scheduler.wait_for_hello()
    assert [(gpu.gpu_id, gpu.device, gpu.healthy) for gpu in hello.gpus] == [(GPU, "cpu-standin", True)]
    assert {"shim_lease", "pinned_cores", "watchdog"} <= set(hello.enforcements)


def test_a_job_outlives_its_agent_and_the_next_agent_reports_its_exit(
    tmp_path: Path, own_agent: AgentProcess, own_scheduler: FakeScheduler, gate: Path
) -> None:
    own_scheduler.send(launch_job=launch("job-1", train(tmp_path, 40, 0.02, gate), GPU))
    own_scheduler.wait_for_start("job-1")
    own_agent.kill()
    own_scheduler.forget()
    second = AgentProcess(own_agent.state, own_scheduler)
    hello = own_scheduler.wait_for_hello()
    assert [status.state for status in hello.attempts] == [messages.ATTEMPT_STATE_RUNNING]
    gate.touch()
    exited = own_scheduler.wait_for_exit("job-1")
    assert (exited.exit_class, exited.steps_done) == ("done", 40)
    assert exited.log_tail.count("start at") == 1
    second.kill()


def test_a_job_that_ended_while_no_agent_was_there_is_reported_by_the_next(
    tmp_path: Path, own_agent: AgentProcess, own_scheduler: FakeScheduler, gate: Path
) -> None:
    own_scheduler.send(launch_job=launch("job-1", train(tmp_path, 5, 0.02, gate), GPU))
    own_scheduler.wait_for_start("job-1")
    own_agent.kill()
    gate.touch()
    wait_until(lambda: (own_agent.state / "jobs" / "job-1.1" / "exit.json").exists(), "the exit record")
    own_scheduler.forget()
    second = AgentProcess(own_agent.state, own_scheduler)
    status = own_scheduler.wait_for_hello().attempts[0]
    assert (status.state, status.exited.exit_class, status.exited.steps_done) == (
        messages.ATTEMPT_STATE_ENDED,
        "done",
        5,
    )
    second.kill()


def test_a_job_whose_keeper_is_killed_dies_and_is_reported_lost(
    tmp_path: Path, own_agent: AgentProcess, own_scheduler: FakeScheduler
) -> None:
    command = train(tmp_path, 1000, 0.05)
    own_scheduler.send(launch_job=launch("job-1", command, GPU))
    own_scheduler.wait_for_start("job-1")
    state = json.loads((own_agent.state / "jobs" / "job-1.1" / "state.json").read_text())
    os.kill(state["shim_pid"], signal.SIGKILL)
    exited = own_scheduler.wait_for_exit("job-1")
    assert exited.exit_class == "lost"
    wait_until(lambda: not find_processes(command[1]), "the job died with its keeper")


def test_a_stopped_job_checkpoints_and_the_next_attempt_continues_from_there(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    command = train(tmp_path, 100, 0.02, gate)
    scheduler.send(launch_job=launch(job, command, GPU))
    scheduler.wait_for_observation(job, lambda item: item.steps_done >= 3)
    scheduler.send(stop_job=messages.StopJob(key=key(job), checkpoint=True, cause="preempted", grace_ms=10_000))
    first = scheduler.wait_for_exit(job)
    assert (first.exit_class, first.exit_code) == ("checkpointed", 85)
    assert first.checkpoint_step == first.steps_done >= 3
    gate.touch()
    scheduler.send(launch_job=launch(job, command, GPU, attempt=2, fence=2, granted_fences=(1,)))
    second = scheduler.wait_for_exit(job, attempt=2)
    assert (second.exit_class, second.steps_done) == ("done", 100)
    assert f"start at {first.checkpoint_step}" in second.log_tail


def test_a_checkpoint_under_a_fence_that_was_not_granted_is_not_resumed(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    command = train(tmp_path, 30, 0.02, gate)
    scheduler.send(launch_job=launch(job, command, GPU))
    scheduler.wait_for_observation(job, lambda item: item.steps_done >= 3)
    scheduler.send(stop_job=messages.StopJob(key=key(job), checkpoint=True, cause="preempted"))
    assert scheduler.wait_for_exit(job).exit_class == "checkpointed"
    gate.touch()
    scheduler.send(launch_job=launch(job, command, GPU, attempt=2, fence=2))
    second = scheduler.wait_for_exit(job, attempt=2)
    assert "start at 0" in second.log_tail


def test_a_checkpoint_can_be_asked_for_while_the_job_goes_on(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    scheduler.send(launch_job=launch(job, train(tmp_path, 100, 0.02, gate), GPU))
    scheduler.wait_for_observation(job, lambda item: item.steps_done >= 3)
    scheduler.send(checkpoint_job=messages.CheckpointJob(key=key(job)))
    observed = scheduler.wait_for_observation(job, lambda item: item.checkpoint_step >= 3)
    assert observed.steps_done < 100
    gate.touch()
    assert scheduler.wait_for_exit(job).steps_done == 100


def test_a_job_that_catches_no_signal_is_not_killed_by_a_checkpoint_request(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    script = write_script(tmp_path, "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n")
    scheduler.send(launch_job=launch(job, [sys.executable, script, str(gate)], GPU))
    scheduler.wait_for_start(job)
    scheduler.send(checkpoint_job=messages.CheckpointJob(key=key(job)))
    assert scheduler.wait_for_refusal(job).code == "CHECKPOINT_NOT_SUPPORTED"
    gate.touch()
    assert scheduler.wait_for_exit(job).exit_class == "done"


def test_a_job_that_ignores_a_stop_is_killed_with_its_helpers_after_the_grace(
    tmp_path: Path, scheduler: FakeScheduler, job: str
) -> None:
    helper = write_script(tmp_path, "import time\ntime.sleep(600)\n", "left_behind.py")
    script = write_script(
        tmp_path,
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, {helper!r}], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(600)\n",
    )
    scheduler.send(launch_job=launch(job, [sys.executable, script], GPU))
    wait_until(lambda: bool(find_processes(helper)), "the helper runs")
    scheduler.send(stop_job=messages.StopJob(key=key(job), cause="cancelled", grace_ms=300))
    exited = scheduler.wait_for_exit(job)
    assert (exited.exit_class, exited.exit_code) == ("stopped", -signal.SIGKILL)
    assert find_processes(helper) == []


def test_a_job_ends_itself_when_its_lease_is_no_longer_renewed(tmp_path: Path) -> None:
    with (
        FakeScheduler(lease_ms=4000, grace_ms=300) as scheduler,
        running_agent(tmp_path / "state", scheduler) as agent,
    ):
        scheduler.renew = False
        script = write_script(
            tmp_path, "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
        )
        scheduler.send(launch_job=launch("job-1", [sys.executable, script], GPU))
        scheduler.wait_for_start("job-1")
        agent.kill()
        exit_record = agent.state / "jobs" / "job-1.1" / "exit.json"
        wait_until(exit_record.exists, "the shim ended the job without any agent")
        assert find_processes(script) == []
        scheduler.forget()
        second = AgentProcess(agent.state, scheduler)
        assert scheduler.wait_for_hello().attempts[0].exited.exit_class == "fenced"
        second.kill()


def test_a_lease_that_is_renewed_keeps_the_job_alive(tmp_path: Path) -> None:
    with FakeScheduler(lease_ms=5000, grace_ms=300) as scheduler, running_agent(tmp_path / "state", scheduler):
        scheduler.send(launch_job=launch("job-1", train(tmp_path, 140, 0.05), GPU))
        assert scheduler.wait_for_exit("job-1").exit_class == "done"


def test_orders_may_be_repeated_and_stale_fences_are_refused(
    tmp_path: Path, shared_agent: AgentProcess, scheduler: FakeScheduler, job: str
) -> None:
    order = launch(job, train(tmp_path, 1000, 0.05), GPU, attempt=2, fence=5)
    scheduler.send(launch_job=order)
    scheduler.wait_for_start(job, attempt=2)
    scheduler.forget()
    scheduler.send(launch_job=order)
    scheduler.wait_for_start(job, attempt=2)
    scheduler.send(launch_job=launch(job, train(tmp_path, 1000, 0.05), GPU, attempt=1, fence=4))
    assert scheduler.wait_for_refusal(job).code == "STALE_FENCE"
    scheduler.wait_for_observation(job, lambda item: item.steps_done > 0)
    for _ in range(3):
        scheduler.send(stop_job=messages.StopJob(key=key(job, 2, 5), checkpoint=True, cause="cancelled"))
    exited = scheduler.wait_for_exit(job, attempt=2)
    assert exited.log_tail.count("start at") == 1
    assert [path.name for path in (shared_agent.state / "jobs").glob(f"{job}.*")] == [f"{job}.2"]


def test_an_order_about_a_name_that_no_job_has_is_refused(
    shared_agent: AgentProcess, scheduler: FakeScheduler, job: str
) -> None:
    name = f"{job}\0"
    scheduler.send(launch_job=launch(name, ["python"], GPU))
    assert scheduler.wait_for_refusal(name).code == "NODE_FAILURE"
    scheduler.send(stop_job=messages.StopJob(key=key(job)))
    assert scheduler.wait_for_refusal(job).code == "NO_SUCH_ATTEMPT"


def test_what_the_node_does_not_allow_is_refused_with_the_remedy(
    tmp_path: Path, scheduler: FakeScheduler, job: str
) -> None:
    scheduler.send(launch_job=launch(job, ["/bin/sh", "-c", "true"], GPU))
    refused = scheduler.wait_for_refusal(job)
    assert refused.code == "COMMAND_NOT_ALLOWED"
    assert "--allow-executable" in refused.message
    scheduler.send(launch_job=launch("job-2", [sys.executable], GPU, working_directory="/etc"))
    assert "--allow-directory" in scheduler.wait_for_refusal("job-2").message
    scheduler.send(launch_job=launch("job-3", [sys.executable], GPU, environment={"LD_PRELOAD": "x"}))
    assert "LD_PRELOAD" in scheduler.wait_for_refusal("job-3").message
    scheduler.send(launch_job=launch("job-4", [sys.executable], "standin-node-a-7"))
    assert scheduler.wait_for_refusal("job-4").code == "DEVICE_UNAVAILABLE"
    scheduler.send(launch_job=launch("../job-5", [sys.executable], GPU))
    assert scheduler.wait_for_refusal("../job-5").code == "INVALID_JOB_ID"


def test_a_job_over_the_devices_memory_ends_as_gpu_oom(tmp_path: Path, own_scheduler: FakeScheduler) -> None:
    script = write_script(tmp_path, "import time\nheld = b'x' * (150 << 20)\ntime.sleep(600)\n")
    with running_agent(tmp_path / "state", own_scheduler, "--standin-memory-bytes", str(100 << 20)):
        own_scheduler.send(launch_job=launch("job-1", [sys.executable, script], GPU, memory_limit_bytes=100 << 20))
        exited = own_scheduler.wait_for_exit("job-1")
        assert exited.exit_class == "gpu_oom"
        assert exited.memory_peak_bytes > 100 << 20
        assert exited.memory_available_bytes == 100 << 20
        own_scheduler.send(launch_job=launch("job-2", [sys.executable, script], GPU, memory_limit_bytes=101 << 20))
        assert own_scheduler.wait_for_refusal("job-2").code == "OVER_CAPACITY"


def test_a_log_is_followed_to_its_end_and_stays_readable(tmp_path: Path, scheduler: FakeScheduler, job: str) -> None:
    lines = 300
    script = write_script(
        tmp_path, f"import time\nfor i in range({lines}):\n    print('line', i, flush=True)\n    time.sleep(0.005)\n"
    )
    scheduler.send(launch_job=launch(job, [sys.executable, script], GPU))
    scheduler.wait_for_start(job)
    scheduler.send(read_log=messages.ReadLog(read_id="r1", key=key(job), follow=True))
    assert scheduler.read_log("r1").decode().splitlines() == [f"line {number}" for number in range(lines)]
    scheduler.wait_for_exit(job)
    scheduler.send(read_log=messages.ReadLog(read_id="r2", key=key(job), tail_bytes=9))
    assert scheduler.read_log("r2") == b"line 299\n"
    scheduler.send(read_log=messages.ReadLog(read_id="r3", key=key("nobody")))
    error = scheduler.wait_for(lambda message: message.log_chunk.error if message.log_chunk.read_id == "r3" else None)
    assert "NO_SUCH_ATTEMPT" in error


@pytest.mark.parametrize("regex", [r"step (?P<step>\d+): loss (?P<loss>[\d.]+)", ""], ids=["named", "recognised"])
def test_progress_is_read_from_the_log_of_a_script(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path, regex: str
) -> None:
    script = write_script(
        tmp_path,
        "import os, sys, time\n"
        "for step in range(1, 41):\n"
        "    time.sleep(0.03)\n"
        "    while step == 40 and not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    print(f'step {step}: loss {1 / step:.4f}')\n",
    )
    command = [sys.executable, script, str(gate)]
    scheduler.send(launch_job=launch(job, command, GPU, progress_regex=regex, steps_total=40))
    observed = scheduler.wait_for_observation(job, lambda item: item.window_steps > 0)
    gate.touch()
    assert 0 < observed.loss <= 1.0
    assert scheduler.wait_for_exit(job).steps_done == 40


def test_a_bar_that_begins_again_with_every_epoch_is_counted_to_its_last_step(
    tmp_path: Path, scheduler: FakeScheduler, job: str, gate: Path
) -> None:
    script = write_script(
        tmp_path,
        "import os, sys, time\n"
        "for epoch in range(3):\n"
        "    for step in range(21):\n"
        "        time.sleep(0.02)\n"
        "        while epoch == 2 and step == 20 and not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "        bar = f'\\rEpoch {epoch}: {5 * step}%|###  | {step}/20 [00:01<00:02, 13.5it/s, loss=0.{step}]'\n"
        "        sys.stderr.write(bar)\n"
        "    for step in range(6):\n"
        "        sys.stderr.write(f'\\rValidation: {20 * step}%|###  | {step}/5 [00:01<00:02, 13.5it/s]')\n",
    )
    regex = r"(?P<step>[0-9]+)/[0-9]+ \["
    scheduler.send(launch_job=launch(job, [sys.executable, script, str(gate)], GPU, progress_regex=regex))
    scheduler.wait_for_observation(job, lambda item: item.steps_done > 20)
    gate.touch()
    assert scheduler.wait_for_exit(job).steps_done == 60


def test_an_agent_that_leaves_lets_its_jobs_run_unless_asked_to_end_them(
    tmp_path: Path, own_scheduler: FakeScheduler
) -> None:
    command = train(tmp_path, 1000, 0.05)
    with running_agent(tmp_path / "kept", own_scheduler) as agent:
        own_scheduler.send(launch_job=launch("job-1", command, GPU))
        own_scheduler.wait_for_start("job-1")
        assert agent.terminate() == 0
        assert find_processes(command[1])
        end_jobs(agent.state)
    own_scheduler.forget()
    with running_agent(tmp_path / "ended", own_scheduler, "--stop-jobs-on-exit") as agent:
        own_scheduler.send(launch_job=launch("job-2", command, GPU))
        own_scheduler.wait_for_start("job-2")
        assert agent.terminate() == 0
        assert json.loads((agent.state / "jobs" / "job-2.1" / "exit.json").read_text())["cause"] == "agent_exit"
        # Whether it has come as far as its handler of signals is chance.
        assert own_scheduler.wait_for_exit("job-2").exit_class in ("stopped", "checkpointed")


def test_an_agent_returns_to_a_scheduler_that_was_away(
    tmp_path: Path, own_agent: AgentProcess, own_scheduler: FakeScheduler, gate: Path
) -> None:
    own_scheduler.send(launch_job=launch("job-1", train(tmp_path, 30, 0.02, gate), GPU))
    own_scheduler.wait_for_start("job-1")
    own_scheduler.stop()
    own_scheduler.forget()
    own_scheduler.start()
    own_scheduler.wait_for_hello()
    gate.touch()
    assert own_scheduler.wait_for_exit("job-1").steps_done == 30
    assert own_agent.output().count("welcomed") == 2


def test_two_agents_never_share_a_state_directory(shared_agent: AgentProcess, scheduler: FakeScheduler) -> None:
    second = AgentProcess(shared_agent.state, scheduler)
    wait_until(lambda: "another agent uses" in second.output(), "the second agent says why it leaves")
    assert second.wait() == 1

"""What an agent enforces on jobs: host memory, user, one co-located job's memory; and twenty jobs at once."""

from __future__ import annotations

import os
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
    find_processes,
    open_folder,
    running_agent,
    wait_until,
    write_script,
)
from tests.support.fake_scheduler import FakeScheduler, key, launch


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


def test_a_job_over_its_host_memory_ends_as_host_oom(tmp_path: Path, scheduler: FakeScheduler) -> None:
    node = "node-memory"  # of no other test, which might make and remove groups meanwhile
    left_by_others = set(_node_groups(node))
    with running_agent(tmp_path / "state", scheduler, "--cgroups", "--node-id", node) as agent:
        if "cgroup_memory" not in scheduler.wait_for_hello().enforcements:
            pytest.skip("this machine does not let the tests limit host memory by control groups")
        script = write_script(tmp_path, "held = bytearray(b'x') * (300 << 20)\nprint(len(held))\n")
        command = [sys.executable, script]
        scheduler.send(launch_job=launch("job-1", command, f"standin-{node}-0", host_memory_bytes=64 << 20))
        exited = scheduler.wait_for_exit("job-1")
        assert (exited.exit_class, exited.exit_code) == ("host_oom", -9)
        assert agent.terminate() == 0
        assert set(_node_groups(node)) <= left_by_others


def test_agents_of_one_node_name_in_two_clusters_do_not_end_each_others_jobs(
    tmp_path: Path, scheduler: FakeScheduler
) -> None:
    script = [sys.executable, write_script(tmp_path, TRAINING)]
    with (
        FakeScheduler() as other,
        running_agent(tmp_path / "state", scheduler, "--cgroups"),
        running_agent(tmp_path / "other", other, "--cgroups"),
    ):
        if "cgroup_kill" not in scheduler.wait_for_hello().enforcements:
            pytest.skip("this machine does not let the tests make version-2 control groups")
        scheduler.send(launch_job=launch("job-1", [*script, "60", "0.05"], GPU))
        scheduler.wait_for_start("job-1")
        other.send(launch_job=launch("job-1", [*script, "5", "0.05"], GPU))
        assert other.wait_for_exit("job-1").exit_class == "done"
        exited = scheduler.wait_for_exit("job-1")
        assert (exited.exit_class, exited.steps_done) == ("done", 60)


def _node_groups(node: str) -> Iterator[Path]:
    """Control groups of agents with this name; one that a killed run left behind is not this run's."""
    return Path("/sys/fs/cgroup").glob(f"**/cotenant-{node}-*")


def test_of_two_jobs_on_one_device_the_one_that_takes_the_others_memory_ends(
    tmp_path: Path, scheduler: FakeScheduler
) -> None:
    greedy = write_script(tmp_path, "import time\nheld = b'x' * (80 << 20)\ntime.sleep(600)\n")
    gate = tmp_path / "may end"
    modest = [sys.executable, write_script(tmp_path, TRAINING, "train.py"), "20", "0.1", str(gate)]
    with running_agent(tmp_path / "state", scheduler, "--standin-memory-bytes", str(260 << 20)):
        scheduler.send(launch_job=launch("modest", modest, GPU, memory_limit_bytes=200 << 20))
        scheduler.wait_for_start("modest")
        scheduler.send(launch_job=launch("greedy", [sys.executable, greedy], GPU, memory_limit_bytes=40 << 20))
        exited = scheduler.wait_for_exit("greedy")
        assert exited.exit_class == "gpu_oom"
        assert "modest" in exited.detail
        gate.touch()
        assert scheduler.wait_for_exit("modest").exit_class == "done"


def test_jobs_run_as_the_unprivileged_user_when_there_is_one(scheduler: FakeScheduler) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    flags = ("--job-user", "65534", "--allow-executable", "/bin/sh")
    with open_folder() as folder, running_agent(folder / "state", scheduler, *flags):
        program = 'id -u; cat "$0"; echo kept > "$COTENANT_CHECKPOINT_DIR/x" && echo written'
        spec = str(folder / "state" / "jobs" / "job-1.1" / "spec.json")
        scheduler.send(launch_job=launch("job-1", ["/bin/sh", "-c", program, spec], GPU))
        exited = scheduler.wait_for_exit("job-1")
        assert exited.log_tail.splitlines()[0] == "65534"
        is_hidden = "hidden_state" in scheduler.wait_for_hello().enforcements
        assert ("No such file" if is_hidden else "Permission denied") in exited.log_tail
        assert exited.log_tail.splitlines()[-1] == "written"


def test_tenants_do_not_read_each_others_files(scheduler: FakeScheduler) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    flags = ("--job-users", "700000-700009", "--no-namespaces", "--allow-executable", "/bin/sh")
    with open_folder() as folder, running_agent(folder / "state", scheduler, *flags):
        secret = folder / "state" / "checkpoints" / "first" / "1" / "secret"
        for name, program in (
            ("first", f"id -u; echo $USER; umask 0; echo mine > {secret} && cat {secret}"),
            ("second", f"id -u; cat {secret} {secret.parents[3]}/run/first.1/progress.json"),
        ):
            order = launch(name, ["/bin/sh", "-c", program], GPU)
            order.spec.tenant = name
            scheduler.send(launch_job=order)
            scheduler.wait_for_exit(name)
        tails = {name: scheduler.wait_for_exit(name).log_tail.splitlines() for name in ("first", "second")}
        assert tails["first"] == ["700000", "job-700000", "mine"]
        assert tails["second"][0] == "700001"
        assert [line.rpartition(": ")[2] for line in tails["second"][1:]] == ["Permission denied"] * 2


@pytest.mark.parametrize("flag", ["--no-cgroups", "--cgroups"])
def test_a_cancelled_launcher_leaves_the_checkpoint_of_its_child(
    tmp_path: Path, scheduler: FakeScheduler, flag: str
) -> None:
    source = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True).wait()\n"
    )
    launcher, training = write_script(tmp_path, source), write_script(tmp_path, TRAINING, "train.py")
    command = [sys.executable, launcher, training, "1000", "0.05"]
    with running_agent(tmp_path / "state", scheduler, flag):
        scheduler.send(launch_job=launch("job-1", command, GPU))
        scheduler.wait_for_observation("job-1", lambda item: item.steps_done > 0)
        scheduler.send(stop_job=messages.StopJob(key=key("job-1"), cause="cancelled"))
        exited = scheduler.wait_for_exit("job-1")
        assert (exited.exit_class, exited.exit_code) == ("stopped", -signal.SIGTERM)
        assert exited.checkpoint_step > 0
        wait_until(lambda: not find_processes(training), "the child has ended")


FORGER = """
import os, pathlib, sys, time
jobs = pathlib.Path(sys.argv[1])
for path, content in (
    (jobs / "victim.1" / "exit.json", '{"return_code": 0, "cause": ""}'),
    (jobs / "victim.1" / "stop.json", '{"cause": "forged", "grace_ms": 0}'),
    (jobs / "forger.1" / "lease.json", '{"deadline_boot_ms": 9000000000000000, "grace_ms": 0}'),
):
    try:
        path.write_text(content)
        print("wrote", path.name)
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("flag", ["--namespaces", "--no-namespaces"])
def test_a_job_of_the_agents_user_forges_neither_anothers_end_nor_its_stop(
    tmp_path: Path, scheduler: FakeScheduler, flag: str
) -> None:
    forger, training = write_script(tmp_path, FORGER, "forger.py"), write_script(tmp_path, TRAINING, "train.py")
    gate = tmp_path / "may end"
    with running_agent(tmp_path / "state", scheduler, flag) as agent:
        can_write = "sealed_files" in scheduler.wait_for_hello().enforcements
        scheduler.send(launch_job=launch("victim", [sys.executable, training, "20", "0.05", str(gate)], GPU))
        scheduler.wait_for_observation("victim", lambda item: item.steps_done > 0)
        scheduler.send(launch_job=launch("forger", [sys.executable, forger, str(agent.state / "jobs")], GPU))
        assert ("wrote exit.json" in scheduler.wait_for_exit("forger").log_tail) == can_write
        gate.touch()
        exited = scheduler.wait_for_exit("victim")
        assert (exited.exit_class, exited.steps_done) == ("done", 20)
        assert ('"record_refused"' in agent.output()) == can_write


def test_twenty_jobs_survive_their_agent_and_all_report_their_steps(tmp_path: Path, scheduler: FakeScheduler) -> None:
    command = [sys.executable, "-S", write_script(tmp_path, TRAINING.replace("from cotenant import job", "import job"))]
    (tmp_path / "job.py").write_text((Path(__file__).parents[2] / "cotenant" / "job.py").read_text())
    gate = tmp_path / "may end"
    with running_agent(tmp_path / "state", scheduler) as agent:
        for number in range(20):
            scheduler.send(launch_job=launch(f"job-{number}", [*command, "20", "0.02", str(gate)], GPU))
        for number in range(20):
            scheduler.wait_for_start(f"job-{number}")
        agent.kill()
        scheduler.forget()
        second = AgentProcess(agent.state, scheduler)
        assert len(scheduler.wait_for_hello().attempts) == 20
        gate.touch()
        for number in range(20):
            exited = scheduler.wait_for_exit(f"job-{number}")
            assert (exited.exit_class, exited.steps_done) == ("done", 20)
        wait_until(lambda: len(list((agent.state / "jobs").glob("*/stored"))) == 20, "all ends are stored")
        scheduler.send(
            read_log=messages.ReadLog(read_id="r", key=messages.AttemptKey(job_id="job-7", attempt=1, fence=1))
        )
        assert b"end at 20" in scheduler.read_log("r")
        second.kill()


def test_an_agent_measures_the_states_of_a_job_that_releases_memory(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """100 MiB for a third of the time on top of 20 MiB: what the processes hold besides is in the low state."""
    source = (
        "import time\nfrom cotenant import job\n"
        "began, held = time.monotonic(), bytearray(b'x') * (100 << 20)\n"
        "job.watch_memory(lambda: (120 if (time.monotonic() - began) % 0.6 < 0.2 else 20) << 20)\n"
        "job.report(1)\ntime.sleep(600)\n"
    )
    command = [sys.executable, write_script(tmp_path, source)]
    with running_agent(tmp_path / "state", scheduler):
        scheduler.send(launch_job=launch("job-1", command, GPU))
        found = scheduler.wait_for_observation("job-1", lambda one: one.HasField("memory_states"))
        states = found.memory_states
        assert states.extra_bytes == 100 << 20
        assert states.low_bytes >= 20 << 20
        assert 0.2 < states.high_state_ratio < 0.5
        assert states.low_bytes <= found.allocated_bytes <= states.low_bytes + states.extra_bytes
        assert found.steps_done == 1


def test_a_full_disk_costs_neither_the_agent_nor_its_jobs(tmp_path: Path) -> None:
    with (
        FakeScheduler(lease_ms=3000, grace_ms=300) as scheduler,
        running_agent(tmp_path / "state", scheduler) as agent,
    ):
        scheduler.send(
            launch_job=launch("job-1", [sys.executable, write_script(tmp_path, TRAINING), "90", "0.05"], GPU)
        )
        scheduler.wait_for_start("job-1")
        attempt = agent.state / "jobs" / "job-1.1"
        # A folder in the place of a temporary file refuses every write, as a full disk does.
        obstacles = [attempt / f".{name}.{agent.pid}" for name in ("lease.json", "observed.json", "stored")]
        for obstacle in obstacles:
            obstacle.mkdir()
        assert scheduler.wait_for_exit("job-1").exit_class == "done"
        scheduler.forget()
        assert scheduler.wait_for_exit("job-1").exit_class == "done", (
            "reported again while its storing is not written down"
        )
        assert agent.is_alive()
        for obstacle in obstacles:
            obstacle.rmdir()
        wait_until((attempt / "stored").exists, "the agent writes down that the end is stored")

"""A real agent that lets any command run: shells, scripts, another PATH; and one that must not be started so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2 as messages
from cotenant.v1 import scheduling_pb2
from tests.support.agent import GPU, AgentProcess, running_agent
from tests.support.fake_scheduler import FakeScheduler


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with FakeScheduler() as made:
        yield made


def launch(job_id: str, *command: str, **spec: Any) -> messages.LaunchJob:
    return messages.LaunchJob(
        key=messages.AttemptKey(job_id=job_id, attempt=1, fence=1),
        spec=scheduling_pb2.JobSpec(command=command, **spec),
        assignments=[scheduling_pb2.Assignment(gpu_id=GPU)],
    )


def ended(scheduler: FakeScheduler, order: messages.LaunchJob) -> str:
    """Runs a job to its successful end and returns what it printed."""
    scheduler.send(launch_job=order)
    exited = scheduler.wait_for_exit(order.key.job_id)
    assert exited.exit_class == "done", exited
    return exited.log_tail


def test_shells_scripts_and_other_environments_run_and_what_cannot_start_is_refused(
    tmp_path: Path, scheduler: FakeScheduler
) -> None:
    work = tmp_path / "work"
    (work / "venv").mkdir(parents=True)
    (work / "venv" / "python").symlink_to(sys.executable)
    (work / "run.sh").write_text("#!/bin/sh\necho here $FOO in $(pwd) with $(command -v python)\n")
    (work / "run.sh").chmod(0o755)
    (work / "plain.sh").write_text("echo never\n")
    here = {"working_directory": str(work)}
    with running_agent(tmp_path / "state", scheduler, "--allow-any-command"):
        assert scheduler.wait_for_hello().launch_rules.any_command
        path = f"{work / 'venv'}:{os.environ['PATH']}"
        order = launch("script", "./run.sh", environment={"FOO": "bar", "PATH": path}, **here)
        assert ended(scheduler, order) == f"here bar in {work} with {work}/venv/python\n"
        assert ended(scheduler, launch("shell", "bash", "-c", "echo $HOME", **here)) == f"{os.environ['HOME']}\n"
        own = launch("own", "python", "-c", "import sys; print(sys.executable)", environment={"PATH": path}, **here)
        assert ended(scheduler, own) == f"{work}/venv/python\n"
        threads = launch("threads", "sh", "-c", "echo $OMP_NUM_THREADS", environment={"OMP_NUM_THREADS": "7"}, **here)
        assert ended(scheduler, threads).splitlines()[-1] == "1"
        for name, finding in (("plain.sh", "not executable"), ("absent.sh", "cannot be found")):
            scheduler.send(launch_job=launch(name, f"./{name}", **here))
            refused = scheduler.wait_for_refusal(name)
            assert (refused.code, finding in refused.message) == ("COMMAND_NOT_RUNNABLE", True), refused
        scheduler.send(launch_job=launch("elsewhere", "sh", working_directory="/etc"))
        assert scheduler.wait_for_refusal("elsewhere").code == "COMMAND_NOT_ALLOWED"


def test_an_agent_of_a_scheduler_elsewhere_does_not_start_with_it(tmp_path: Path) -> None:
    class Elsewhere:
        address = "192.0.2.1:7071"

    agent = AgentProcess(tmp_path / "state", Elsewhere(), "--allow-any-command", "--insecure")
    assert agent.wait() == 2
    assert "--allow-any-command is for a scheduler on this machine" in agent.output()

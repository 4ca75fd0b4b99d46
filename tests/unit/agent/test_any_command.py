"""A node whose owner lets any command run: what is found where, what is refused at once, what stays the node's own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.client_errors import InputError
from cotenant_agent import wiring
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.launching import JobRules, Launcher
from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.other_baselines import OtherBaselines
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.allow_list import AllowList, load_allow_list
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.leases import Lease
from cotenant_agent.protocol import rules_to_message
from cotenant_agent.records import AttemptKey, LaunchRequest
from cotenant_agent.scheduler_link import LinkSettings, open_channel
from cotenant_agent.settings import SETTINGS, AgentSettings
from cotenant_agent.storage.durable_files import read_json
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory
from tests.support.cases import for_each
from tests.support.fake_devices import FakeInventory, FakeProcesses

OWNERS = AllowList(executables=(sys.executable,), directories=(), any_command=True)
LOCAL = ("127.0.0.1:7071", "127.9.9.9:1", "localhost:7071", "[::1]:7071", "unix:/run/cotenant.sock")
ELSEWHERE = (
    "10.0.0.1:7071", "0.0.0.0:7071", "[::]:7071", "example.org:7071", "127.0.0.1.example.org:7071", "localhost.evil:1",
    "dns:///localhost:7071", "ipv4:127.0.0.1:1,10.0.0.1:1",
)  # fmt: skip


def program(path: Path, content: bytes = b"#!/bin/sh\n", mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@for_each("scheduler", LOCAL)
def test_a_scheduler_on_this_machine_may_have_any_command_run(scheduler: str) -> None:
    flags = {"state_dir": "/x", "nvml": True, "allow_any_command": True, "scheduler": scheduler}
    assert SETTINGS.load(flags, {}).allow_any_command


@for_each("scheduler", ELSEWHERE)
@for_each("trust", [{"insecure": True}, {"tls_ca_file": "ca.pem"}])
def test_a_scheduler_elsewhere_may_not_however_much_it_is_trusted(scheduler: str, trust: dict[str, object]) -> None:
    flags = {"state_dir": "/x", "nvml": True, "scheduler": scheduler, **trust}
    assert not SETTINGS.load(flags, {}).allow_any_command
    with pytest.raises(InputError) as refused:
        SETTINGS.load(flags, {"COTENANT_AGENT_ALLOW_ANY_COMMAND": "1"})
    assert "--allow-executable" in refused.value.remedy


@pytest.mark.parametrize(("scheduler", "is_direct"), [("127.0.0.1:7071", True), ("10.0.0.1:7071", False)])
def test_no_proxy_stands_before_a_scheduler_on_this_machine(
    scheduler: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr("grpc.aio.insecure_channel", lambda target, options, interceptors: seen.extend(options))
    open_channel(LinkSettings(scheduler=scheduler, insecure=True))
    assert (("grpc.enable_http_proxy", 0) in seen) is is_direct


def test_an_owners_node_runs_a_shell_another_python_and_a_script_of_the_working_directory(tmp_path: Path) -> None:
    other, script = program(tmp_path / "venv" / "bin" / "python"), program(tmp_path / "work" / "run.sh")
    assert OWNERS.resolve_executable("/bin/sh") == "/bin/sh"
    assert OWNERS.resolve_executable(other) == other
    assert OWNERS.resolve_executable("./run.sh", working_directory=str(tmp_path / "work")) == script
    assert OWNERS.resolve_executable("../work/run.sh", working_directory=str(tmp_path / "work")).endswith("run.sh")


def test_a_link_to_a_python_stays_the_link_that_makes_its_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert OWNERS.resolve_executable(str(tmp_path / "bin/python")) == str(tmp_path / "bin/python")


def test_a_bare_name_is_looked_for_on_the_jobs_own_path_else_among_the_listed_else_on_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, agents = program(tmp_path / "own" / "python"), program(tmp_path / "agents" / "torchrun")
    program(tmp_path / "agents" / "python")
    monkeypatch.setenv("PATH", str(tmp_path / "agents"))
    assert OWNERS.resolve_executable("python", search_path=f"/absent:{tmp_path / 'own'}") == own
    assert Path(OWNERS.resolve_executable("python")).samefile(sys.executable)
    assert OWNERS.resolve_executable("torchrun") == agents
    with pytest.raises(CommandRefusedError, match="--env PATH="):
        OWNERS.resolve_executable("torchrun", search_path=str(tmp_path / "own"))


def test_a_relative_path_of_a_listed_program_starts_at_the_working_directory_too(tmp_path: Path) -> None:
    script = program(tmp_path / "run.sh")
    listed = AllowList(executables=(script,), directories=())
    assert listed.resolve_executable("./run.sh", working_directory=str(tmp_path)) == script
    with pytest.raises(CommandRefusedError, match="COMMAND_NOT_ALLOWED"):
        listed.resolve_executable("./run.sh", working_directory="/tmp")


@pytest.mark.parametrize(
    ("content", "mode", "finding"),
    [
        (b"#!/bin/sh\n", 0o644, r"not executable.*chmod \+x"),
        (b"#!/absent/bash\n", 0o755, "interpreter /absent/bash"),
        (b"#!/bin/sh\r\necho\r\n", 0o755, "dos2unix"),
        (b"#!/usr/bin/env absent-python -u\n", 0o755, "absent-python"),
        (b"#!/usr/bin/env -S absent-python -u\n", 0o755, "absent-python"),
        (b"#!\n", 0o755, "names no interpreter"),
        (b"echo hello\n", 0o755, "without a #! line"),
        (b"", 0o755, "without a #! line"),
    ],
)
def test_a_script_that_cannot_start_is_refused_with_what_is_wrong(
    content: bytes, mode: int, finding: str, tmp_path: Path
) -> None:
    program(tmp_path / "run.sh", content, mode)
    with pytest.raises(CommandRefusedError, match=f"COMMAND_NOT_RUNNABLE.*{finding}"):
        OWNERS.resolve_executable("./run.sh", working_directory=str(tmp_path))


def test_what_is_no_file_is_refused_and_keeps_no_client_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o755)
    for name, finding in (("pipe", "not a file"), (".", "not a file"), ("absent", "cannot be found")):
        with pytest.raises(CommandRefusedError, match=finding):
            OWNERS.resolve_executable(f"./{name}", working_directory=str(tmp_path))


def test_directories_stay_listed_and_the_remedy_is_a_flag_of_up(tmp_path: Path) -> None:
    with pytest.raises(CommandRefusedError) as caught:
        OWNERS.resolve_directory(str(tmp_path))
    assert "--allow-directory" in caught.value.message
    assert "--allow-file" not in caught.value.message


def test_any_variable_may_be_set_but_the_agents_own() -> None:
    OWNERS.check_environment({"OMP_NUM_THREADS": "1", "LD_PRELOAD": "x", "FOO": "y"})
    for allowed in (OWNERS, AllowList(executables=(), directories=(), environment=("*",))):
        with pytest.raises(CommandRefusedError, match="COTENANT_GPU_MEMORY_FRACTION"):
            allowed.check_environment({"COTENANT_GPU_MEMORY_FRACTION": "1"})


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    directory = StateDirectory(tmp_path / "state")
    yield Launcher(
        directory=directory,
        processes=FakeProcesses(),
        inventory=FakeInventory(["gpu-0"]),
        groups=ControlGroups(),
        allow_list=OWNERS,
        rules=JobRules(),
    )
    directory.close()


def launch(launcher: Launcher, **environment: str) -> Attempt:
    key = AttemptKey(job_id="job-1", attempt=1, fence=1)
    request = LaunchRequest(key=key, command=(sys.executable,), gpu_ids=("gpu-0",), environment=environment)
    return launcher.launch(request, None, (), Lease(1_000, 1_000))


def test_the_nodes_choice_of_devices_wins_and_the_jobs_log_says_so(launcher: Launcher) -> None:
    attempt = launch(launcher, FAKE_DEVICES="0,1,2", FOO="1")
    environment = (read_json(attempt.directory.spec) or {})["environment"]
    assert isinstance(environment, dict)
    assert (environment["FAKE_DEVICES"], environment["FOO"]) == ("gpu-0", "1")
    assert attempt.directory.log.read_text() == (
        "cotenant: this node sets FAKE_DEVICES; the values that were submitted are ignored\n"
    )


def test_a_job_of_the_owner_finds_the_owners_home(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/owner")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    attempt = launch(launcher)
    environment = (read_json(attempt.directory.spec) or {})["environment"]
    assert isinstance(environment, dict)
    assert environment["HOME"] == "/home/owner"
    assert "SECRET_TOKEN" not in environment
    assert not attempt.directory.log.exists()


def test_a_node_says_what_it_runs_under_every_name_that_it_takes(tmp_path: Path) -> None:
    allowed = program(tmp_path / "bin" / "python3.11")
    (tmp_path / "bin" / "python").symlink_to(allowed)
    program(tmp_path / "bin" / "pip")
    (tmp_path / "link").symlink_to(tmp_path / "bin")
    listed = load_allow_list(None, (allowed,), (str(tmp_path / "link"),), ("FOO",))
    rules = rules_to_message(listed)
    assert rules is not None
    assert {path for path in rules.executables if path.startswith(str(tmp_path))} == {
        allowed, str(tmp_path / "bin/python"),
    }  # fmt: skip
    assert list(rules.directories) == [str(tmp_path / "link"), str(tmp_path / "bin")]
    assert "FOO" in rules.environment_patterns
    assert not rules.any_command
    assert rules_to_message(AllowList(executables=("/x",), directories=("/y",) * 2_000)) is None


@pytest.mark.parametrize(("terms", "interpreter"), [({}, "/env/bin/python"), ({"uid": 1_001, "gid": 1_001}, "")])
def test_the_interpreter_of_a_job_is_named_only_where_it_runs_as_the_agents_user(
    tmp_path: Path, terms: dict[str, object], interpreter: str
) -> None:
    """Whoever is named is run by the agent, to measure its import."""
    spec = {"job_id": "job", "attempt": 1, "fence": 1, "argv": ["/env/bin/python", "train.py"], **terms}
    attempt = Attempt(AttemptDirectory(tmp_path / "job.1"), spec, tmp_path, tmp_path)
    assert attempt.interpreter == interpreter


@pytest.mark.parametrize("allow_any_command", [True, False])
def test_what_jobs_may_write_is_run_beside_them_only_where_any_command_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow_any_command: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(wiring, "measure_baseline", lambda _: NO_BASELINE)
    monkeypatch.setattr(OtherBaselines, "of", lambda _, executable: asked.append(executable))
    settings = AgentSettings(standin_cores=(0,), allow_any_command=allow_any_command)
    with contextlib.ExitStack() as stack:
        wiring._build_inventory(settings, tmp_path, FakeProcesses(), stack).peak_bytes(1, "/env/bin/python")
    assert asked == ["/env/bin/python"] * allow_any_command

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cotenant_agent.errors import CommandRefusedError, SettingsError
from cotenant_agent.isolation.allow_list import AllowList, load_allow_list
from tests.support.cases import for_each


def test_without_a_file_only_this_interpreter_and_the_flags_are_allowed() -> None:
    allowed = load_allow_list(None, ("/bin/sh",), (), ())
    assert allowed.resolve_executable(sys.executable) == sys.executable
    assert allowed.resolve_executable("sh") == "/bin/sh"
    with pytest.raises(CommandRefusedError, match="/bin/cat"):
        allowed.resolve_executable("/bin/cat")


def test_another_name_of_the_same_interpreter_is_the_same_program(tmp_path: Path) -> None:
    program = tmp_path / "python3.11"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "python").symlink_to(program)
    allowed = AllowList(executables=(str(program),), directories=())
    assert allowed.resolve_executable("python") == str(program)
    assert allowed.resolve_executable(str(tmp_path / "python")) == str(tmp_path / "python")


def test_a_path_cannot_climb_to_another_program() -> None:
    allowed = AllowList(executables=("/bin/sh",), directories=())
    with pytest.raises(CommandRefusedError):
        allowed.resolve_executable("/bin/sh/../cat")
    with pytest.raises(CommandRefusedError):
        allowed.resolve_executable("../bin/cat")


def test_a_link_does_not_lead_out_of_an_allowed_directory(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "way_out").symlink_to(outside)
    (inside / "sub").mkdir()
    allowed = AllowList(executables=(), directories=(str(inside),))
    assert allowed.resolve_directory(str(inside / "sub")) == str((inside / "sub").resolve())
    for path in (inside / "way_out", inside / ".." / "outside", tmp_path / "absent"):
        with pytest.raises(CommandRefusedError, match="--allow-directory"):
            allowed.resolve_directory(str(path))
    with pytest.raises(CommandRefusedError, match="absent' is not there"):
        allowed.resolve_directory(str(inside / "absent"))
    with pytest.raises(CommandRefusedError):
        allowed.resolve_directory("sub")


def test_the_environment_is_allowed_by_pattern() -> None:
    allowed = AllowList(executables=(), directories=(), environment=("WANDB_*", "SEED"))
    allowed.check_environment({"WANDB_MODE": "offline", "SEED": "1"})
    with pytest.raises(CommandRefusedError, match="LD_PRELOAD, PYTHONPATH"):
        allowed.check_environment({"LD_PRELOAD": "x", "PYTHONPATH": "y", "SEED": "1"})


@for_each(
    "variable",
    [
        ("NCCL_NET_PLUGIN", "/data/libmine.so"),
        ("NCCL_TUNER_PLUGIN", "../libmine.so"),
        ("NCCL_PROFILER_PLUGIN", "/x"),
        ("NCCL_CONF_FILE", "mine.conf"),
        ("TORCH_EXTENSIONS_DIR", "mine"),
        ("TORCH_CUPTI_MONITOR_LIBCUPTI_PATH", "/x"),
    ],
)
def test_a_variable_that_loads_code_from_a_path_is_refused_unless_the_owner_names_it(variable: tuple[str, str]) -> None:
    with pytest.raises(CommandRefusedError, match=f"{variable[0]} load code.*--allow-environment"):
        load_allow_list(None, (), (), ("NCCL_*", "TORCH_*")).check_environment(dict([variable]))
    load_allow_list(None, (), (), (variable[0],)).check_environment(dict([variable]))
    load_allow_list(None, (), (), (), any_command=True).check_environment(dict([variable]))


def test_a_plugin_that_the_node_has_may_be_chosen_by_its_name() -> None:
    chosen = {"NCCL_NET_PLUGIN": "none", "NCCL_TUNER_PLUGIN": "ofi", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "+dynamo"}
    load_allow_list(None, (), (), ()).check_environment(chosen)


def test_the_nodes_file_replaces_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "allow.toml"
    file.write_text('executables = ["/bin/sh"]\ndirectories = ["/srv"]\n')
    file.chmod(0o644)
    allowed = load_allow_list(file, (), (), ("EXTRA",))
    assert allowed.executables == ("/bin/sh",)
    assert "EXTRA" in allowed.environment
    with pytest.raises(CommandRefusedError):
        allowed.resolve_executable(sys.executable)


@pytest.mark.parametrize("content", ["executables = 3", "executable = []", "not toml"])
def test_a_malformed_file_stops_the_agent(tmp_path: Path, content: str) -> None:
    file = tmp_path / "allow.toml"
    file.write_text(content)
    file.chmod(0o644)
    with pytest.raises(SettingsError):
        load_allow_list(file, (), (), ())


def test_a_file_that_others_may_change_stops_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "allow.toml"
    file.write_text("")
    file.chmod(0o666)
    with pytest.raises(SettingsError, match="chmod"):
        load_allow_list(file, (), (), ())

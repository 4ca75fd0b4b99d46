"""Streams that are full, closed or without UTF-8, and arguments that no terminal should hand over."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from google.rpc import code_pb2  # type: ignore[import-untyped]

from cotenant.cli import program_commands
from cotenant.cli.main import run
from cotenant.cli.session import output_width, tell
from cotenant.cli.settings import Settings
from cotenant.cli.up_command import export_lines, parse_cores
from cotenant.client_errors import InputError
from cotenant.local_cluster import LocalCluster, Program
from cotenant.v1 import resources_pb2
from tests.support.cases import for_each, sampled
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = [sys.executable, "-c", "from cotenant.cli.main import main; main()"]
ANY_PORTS = ("--predictor-port", "0", "--scheduler-port", "0")


def test_nothing_that_a_job_or_a_node_wrote_steers_the_terminal(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    hostile = "\x1b[2J\x07\x9b31m\u202egnp"
    for job in scheduler.jobs.values():
        job.reason.message, job.spec.name = f"ended: {hostile}", hostile
    scheduler.nodes[0].enforcements.append(hostile)
    scheduler.standstill.append(resources_pb2.Warning(code="UNKNOWN_ATTEMPT", message=hostile))
    for verb in (("ps",), ("explain", "job-000003"), ("nodes",), ("gpus",), ("doctor",)):
        found = cotenant(*verb)
        said = found.out + found.err
        assert [name for name in hostile if name in said and not name.isprintable()] == [], verb
    assert "\ufffd[2J" in cotenant("nodes").out
    scheduler.refusals["ReadJobLog"] = (code_pb2.FAILED_PRECONDITION, f"its node refused: {hostile}", "X", "")
    assert "its node refused: \ufffd[2J" in cotenant("logs", "job-000003").err


def test_a_full_disk_under_stdout_is_one_line_and_exit_one() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "config", "view"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device; free some space\n")


@pytest.mark.parametrize("columns", ["", "0"])
def test_a_terminal_that_does_not_know_its_width_has_eighty_columns(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    master, slave = os.openpty()
    with open(master, "rb"), open(slave, "w", encoding="utf-8") as terminal:  # noqa: PTH123
        assert os.get_terminal_size(terminal.fileno()).columns == 0
        monkeypatch.setattr(sys, "stdout", terminal)
        width = output_width()
        monkeypatch.undo()
    assert width == 80


def test_on_a_terminal_no_word_of_a_message_is_cut_by_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with open(master, "rb"), open(slave, "w", encoding="utf-8") as terminal:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", terminal)
        tell("error: the job asks for more than any device has\n  remedy: ask for less, or name others\nend")
        monkeypatch.undo()
        terminal.flush()
        shown = os.read(master, 4096).decode()
    assert shown.splitlines() == [
        "error: the job asks for",
        "    more than any device has",
        "  remedy: ask for less, or",
        "      name others",
        "end",
    ]


def test_in_a_file_a_message_stays_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    tell("error: the job asks for more than any device has")
    assert capsys.readouterr().err == "error: the job asks for more than any device has\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_cannot_grow_is_noticed(unbuffered: str, tmp_path: Path) -> None:
    half = tmp_path / "half.txt"
    line = f"ulimit -f 1; exec {shlex.join(COMMAND)} --help > {shlex.quote(str(half))}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", line], env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert half.stat().st_size == 1024
    assert (done.returncode, done.stderr) == (1, "error: File too large; raise the limit of file sizes (ulimit -f)\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [*COMMAND, "config", "view"], stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_utf_8_gets_a_question_mark(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COTENANT_DEVICE": "caf\u00e9"}
    done = subprocess.run([*COMMAND, "config", "view"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf?" in done.stdout


@pytest.mark.parametrize("name", sampled(["COLUMNS", "LINES"], 1))
@for_each("size", ["\u00b2", "80x", "-1", ""])
@for_each("words", ["ps --scheduler 127.0.0.1:1", "config view"])
def test_a_size_of_the_terminal_that_is_none_is_ignored(words: str, size: str, name: str) -> None:
    environment = {**os.environ, name: size, "COTENANT_TIMEOUT_S": "0.1"}
    done = subprocess.run([*COMMAND, *words.split()], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (5 if words.startswith("ps") else 0)
    assert "Traceback" not in done.stderr


def test_an_argument_that_is_no_text_is_named(cotenant: CommandLine) -> None:
    outcome = cotenant("describe", "\udcff", "--scheduler", "127.0.0.1:1")
    assert (outcome.code, outcome.err) == (2, "error: '\\udcff' is not UTF-8; write it anew\n")


def test_a_verb_of_another_program_is_that_program(cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReplacedError(Exception):
        """Instead of this process going away."""

    def replace_process(path: str, command: list[str]) -> None:
        raise ReplacedError(path, *command)

    monkeypatch.setattr(os, "execv", replace_process)
    with pytest.raises(ReplacedError) as caught:
        cotenant("simulate", "trace.csv", "--seed", "3")
    program = ("-m", "cotenant_simulator", "simulate", "trace.csv", "--seed", "3")
    assert caught.value.args == (sys.executable, sys.executable, *program)
    assert os.environ["COTENANT_SHOWN_AS"] == "cotenant"


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        ("simulate", "Usage: cotenant simulate [OPTIONS] TRACE"),
        ("profile", "Usage: cotenant profile [OPTIONS] COMMAND"),
    ],
)
def test_a_verb_of_another_program_is_called_as_it_was(verb: str, usage: str) -> None:
    done = subprocess.run([*COMMAND, verb, "--help"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(usage)


def test_a_misspelt_verb_is_answered_with_the_nearest(cotenant: CommandLine) -> None:
    assert "No such command 'submitt'; did you mean 'submit'?" in cotenant("submitt").err
    assert "No such command 'xyz'." in cotenant("xyz").err


def test_a_program_finds_its_state_where_the_settings_say(
    cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The configuration file is the command line's own; backup, models and retrain have to learn of it."""
    found: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, command: found.append(os.environ["COTENANT_STATE_DIR"]))
    monkeypatch.delenv("COTENANT_STATE_DIR")
    config = tmp_path / "config" / "cotenant" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'state_dir = "{tmp_path}/kept"\n')
    for verb in ("backup", "export-log", "models", "retrain", "profiles"):
        cotenant(verb, "--help")
    assert found == [f"{tmp_path}/kept"] * 5


@pytest.mark.parametrize(
    ("text", "complaint"), [("\u00b2", "not a list"), ("0,", "not a list"), ("0,0", "named twice")]
)
def test_cores_that_cannot_stand_in_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_cores(text)


@pytest.mark.parametrize(
    ("known", "lines"),
    [
        (Settings(state_dir="/kept here", scheduler="127.0.0.1:1", predictor="127.0.0.1:2"), []),
        (Settings(state_dir="/kept here", scheduler="127.0.0.1:1"), ["export COTENANT_PREDICTOR=127.0.0.1:2"]),
        (Settings(scheduler="127.0.0.1:1", predictor="127.0.0.1:2"), ["export COTENANT_STATE_DIR='/kept here'"]),
    ],
)
def test_other_terminals_are_shown_what_their_settings_do_not_say(known: Settings, lines: list[str]) -> None:
    folder = Path("/kept here")
    cluster = LocalCluster(state_dir=folder, policy="horus", agents=())
    for name, address in (("scheduler", "127.0.0.1:1"), ("predictor", "127.0.0.1:2")):
        cluster.programs[name] = Program(name, name, [], folder, address=address)
    assert [line for line in export_lines(cluster, known) if not line.startswith("#")] == lines


@pytest.mark.parametrize("node_id", ["", "../../x", "\udcff", "n" * 64])
def test_a_node_whose_name_is_none_is_refused_before_anything_starts(node_id: str, cotenant: CommandLine) -> None:
    outcome = cotenant("up", *ANY_PORTS, "--standin-cores", "0", "--state-dir", "/proc/nowhere", "--node-id", node_id)
    assert (outcome.code, "names no node" in outcome.err) == (2, True)


def test_a_cluster_that_a_killed_up_left_behind_is_named(cotenant: CommandLine, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; sys.stdin.read()", "--ready-file", f"{tmp_path}/agent-local.ready.json"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as left:
        outcome = cotenant(
            "up", *ANY_PORTS, "--standin-cores", str(min(os.sched_getaffinity(0))), "--state-dir", str(tmp_path)
        )
        assert left.stdin is not None
        left.stdin.close()
    assert outcome.code == 2
    assert f"a cluster runs on {tmp_path} already" in outcome.err
    assert f"kill {left.pid}" in outcome.err


def test_a_state_folder_that_cannot_be_made_is_named(cotenant: CommandLine) -> None:
    outcome = cotenant("up", *ANY_PORTS, "--standin-cores", "0", "--state-dir", "/proc/nowhere")
    assert outcome.code == 2
    assert outcome.err.startswith("error: cannot make /proc/nowhere: ")
    assert "--state-dir" in outcome.err


@for_each("verb", ["backup", "audit", "export-log", "restore"])
def test_a_verb_about_files_says_that_a_named_scheduler_is_not_asked(verb: str) -> None:
    """An operator of a remote scheduler was handed the log, and the backup, of this machine's own cluster."""
    with pytest.MonkeyPatch.context() as patched:
        heard: list[str] = []
        patched.setattr(program_commands, "tell", lambda message, **_style: heard.append(message))
        patched.setattr(program_commands, "become", lambda *_command: None)
        run([verb, "monday"])
        assert heard == []
        patched.setenv("COTENANT_SCHEDULER", "lab.example:7071")
        run([verb, "monday"])
        assert len(heard) == 1
        assert "lab.example:7071 is not asked" in heard[0]
        assert "--state-dir" in heard[0]
        run([verb, "monday", "--state-dir", "x"])
        assert len(heard) == 1

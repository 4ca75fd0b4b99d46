"""The edges of all programs agree: one library, one name for each address and TLS file, one shape of errors."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest
from cotenant_profiler.commands import main as profiler

from cotenant.cli.main import cotenant
from cotenant_agent.commands import cli as agent
from cotenant_agent.settings import AgentSettings
from cotenant_simulator.commands.program import program as simulator
from predictor_service.commands.program import program as predictor
from predictor_service.settings import Settings as PredictorSettings
from scheduler_service.commands.main import cli as scheduler
from scheduler_service.settings import Settings as SchedulerSettings
from tests.support.cases import for_each

ROOT = Path(__file__).parents[2]
GROUPS: dict[str, click.Group] = {
    "cotenant": cotenant,
    "predictor": predictor,
    "scheduler": scheduler,
    "agent": agent,
    "simulator": simulator,
    "profiler": profiler,
}
TLS_NAMES = {"tls_ca_file", "tls_certificate_file", "tls_key_file", "tls_server_name", "client_ca_file"}
ACCESS_NAMES = {"token_file", "callers_file", "revoked_file", "socket", "serve_roleless"}
ADDRESS_NAMES = {"address", "metrics_address", "scheduler", "predictor"}
# Started without site-packages, or measured themselves: what a library held would be counted.
BARE = {
    "cotenant_agent/keeper/shim.py",
    "cotenant/job.py",
    "profiling/cotenant_profiler/framework_server.py",
    "profiling/cotenant_profiler/plain_training.py",
    "profiling/cotenant_profiler/worker.py",
}
PACKAGES = ("cotenant", "predictor_service", "scheduler_service", "cotenant_agent", "cotenant_simulator", "profiling")
# Program, its verb that serves, the module whose main runs it, and flags without which nothing could start.
SERVING = [
    ("PREDICTOR", "serve", "predictor_service.commands.program", ()),
    ("SCHEDULER", "serve", "scheduler_service.commands.main", ()),
    ("AGENT", "run", "cotenant_agent.commands", ("--state-dir", "/nowhere/state", "--standin-cores", "0")),
]


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


COMMANDS = [found for name, group in GROUPS.items() for found in commands(group, name)]


def options() -> Iterator[tuple[str, click.Option]]:
    for path, command in COMMANDS:
        yield from ((path, option) for option in command.params if isinstance(option, click.Option))


def test_every_flag_about_tls_has_one_name_and_one_meaning_everywhere() -> None:
    meanings: dict[str, set[str | None]] = {}
    for path, option in options():
        name = str(option.name)
        if name == "insecure" or any(part in name for part in ("tls", "ca_file", "certificate", "key_file")):
            assert name in TLS_NAMES | {"insecure"}, f"{path}: --{name}"
            meanings.setdefault(name, set()).add(option.help)
    assert set(meanings) == TLS_NAMES | {"insecure"}
    assert {name: len(texts) for name, texts in meanings.items() if len(texts) > 1} == {}


def test_every_flag_that_takes_an_address_says_so_and_has_one_of_four_names() -> None:
    for path, option in options():
        is_address = option.name in ADDRESS_NAMES or "address" in str(option.name)
        assert is_address == (option.metavar == "HOST:PORT"), f"{path}: {option.opts}"
        assert not is_address or option.name in ADDRESS_NAMES, f"{path}: {option.opts}"


@for_each("name", sorted({*TLS_NAMES, *ACCESS_NAMES, *ADDRESS_NAMES, "insecure", "log_level"}))
def test_a_setting_that_programs_share_is_declared_alike(name: str) -> None:
    records = (PredictorSettings, SchedulerSettings, AgentSettings)
    assert {record.__annotations__[name] for record in records if name in record.__annotations__} in (
        [{"str"}, {"bool"}, {"Path | None"}]
    )


@for_each(("path", "command"), COMMANDS)
def test_every_help_begins_with_what_the_command_does_as_an_order(path: str, command: click.Command) -> None:
    first = (command.help or "").split()[0]
    assert not first.endswith("s") or first in ("Process",), f"{path}: {first} ..."


@for_each("name", GROUPS)
def test_every_program_takes_h_for_help(name: str) -> None:
    assert list(GROUPS[name].context_settings["help_option_names"]) == ["-h", "--help"]


NEEDY = [
    (path, command)
    for path, command in COMMANDS
    if any(parameter.required for parameter in command.params) and not command.hidden
]
# Started by other verbs; no one types them.
UNSEEN = {"predictor predict", "predictor predict-many", "profiler convert", "agent leave-cluster"}


@for_each(("path", "command"), [each for each in NEEDY if each[0] not in UNSEEN])
def test_a_command_that_cannot_run_by_itself_has_an_example_that_can(path: str, command: click.Command) -> None:
    found = re.search("(?:Examples?:)\\s+cotenant ([^\n]+?)(?:   .*)?$", command.epilog or "", re.MULTILINE)
    assert found is not None, path
    words = shlex.split(found[1])
    verbs = path.split()[1:] if path.split()[0] != "profiler" else ["profile", *path.split()[1:]]
    assert words[: len(verbs)] == verbs, f"{path}: {found[1]}"
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in takewhile(lambda word: word != "--", words) if word.startswith("-")} <= flags, path
    context = click.Context(command, resilient_parsing=True)
    assert command.make_parser(context).parse_args(words[len(verbs) :])[1] == [], path


def test_every_command_line_is_read_by_one_library() -> None:
    libraries = {"argparse", "optparse", "getopt"}
    others = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source = path.read_text()
        # Few files name one at all; to parse the others takes seconds.
        if not any(library in source for library in libraries):
            continue
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if libraries & set(names):
                others.add(str(path.relative_to(ROOT)))
    assert others <= BARE


@pytest.mark.parametrize(("program", "verb", "module", "flags"), SERVING)
@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SEED", "soon", "'soon' is not a valid integer"),
        ("INSECURE", "perhaps", "'perhaps' is not a valid boolean"),
        ("LOG_LEVEL", "loud", "'loud' is not one of"),
        ("TLS_KEY_FILE", "key.pem", "belong together; give --tls-certificate-file and --tls-key-file"),
        ("METRICS_ADDRESS", "0.0.0.0:9", "plain HTTP, and 0.0.0.0:9 can be reached from other machines; serve them"),
        ("METRICS_ADDRESS", "127.0.0.1:70000", "is not an address; write HOST:PORT"),
        ("CONFIG", "/nowhere/x.toml", "cannot read /nowhere/x.toml"),
    ],
)
def test_a_variable_that_cannot_be_is_reported_in_one_line_with_its_remedy(
    program: str,
    verb: str,
    module: str,
    flags: tuple[str, ...],
    *,
    variable: str,
    value: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = str(tmp_path / "state")
    monkeypatch.setenv(f"COTENANT_{program}_STATE_DIR", place)
    monkeypatch.setenv(f"COTENANT_{program}_ADDRESS", "127.0.0.1:0")
    monkeypatch.setenv(f"COTENANT_{program}_{variable}", value)
    monkeypatch.setattr(sys, "argv", [program, verb, *(place if flag == "/nowhere/state" else flag for flag in flags)])
    main: Callable[[], int] = importlib.import_module(module).main
    assert main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert told in error
    assert ";" in error

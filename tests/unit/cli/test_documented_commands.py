"""Every command line of the documents and of the help texts is one that its program takes as it is written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from cotenant_profiler.commands import main as profiler

from cotenant.cli.main import VERBS, cotenant
from cotenant.programs import PROGRAM_COMMANDS
from cotenant_agent.commands import cli as agent
from cotenant_simulator.commands.program import program as simulator
from predictor_service.commands.program import program as predictor
from scheduler_service.commands.main import cli as scheduler
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.document_rules import WRITTEN_BY_PAGES

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/README.md"), *ROOT.glob("[a-z]*/*/README.md")]
)
GROUPS = {
    "cotenant": cotenant,
    "predictor_service": predictor,
    "scheduler_service": scheduler,
    "cotenant_profiler": profiler,
    "cotenant_simulator": simulator,
    "cotenant_agent": agent,
}
COMMAND = re.compile(
    r"""^(?:[A-Z_]+=\S+\ )*(?:docker\ compose\ exec\ \w+\ |eval\ "\$\()?
    (?:\S*/)?(?:(?P<name>cotenant)|python\ -m\ (?P<program>\w+))(?:\ (?P<words>.*))?$""",
    re.VERBOSE,
)
BEHIND_COMMAND = re.compile(r"\s+#(?!\S)|\s[|>]\s|\)\"")
NEXT_COMMAND = re.compile(r" && |; | # then: ")
EXAMPLE = re.compile(r"^(?:\w[\w ]*[:?] +)? *(cotenant [^\n]+?)(?:   .*)?$", re.MULTILINE)
MODULE = re.compile(r"(?:^|(?<=[\s/]))python -m ((?:benchmarks|examples)[\w.]*)([^|#]*)")
POLICY_FLAGS = {"--policy", "--policies", "--compare"}
OF_A_PAGE = {Path(path).stem for path in WRITTEN_BY_PAGES}


def code_lines(page: Path) -> Iterator[str]:
    """Yields the lines of code blocks, continued ones and those of a synopsis joined."""
    is_fenced = False
    for line in re.sub(r"\\\n|\n +(?=\[--)", " ", page.read_text()).splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            yield line.strip().removeprefix("$ ")


def spans(page: Path) -> Iterator[str]:
    """Yields what stands between backticks outside of code blocks."""
    text = re.sub(r"^```.*?^```|^    .*?$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from (span.strip() for span in re.findall(r"`([^`\n]+)`", text))


def split_commands(line: str) -> Iterator[tuple[str, list[str]]]:
    """Yields program and words of each command of ours in a line for a shell."""
    for part in NEXT_COMMAND.split(line):
        found = COMMAND.match(part)
        if found:
            words = shlex.split(BEHIND_COMMAND.split(found["words"] or "")[0])
            yield found["name"] or found["program"], [word for word in words if word not in {"--help", "--version"}]


def start(program: str, words: list[str]) -> tuple[click.Command, list[str]]:
    """Returns what runs the words of a program, of a verb that is passed on its own program, and the words for it."""
    own, verb = PROGRAM_COMMANDS.get(words[0] if words else "", ("", ""))
    if program != "cotenant" or not own or words[0] in {"predict", "policies"}:
        return GROUPS[program], words
    return GROUPS[own], [*([verb] if verb else []), *words[1:]]


def help_texts(command: click.Command, parent: click.Context | None = None, name: str = "") -> Iterator[str]:
    """Yields help and epilog of a command and of all below it."""
    context = click.Context(command, parent=parent, info_name=name)
    yield f"{command.help or ''}\n{command.epilog or ''}"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                yield from help_texts(found, context, below)


def is_synopsis(line: str) -> bool:
    """Tells whether a line lists what may be said, in brackets or between bars, instead of being a command."""
    return " [" in line or re.search(r"\w\|\w", line) is not None


def lines_of_pages() -> Iterator[tuple[str, str]]:
    """Yields place and text of each line that may be a command."""
    for page in PAGES:
        for line in code_lines(page):
            yield f"{page.relative_to(ROOT)}: {line}", line
    for group in GROUPS.values():
        for text in help_texts(group):
            for line in EXAMPLE.findall(text):
                yield f"help: {line}", line


def spans_of_pages() -> Iterator[tuple[str, str]]:
    """Yields place and text of what sentences name, a verb without `cotenant` before it completed."""
    groups = {verb for verb in VERBS if isinstance(cotenant.get_command(click.Context(cotenant), verb), click.Group)}
    for page in PAGES:
        for span in spans(page):
            first, _, second = span.partition(" ")
            is_short = first in VERBS and (second.startswith("--") or (first in groups and second))
            yield f"{page.relative_to(ROOT)}: {span}", f"cotenant {span}" if is_short else span


def find_commands(lines: Iterator[tuple[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Returns place, program and words of all commands that one of our programs runs."""
    return [
        (where, program, words)
        for where, line in lines
        if not is_synopsis(line)
        for program, words in split_commands(line)
        if program in GROUPS
    ]


def take_path(_: click.Path | click.File, value: Any, *__: object) -> Path:
    """Takes a file of a page, which need not be there, and opens none."""
    return Path(value)


def parse(program: str, words: list[str]) -> None:
    """Lets a program read its words, and do nothing.

    Raises:
        click.UsageError: It does not take them.
    """
    command, words = start(program, words)
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise click.UsageError(f"no command {words[0]!r}")
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    with patch.object(click.Path, "convert", take_path), patch.object(click.File, "convert", take_path):
        if words or not isinstance(command, click.Group):
            command.make_context(command.name, list(words), parent=context.parent)


def named_policies(words: Sequence[str]) -> set[str]:
    """Returns the policies that a command names; words in capitals stand for any."""
    lists = {value for flag, value in pairwise(words) if flag in POLICY_FLAGS}
    lists |= {words[2]} if words[:2] in (["policies", "use"], ["policies", "describe"]) else set()
    return {name for names in lists for name in names.split(",") if not name.isupper()}


def named_parameters(words: Sequence[str]) -> dict[str, object]:
    """Returns the parameters that a command sets."""
    pairs = (value.partition("=") for flag, value in pairwise(words) if flag == "--set")
    return {name: json.loads(value) for name, _, value in pairs if not name.isupper()}


def named_flags() -> dict[str, str]:
    """Returns the flags that pages name in the middle of a sentence, each with one place."""
    found = ((page, span) for page in PAGES for span in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", page.read_text()))
    return {flag: str(page.relative_to(ROOT)) for page, flag in found}


def flags_below(command: click.Command) -> set[str]:
    """Returns the flags of a command and of all commands below it."""
    found = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = (command.get_command(context, name) for name in command.list_commands(context))
        found = found.union(*(flags_below(one) for one in below if one is not None))
    return found


def found_modules() -> Iterator[tuple[str, str, list[str]]]:
    """Yields place, name and words of each benchmark or example that a page runs, also behind a command of ours."""
    for page in PAGES:
        for line in (*code_lines(page), *spans(page)):
            for module, words in MODULE.findall(line):
                yield f"{page.relative_to(ROOT)}: {line}", module, shlex.split(words)


def sources_of(module: str) -> str:
    """Returns the source of a module and of those that it imports out of its own folder."""
    file = ROOT / f"{module.replace('.', '/')}.py"
    own = file.read_text()
    imports = " ".join(re.findall(r"^from (?:benchmarks|examples)[\w., ()]+", own, re.MULTILINE))
    siblings = {file.parent / f"{name}.py" for name in re.findall(r"\w+", imports)} - {file}
    return own + "".join(one.read_text() for one in siblings if one.is_file())


def synopses() -> Iterator[tuple[str, click.Command, set[str]]]:
    """Yields place, program and flags of each line that lists what may be said."""
    for where, line in lines_of_pages():
        found = COMMAND.match(line)
        if found and is_synopsis(line) and found["name"]:
            yield where, start("cotenant", found["words"].split())[0], set(re.findall(r"(?<=[\[ ])--[a-z-]+", line))


LINES = find_commands(lines_of_pages())
SPANS = find_commands(spans_of_pages())


def test_commands_are_found() -> None:
    assert len(LINES) > 200
    assert len(SPANS) > 100


@for_each(("where", "program", "words"), LINES)
def test_a_command_is_taken_as_it_is_written(where: str, program: str, words: list[str]) -> None:
    parse(program, words)


@for_each(("where", "program", "words"), SPANS)
def test_a_command_in_a_sentence_is_one_whose_arguments_may_be_left_out(
    where: str, program: str, words: list[str]
) -> None:
    try:
        parse(program, words)
    except (click.MissingParameter, click.BadOptionUsage):
        pass
    except click.UsageError as error:
        raise AssertionError(where) from error


@for_each(("where", "program", "flags"), list(synopses()))
def test_a_synopsis_lists_flags_that_exist(where: str, program: click.Command, flags: set[str]) -> None:
    assert flags <= flags_below(program), where


@for_each(("where", "program", "words"), LINES + SPANS)
def test_a_command_names_policies_and_parameters_that_exist(where: str, program: str, words: list[str]) -> None:
    for name in named_policies(words) - OF_A_PAGE:
        make_policy(name, named_parameters(words))


@for_each(("where", "module", "words"), list(found_modules()))
def test_a_module_that_a_page_runs_exists_and_has_the_flags(where: str, module: str, words: list[str]) -> None:
    if module == "benchmarks.run_all":
        assert all((ROOT / "benchmarks" / f"{word}.py").is_file() for word in words if not word.isupper()), where
    source = sources_of(module)
    assert {word for word in words if word.startswith("--") and f'"{word}"' not in source} == set(), where


def test_a_flag_named_in_a_sentence_exists() -> None:
    assert len(named_flags()) > 50
    known = set[str]().union(*(flags_below(program) for program in GROUPS.values()))
    known |= {
        flag for file in ROOT.glob("benchmarks/**/*.py") for flag in re.findall(r"\"(--[a-z-]+)\"", file.read_text())
    }
    # Click's own, and those of sbatch and srun.
    of_others = {
        "--help",
        "--dependency",
        "--begin",
        "--exclusive",
        "--no-kill",
        "--constraint",
        "--gres",
        "--reservation",
    }
    assert {flag: page for flag, page in named_flags().items() if flag not in known | of_others} == {}

"""Every command line of the documents names verbs and flags that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
from cotenant_profiler.commands import main as profiler

from cotenant.cli.main import cotenant
from cotenant.programs import PROGRAM_COMMANDS
from cotenant_agent.commands import cli as agent
from cotenant_simulator.commands.program import program as simulator
from predictor_service.commands.program import program as predictor
from scheduler_service.commands.main import cli as scheduler
from tests.support.cases import for_each

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/README.md"), *ROOT.glob("[a-z]*/*/README.md")]
)
GROUPS = {
    "predictor_service": predictor,
    "scheduler_service": scheduler,
    "cotenant_profiler": profiler,
    "cotenant_simulator": simulator,
    "cotenant_agent": agent,
}
LINE = re.compile(r"^(?: {4})?(?:\.venv/bin/)?cotenant (?P<words>.+)$")
PROGRAM_LINE = re.compile(r"^(?: {4})?(?:\.venv/bin/)?python -m (?P<program>\w+_service|cotenant_\w+) (?P<words>.+)$")


def code_lines(page: Path) -> Iterator[str]:
    """Yields the lines of code blocks, continued ones joined."""
    is_fenced = False
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            yield line


def command_lines() -> Iterator[tuple[str, click.Command, list[str]]]:
    """Yields where a command stands, what runs it, and its words."""
    for page in PAGES:
        for line in code_lines(page):
            found, of_program = LINE.match(line), PROGRAM_LINE.match(line)
            for words in re.split(r"&&\s+(?:\S*cotenant)", (found or of_program or {"words": ""})["words"]):
                where = f"{page.relative_to(ROOT)}: {line.strip()}"
                if found:
                    yield where, *start(shlex.split(words.split(" #")[0]))
                elif of_program and of_program["program"] in GROUPS:
                    yield where, GROUPS[of_program["program"]], shlex.split(words.split(" #")[0])


def start(words: list[str]) -> tuple[click.Command, list[str]]:
    """Returns the program of a verb that is passed on, else the command line itself, with the words for it."""
    program, verb = PROGRAM_COMMANDS.get(words[0], ("", ""))
    if program not in GROUPS or words[0] in {"predict", "policies"}:
        return cotenant, words
    return GROUPS[program], [*([verb] if verb else []), *words[1:]]


def named_flags() -> dict[str, str]:
    """Returns the flags that pages name in the middle of a sentence, each with one place."""
    spans = ((page, span) for page in PAGES for span in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", page.read_text()))
    return {flag: str(page.relative_to(ROOT)) for page, flag in spans}


def flags_below(command: click.Command) -> set[str]:
    """Returns the flags of a command and of all commands below it."""
    found = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = (command.get_command(context, name) for name in command.list_commands(context))
        found = found.union(*(flags_below(one) for one in below if one is not None))
    return found


LINES = list(command_lines())


def test_commands_are_found() -> None:
    assert len(LINES) > 50
    assert len(named_flags()) > 50


def test_a_flag_named_in_a_sentence_exists() -> None:
    known = set[str]().union(*(flags_below(program) for program in (cotenant, *GROUPS.values())))
    known |= {
        flag for file in ROOT.glob("benchmarks/**/*.py") for flag in re.findall(r"\"(--[a-z-]+)\"", file.read_text())
    }
    # Click's own, and those of sbatch and srun.
    of_others = {"--help", "--dependency", "--begin", "--exclusive", "--no-kill"}
    assert {flag: page for flag, page in named_flags().items() if flag not in known | of_others} == {}


@for_each(("where", "command", "words"), LINES)
def test_a_documented_command_exists(where: str, command: click.Command, words: list[str]) -> None:
    # Behind these stands a job's own command, or a synopsis of the next verb.
    words = list(takewhile(lambda word: word not in {"--", "|"}, words))
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None, where
        command = found
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} - {"--help"} <= flags, where

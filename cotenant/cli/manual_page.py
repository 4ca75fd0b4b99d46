"""The manual page, written from the verbs themselves: nothing of it can be out of date."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from cotenant import __version__
from cotenant.cli.exit_codes import EXIT_CODES_HELP

_DEPTH_MAX = 4
_UNWRAPPED = "\b"


def manual_page(program: click.Group, name: str) -> str:
    """Returns the page of a program with all of its verbs, in the macros of man(7).

    Args:
        program: Its group.
        name: What it is called.
    """
    context = click.Context(program, info_name=name)
    summary, _, description = (program.help or "").partition("\n\n")
    lines = [f'.TH "{name.upper()}" 1 "" "{name} {__version__}" "User Commands"']
    lines += [".SH NAME", f"{name} \\- {_escaped(' '.join(summary.split()))}"]
    lines += [".SH SYNOPSIS", f".B {name}", _escaped("VERB [FLAGS] [ARGUMENTS]")]
    lines += [".SH DESCRIPTION", *_paragraphs(description), ".SH VERBS"]
    for verb in program.list_commands(context):
        lines += _verb(program.get_command(context, verb), verb, context, depth=0)
    lines += [".SH EXIT STATUS", *_paragraphs(EXIT_CODES_HELP)]
    return "\n".join(lines) + "\n"


def _verb(command: click.Command | None, name: str, parent: click.Context, *, depth: int) -> Iterator[str]:
    """Yields one verb, and those below it."""
    if command is None or command.hidden or depth > _DEPTH_MAX:
        return
    context = click.Context(command, info_name=name, parent=parent)
    yield f'.SS "{_quoted(context.command_path)}"'
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (".PP", f".B {_escaped(usage)}", ".PP", *_paragraphs(command.help or ""))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", f".B {_escaped(record[0])}", _escaped(" ".join(record[1].split())))
    yield from (".PP", *_paragraphs(command.epilog or ""))
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            yield from _verb(command.get_command(context, verb), verb, context, depth=depth + 1)


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a help text; what click does not wrap keeps its lines."""
    for number, paragraph in enumerate(part for part in re.split(r"\n[ \t]*\n", text.strip("\n")) if part.strip()):
        if number:
            yield ".PP"
        if paragraph.lstrip("\n").startswith(_UNWRAPPED):
            yield from (".nf", *(_escaped(line) for line in paragraph.split("\n")[1:]), ".fi")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """Returns a line that the formatter shows as it stands, whatever it begins with."""
    shown = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '""')

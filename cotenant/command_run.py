"""Runs a program's command line: whatever the terminal does to it ends in an exit status, never in a traceback."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from cotenant.terminal_text import harmless

HELP: Mapping[str, Any] = MappingProxyType({"help_option_names": ["-h", "--help"], "max_content_width": 100})
"""How every program shows its help: context settings of its group."""
EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_INTERRUPTED = 130
SHOWN_AS = "COTENANT_SHOWN_AS"
"""Environment variable of a program that stands for a verb: what its usage lines call it."""

_VERBS_LISTED_MAX = 12
_COMMAND_BEHIND = "-- COMMAND..."
_EXAMPLE = re.compile(r"^(?:.*Examples?:)? *(cotenant [^\n]*?)(?:   .*)?$", re.MULTILINE)
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EACCES: "change its rights or name another place",
    errno.EPERM: "change its rights or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOENT: "name a place that exists",
    errno.ENOTDIR: "name a folder",
    errno.ELOOP: "name a place that exists: these lead round in circles",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def run_command(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    *,
    prog_name: str | None = None,
    exit_codes: Sequence[tuple[type[Exception], int]] = (),
) -> int:
    """Runs a command and returns its exit status; errors that `exit_codes` does not name pass through.

    Args:
        command: What to run.
        arguments: Words after the program's name; None = those of this process.
        prog_name: Name in usage lines unless SHOWN_AS has one; None = that of this process.
        exit_codes: The program's own errors, reported in one line with cause and remedy; the first class that fits.
    """
    prog_name = os.environ.pop(SHOWN_AS, "") or prog_name
    _make_stdout_trustworthy()
    _drop_sizes_that_are_none()
    try:
        result: object = command.main(args=arguments, prog_name=prog_name, standalone_mode=False)
    except click.ClickException as error:
        _tell(_in_one_shape(error, sys.argv[1:] if arguments is None else arguments))
        return error.exit_code
    except click.Abort:
        _tell("interrupted")
        return EXIT_INTERRUPTED
    except SystemExit as error:
        if error.code != EXIT_ERROR:
            raise
        # So click and rich end when the reader (head, less) has seen enough.
        _close_stdout()
        return EXIT_OK
    except UnicodeEncodeError as error:
        _tell(f"error: {error.object!a} is not UTF-8; write it anew")
        return EXIT_USAGE
    except OSError as error:
        return _tell_file_error(error)
    except tuple(kind for kind, _ in exit_codes) as error:
        _tell(f"error: {_with_remedy(error)}")
        return next(code for kind, code in exit_codes if isinstance(error, kind))
    except RuntimeError as error:
        # Before Python 3.13 links that go round in circles are no OSError to `Path.resolve`.
        if not isinstance(error.__context__, OSError) or error.__context__.errno != errno.ELOOP:
            raise
        return _tell_file_error(error.__context__)
    return result if isinstance(result, int) else EXIT_OK


def _make_stdout_trustworthy() -> None:
    """Lets a terminal without UTF-8 show a question mark, and a disk that fills up be noticed."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: without a buffer a short write of a text goes unnoticed.
        encoding, is_terminal = sys.stdout.encoding, sys.stdout.isatty()
        buffer = io.BufferedWriter(sys.stdout.detach())
        sys.stdout = io.TextIOWrapper(buffer, encoding=encoding, errors="replace", line_buffering=is_terminal)
    else:
        sys.stdout.reconfigure(errors="replace")


def _drop_sizes_that_are_none() -> None:
    """Forgets a COLUMNS or LINES such as a superscript two, which rich takes for a number and cannot read."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[0-9]{1,6}", os.environ.get(name, "0")):
            del os.environ[name]


def _close_stdout() -> None:
    """Writes what is still buffered to nowhere: the interpreter tries once more at its end."""
    if sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _tell_file_error(error: OSError) -> int:
    _tell(f"error: {_describe(error)}")
    _close_stdout()
    return EXIT_ERROR


def _describe(error: OSError) -> str:
    what = error.strerror or str(error)
    place = f"{error.filename}: " if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{place}{what}; {remedy}" if remedy else f"{place}{what}"


def _in_one_shape(error: click.ClickException, arguments: Sequence[str]) -> str:
    """Message of click about wrong use, beginning as our own errors do, with an example of right use."""
    message = io.StringIO()
    error.show(message)
    text = re.sub("^Error: ", "error: ", message.getvalue().rstrip("\n"), flags=re.MULTILINE)
    text = text.replace(" Did you mean '--help'?", "")  # the nearest of flags that are all far
    text = text.replace(" is not a valid integer range.", " is not a valid integer.")
    text = text.replace(" is not a valid float range.", " is not a valid number.")
    # Of a wrong value the message says what would be right.
    is_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
    context = error.ctx if isinstance(error, click.UsageError) and not is_value else None
    if context is None:
        return text
    # A flag of the user's own program was read as one of ours.
    is_loose = (
        isinstance(error, click.NoSuchOption) and _COMMAND_BEHIND in context.get_usage() and "--" not in arguments
    )
    return "\n".join([text, *(_put_behind(context) if is_loose else _right_use(context))])


def _put_behind(context: click.Context) -> Iterator[str]:
    """Where the words of a program stand, with an example of it."""
    examples = (found[1].rstrip() for found in _EXAMPLE.finditer(context.command.epilog or ""))
    example = next((f", e.g. {one}" for one in examples if " -- " in one), "")
    yield f"  remedy: put the program with its own flags behind --{example}"


def _right_use(context: click.Context) -> Iterator[str]:
    """What may stand there: the verbs of a small group, or the first example of a verb's help."""
    command = context.command
    if isinstance(command, click.Group):
        verbs = command.list_commands(context)
        if len(verbs) <= _VERBS_LISTED_MAX:
            yield f"  remedy: one of: {', '.join(verbs)}"
        return
    example = _EXAMPLE.search(command.epilog or "")
    if example is not None:
        yield f"  remedy: e.g. {example[1].rstrip()}"


def _with_remedy(error: Exception) -> str:
    message, remedy = str(error), str(getattr(error, "remedy", ""))
    return f"{message}; {remedy}" if remedy and remedy not in message else message


def _tell(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{harmless(line)}\n")

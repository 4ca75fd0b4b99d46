"""What a verb gets handed: settings, output format, clients and the two streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cotenant.cli.formats import OutputFormat
from cotenant.cli.setting_options import naming_flags
from cotenant.cli.settings import SETTINGS, Settings, resolve_settings
from cotenant.cli.tables import NARROWEST_SENTENCE, wrap_cells
from cotenant.client import PredictorClient, SchedulerClient, open_channel
from cotenant.client_errors import CotenantError, ServiceError
from cotenant.program_settings import Resolved
from cotenant.terminal_text import harmless
from cotenant.v1 import resources_pb2

WIDTH_WITHOUT_TERMINAL = 160
WIDTH_OF_A_FILE = 10_000
"""So that nothing is ever folded; names and ids are bounded."""
WIDTH_OF_A_TERMINAL = 80
"""Where it does not tell its own: in containers, on serial lines, under `script`."""
_FURTHER_IN = "    "
P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of one verb."""

    resolved: Resolved[Settings]
    output: OutputFormat

    @property
    def settings(self) -> Settings:
        """The merged settings."""
        return self.resolved.settings

    @property
    def width(self) -> int:
        """Columns that a table may take; what goes into a pipe or a file is folded and cut nowhere."""
        return output_width() if _has_edges() else WIDTH_OF_A_FILE

    def scheduler(self) -> SchedulerClient:
        """Returns a client; nothing is dialled yet."""
        settings = self.settings
        options = settings.channel_options(settings.scheduler)
        return SchedulerClient(
            open_channel(options), address=settings.scheduler, timeout_s=settings.timeout_s, tls=options.tls_files()
        )

    def predictor(self) -> PredictorClient:
        """Returns a client; nothing is dialled yet."""
        settings = self.settings
        options = settings.channel_options(settings.predictor)
        return PredictorClient(
            open_channel(options), address=settings.predictor, timeout_s=settings.timeout_s, tls=options.tls_files()
        )


def output_width() -> int:
    """Returns COLUMNS, else the terminal's width, else a width that suits a pipe; 0 columns are an unknown width."""
    if columns := int(os.environ.get("COLUMNS") or 0):  # digits only: command_run has seen to it
        return columns
    if _has_edges():
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH_OF_A_TERMINAL
    return WIDTH_WITHOUT_TERMINAL


def _has_edges() -> bool:
    """Whether COLUMNS or a terminal says how wide a line may be."""
    is_stated = int(os.environ.get("COLUMNS") or 0) > 0
    return is_stated or (sys.stdout is not None and sys.stdout.isatty())


def show(text: Text | str) -> None:
    """Writes data for people to stdout; colour only on a terminal without NO_COLOR."""
    console = Console(width=max(output_width(), 20), highlight=False, soft_wrap=True)
    console.print(_harmless(text if isinstance(text, Text) else Text(text)))


def tell(message: str, *, style: str = "") -> None:
    """Writes a diagnostic to stderr; on a terminal no word of it is cut by the edge, elsewhere its lines stay whole."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    told = naming_flags(message)
    if console.is_terminal:
        told = "\n".join(piece for line in told.split("\n") for piece in _between_edges(line, console.width))
    console.print(_harmless(Text(told, style=style)))


def _between_edges(line: str, width: int) -> list[str]:
    """Breaks a line between words; what goes on stands further in than the line and than a remedy below it."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    if cell_len(line) <= width:
        return [line]
    first, *rest = wrap_cells(line.strip(" "), max(NARROWEST_SENTENCE, width - len(indent) - len(_FURTHER_IN)))
    return [indent + first, *(indent + _FURTHER_IN + piece for piece in rest)]


def tell_error(error: CotenantError) -> None:
    """Writes one error to stderr: what, the stable reason, what to do."""
    reason = f" [{error.reason}]" if error.reason else ""
    tell(f"error: {error.message}{reason}", style="red")
    facts = error.metadata if isinstance(error, ServiceError) else {}
    # The list of wrong fields usually repeats the message.
    shown = [f"{name}={value}" for name, value in sorted(facts.items()) if value and error.message not in value]
    if shown:
        tell("  " + ", ".join(shown))
    if error.remedy and error.remedy not in error.message:
        tell(f"  remedy: {error.remedy}")


def _harmless(text: Text) -> Text:
    """Lets nothing that a job or a node wrote steer the reader's terminal."""
    # Character by character: the styles keep their places.
    text.plain = harmless(text.plain)
    return text


def tell_warnings(warnings: Iterable[resources_pb2.Warning]) -> None:
    """Writes to stderr what the scheduler warns of."""
    for warning in warnings:
        tell(f"warning: {warning.message} [{warning.code}]", style="yellow")


def with_session(
    function: Callable[Concatenate[Session, P], None],
) -> Callable[P, None]:
    """Adds the connection flags and -o to a verb and hands it a Session first."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        flags = {name: kwargs.pop(name, None) for name in _SESSION_FLAGS}
        resolved = resolve_settings(flags)
        function(Session(resolved=resolved, output=OutputFormat(resolved.settings.output)), *args, **kwargs)

    decorated: Callable[P, None] = run
    for name in reversed(_SESSION_FLAGS):
        decorated = SETTINGS.option(name)(decorated)
    return decorated


_SESSION_FLAGS = (
    "output",
    "scheduler",
    "predictor",
    "timeout_s",
    "tls_ca_file",
    "tls_certificate_file",
    "tls_key_file",
    "token_file",
)

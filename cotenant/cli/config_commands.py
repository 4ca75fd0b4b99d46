"""config view, completion, manual, version."""

from __future__ import annotations

import dataclasses
import os
import platform
from importlib import metadata

import click
from click.shell_completion import get_completion_class

from cotenant import __version__
from cotenant.cli.formats import emit_data
from cotenant.cli.manual_page import manual_page
from cotenant.cli.session import Session, show, with_session
from cotenant.cli.settings import config_file_path, state_folder
from cotenant.cli.tables import Column, Row, render_table
from cotenant.client_errors import InputError
from cotenant.command_groups import ListedGroup

_COLUMNS = (Column(title="SETTING"), Column(title="VALUE", wraps=True), Column(title="FROM", wraps=True))
_LIBRARIES = ("grpcio", "protobuf", "click", "rich", "pyyaml")


@click.group(cls=ListedGroup)
def config() -> None:
    """Show settings and where they come from."""


@config.command(epilog="Settings: flags, then COTENANT_NAME, then the file, then defaults.")
@with_session
def view(session: Session, /) -> None:
    """Show every setting with its origin."""
    found = {**dataclasses.asdict(session.settings), "state_dir": state_folder(session.settings)}
    values = {name: value if isinstance(value, float) else str(value or "") for name, value in found.items()}
    origins = session.resolved.origins
    if not session.output.is_for_people:
        path = str(config_file_path(os.environ))
        settings = {name: {"value": value, "origin": origins[name]} for name, value in values.items()}
        emit_data({"file": path, "settings": settings}, session.output)
        return
    rows = [Row(cells=(name, str(value) or "-", origins[name])) for name, value in values.items()]
    show(render_table(_COLUMNS, rows, session.width))
    show(f"\nfile: {config_file_path(os.environ)}")


@click.command(
    epilog='Example:  cotenant completion bash   (its output is for eval "$(...)", or your completion folder)'
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    from cotenant.cli.main import cotenant  # the group that is completed imports this module

    kind = get_completion_class(shell)
    if kind is None:
        raise InputError(f"no completion for {shell}")
    click.echo(kind(cotenant, {}, "cotenant", "_COTENANT_COMPLETE").source())


@click.command(
    epilog="\b\nExamples:\n  cotenant manual | man -l -\n  cotenant manual > ~/.local/share/man/man1/cotenant.1"
)
def manual() -> None:
    """Print the manual page of all verbs, written from themselves: read it with man."""
    from cotenant.cli.main import cotenant  # the group that is described imports this module

    click.echo(manual_page(cotenant, "cotenant"), nl=False)


@click.command()
@with_session
def version(session: Session, /) -> None:
    """Print the version of cotenant and of what it stands on."""
    versions = {"cotenant": __version__, "python": platform.python_version()}
    versions |= {library: metadata.version(library) for library in _LIBRARIES}
    if session.output.is_for_people:
        show("\n".join(f"{name} {number}" for name, number in versions.items()))
    else:
        emit_data(versions, session.output)

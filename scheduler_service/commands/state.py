"""backup, restore and export-log: what can be done with a state directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

import click

from scheduler_service.adapters.sqlite_event_log import read_stored_events
from scheduler_service.adapters.state_backup import back_up
from scheduler_service.adapters.state_backup import restore as restore_state
from scheduler_service.core.codec import encode_event
from scheduler_service.settings import ENVIRONMENT_PREFIX, Settings

_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Settings().state_dir,
    envvar=f"{ENVIRONMENT_PREFIX}STATE_DIR",
    show_default=True,
    help="Directory of the event log.",
)


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@_STATE_DIR
def backup(target: Path, state_dir: Path) -> None:
    """Copy the state into the new folder TARGET; the scheduler may run meanwhile."""
    click.echo(json.dumps(back_up(state_dir, target)))


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_STATE_DIR
@click.option("--force", is_flag=True, help="Replace a state that is there; it is kept beside.")
def restore(source: Path, state_dir: Path, force: bool) -> None:
    """Put the backup SOURCE in the place of a state; the scheduler must be stopped."""
    click.echo(json.dumps(restore_state(source, state_dir, force=force)))


@click.command("export-log")
@_STATE_DIR
@click.option("--output", type=click.File("w"), default="-", help="A file instead of stdout.")
@click.option("--from-sequence", type=click.IntRange(1, 2**63 - 1), default=1, help="Start at this event.")
def export_log(state_dir: Path, output: TextIO, from_sequence: int) -> None:
    """Write the kept events as JSON lines, the form that the simulator replays; the scheduler may run meanwhile."""
    for stored in read_stored_events(state_dir, from_sequence=from_sequence):
        output.write(json.dumps({"sequence": stored.sequence, **encode_event(stored.event)}) + "\n")

"""backup, restore, export-log and log verify: what can be done with a state directory."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import click

from cotenant.command_groups import ListedGroup
from scheduler_service.adapters.storage.event_log import StoredEvent
from scheduler_service.adapters.storage.log_verification import verify_log
from scheduler_service.adapters.storage.private_files import create_private
from scheduler_service.adapters.storage.state_backup import MANIFEST_NAME, back_up, verified_manifest
from scheduler_service.adapters.storage.state_backup import restore as restore_state
from scheduler_service.adapters.storage.stored_records import read_stored_events
from scheduler_service.core.codec import encode_event
from scheduler_service.errors import SettingsError
from scheduler_service.settings import SETTINGS, Settings

_STATE_DIR = SETTINGS.options("state_dir")


@click.command(epilog="Example:  cotenant backup FOLDER")
@click.argument("target", type=click.Path(path_type=Path))
@_STATE_DIR
def backup(target: Path, settings: Settings) -> None:
    """Copy the state into the new folder TARGET; the scheduler may run meanwhile."""
    click.echo(json.dumps(back_up(Path(settings.state_dir), target)))


@click.command(epilog="Example:  cotenant restore FOLDER --confirm")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_STATE_DIR
@click.option("--force", is_flag=True, help="Replace a state that is there; it is kept next to it.")
@click.option("--confirm", is_flag=True, help="The scheduler that the backup was taken from runs no more, anywhere.")
def restore(source: Path, settings: Settings, force: bool, confirm: bool) -> None:
    """Put the backup SOURCE in the place of a state; the scheduler must be stopped.

    Without --confirm the restored state gives no orders before `cotenant nodes confirm`.
    """
    click.echo(json.dumps(restore_state(source, Path(settings.state_dir), force=force, is_confirmed=confirm)))
    if not confirm:
        click.echo(
            "start the scheduler: it gives no orders until `cotenant nodes confirm` says that the one from which the "
            "backup was taken runs no more",
            err=True,
        )


@click.command("export-log")
@_STATE_DIR
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of stdout; only you may read it."
)
@click.option("--from-sequence", type=click.IntRange(1, 2**63 - 1), default=1, help="Start at this event.")
def export_log(settings: Settings, output: Path | None, from_sequence: int) -> None:
    """Write the kept events as JSON lines, the form that the simulator replays; the scheduler may run meanwhile."""
    events = read_stored_events(Path(settings.state_dir), from_sequence=from_sequence)
    if output is None or str(output) == "-":
        _write_events(events, sys.stdout)
        return
    try:
        with os.fdopen(create_private(output, flags=os.O_CREAT | os.O_TRUNC), "w") as stream:
            _write_events(events, stream)
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}; name another file") from error


def _write_events(events: Iterable[StoredEvent], stream: TextIO) -> None:
    for stored in events:
        stream.write(json.dumps({"sequence": stored.sequence, **encode_event(stored.event)}) + "\n")


@click.group(cls=ListedGroup)
def log() -> None:
    """Look after the event log."""


@log.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@_STATE_DIR
def verify(path: Path | None, settings: Settings) -> None:
    """Check the event log in PATH, a database file or the folder of one; without PATH that of the state directory.

    Every record's checksum is computed again, and that of a whole backup. The file is only read, and the scheduler may
    run meanwhile.
    """
    if path is not None and (path / MANIFEST_NAME).is_file():
        verified_manifest(path)
    click.echo(json.dumps(verify_log(path if path is not None else Path(settings.state_dir))))

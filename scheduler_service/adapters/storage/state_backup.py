"""Copies of the state: made while the scheduler runs, checked before they are trusted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from cotenant.folder_sync import sync_folder
from scheduler_service.adapters.storage.log_head import HEAD_ENDING
from scheduler_service.adapters.storage.private_files import create_private, make_private
from scheduler_service.adapters.storage.sqlite_event_log import lock_state, read_state_id, set_state_id
from scheduler_service.adapters.storage.sqlite_faults import translated, writing
from scheduler_service.adapters.storage.state_marker import new_state_id, read_marker, write_marker
from scheduler_service.adapters.storage.stored_identity import begin_child, read_succeeded
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME, FORMAT_VERSION, check_recoverable
from scheduler_service.errors import RestoreRefusedError, SettingsError, StateDamagedError, StateUnwritableError

MANIFEST_NAME = "manifest.json"
MANIFEST_SCHEMA = "cotenant.scheduler-backup/1"
_ANEW = os.O_CREAT | os.O_TRUNC


def back_up(state_dir: Path, target: Path) -> Mapping[str, object]:
    """Copy a state, running or not, into a new folder.

    Args:
        state_dir: Holds the event log.
        target: Must not exist or be empty. Others may read the folder where they could before, not what is in it.

    Returns:
        The manifest: schema, format_version, last_sequence, bytes, sha256.

    Raises:
        SettingsError: There is no state, or the target is in use.
        StateDamagedError: A scheduler could not start from the state; nothing of the copy is left.
        StateUnwritableError: The copy could not be written; nothing of it is left.
    """
    source = state_dir / DATABASE_NAME
    if not source.is_file():
        raise SettingsError(
            f"there is no state in {state_dir}; name the folder that the scheduler serves from with --state-dir"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SettingsError(f"{target} is no empty folder; name a new folder for the backup")
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _copy_state(source, target)
    except (sqlite3.Error, OSError) as error:
        _remove_copy(target)
        if isinstance(error, sqlite3.Error) and isinstance(damage := translated(error, source), StateDamagedError):
            raise damage from error
        raise StateUnwritableError(
            f"the backup cannot be written to {target} ({error}); make room there or name another folder"
        ) from error
    except BaseException:
        _remove_copy(target)
        raise


def _remove_copy(target: Path) -> None:
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-journal", MANIFEST_NAME):
        (target / name).unlink(missing_ok=True)


def _copy_state(source: Path, target: Path) -> Mapping[str, object]:
    copy = target / DATABASE_NAME
    # Before SQLite writes to it: the mode is there before the content.
    os.close(create_private(copy))
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reader,
        closing(sqlite3.connect(copy)) as writer,
    ):
        reader.backup(writer, pages=1_000)
        last_sequence = check_recoverable(writer, source)
        # One file, without a write-ahead log next to it.
        writer.execute("PRAGMA journal_mode = DELETE")
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "format_version": FORMAT_VERSION,
        "last_sequence": last_sequence,
        "bytes": copy.stat().st_size,
        "sha256": _sha256(copy),
    }
    with os.fdopen(create_private(target / MANIFEST_NAME), "w") as stream:
        stream.write(json.dumps(manifest, indent=2) + "\n")
    return manifest


def restore(backup: Path, state_dir: Path, *, force: bool, is_confirmed: bool = False) -> Mapping[str, object]:
    """Put a backup in the place of a state; the scheduler must not run.

    What is restored is a state of its own: a new incarnation that names its parent, and the marker of the directory
    names it.

    Args:
        backup: A folder made by `back_up`.
        state_dir: Receives the event log.
        force: Replace a state that is there; it is kept next to it with the ending ".replaced".
        is_confirmed: An operator says that the scheduler of the backup runs no more; otherwise one must say so later.

    Returns:
        The manifest of the backup.

    Raises:
        RestoreRefusedError: The backup is not whole, or there is a state and `force` is not given.
        StateLockedError: A scheduler runs on the directory.
        StateUnwritableError: The directory cannot be written.
    """
    manifest = verified_manifest(backup)
    descriptor = lock_state(state_dir)
    try:
        _replace(backup / DATABASE_NAME, state_dir / DATABASE_NAME, force=force, is_confirmed=is_confirmed)
    except OSError as error:
        raise StateUnwritableError(
            f"the backup cannot be restored to {state_dir} ({error.strerror}); make room there, then restore it again"
        ) from error
    finally:
        os.close(descriptor)
    return manifest


def _replace(source: Path, target: Path, *, force: bool, is_confirmed: bool) -> None:
    if target.exists() and not force:
        raise RestoreRefusedError(f"{target} exists; add --force to replace it (it is kept as {target.name}.replaced)")
    arriving = target.with_name(target.name + ".arriving")
    state_id = new_state_id()
    # Nodes may still belong to what the replaced state itself has replaced: a second restore soon after a first one.
    replaced_ids = {read_marker(target.parent) or "", *read_succeeded(target)}
    _copy_as(state_id, source, arriving, replaced_ids=replaced_ids, is_confirmed=is_confirmed)
    # From here to the last rename a scheduler refuses to start: the marker names what is not there yet.
    write_marker(target.parent, state_id)
    for ending in ("", "-wal", "-shm", HEAD_ENDING):
        old = target.with_name(target.name + ending)
        if old.exists():
            make_private(old)
            old.replace(target.with_name(target.name + ".replaced" + ending))
    arriving.replace(target)
    sync_folder(target.parent)


def _copy_as(state_id: str, source: Path, arriving: Path, *, replaced_ids: Iterable[str], is_confirmed: bool) -> None:
    try:
        with source.open("rb") as reader, os.fdopen(create_private(arriving, flags=_ANEW), "wb") as writer:
            shutil.copyfileobj(reader, writer)
        with closing(sqlite3.connect(arriving, isolation_level=None)) as connection:
            parent_id = read_state_id(connection, arriving)
            set_state_id(connection, arriving, state_id)
            with writing(connection, arriving):
                begin_child(
                    connection,
                    state_id,
                    parent_id=parent_id,
                    replaced_ids=replaced_ids,
                    is_confirmed=is_confirmed,
                )
        with arriving.open("rb") as copied:
            os.fsync(copied.fileno())
    except BaseException:
        for ending in ("", "-journal"):
            arriving.with_name(arriving.name + ending).unlink(missing_ok=True)
        raise


def verified_manifest(backup: Path) -> Mapping[str, object]:
    """Return the manifest of a whole backup.

    Raises:
        RestoreRefusedError: The copy is not what the manifest says, or cannot be read.
    """
    copy = backup / DATABASE_NAME
    try:
        manifest = json.loads((backup / MANIFEST_NAME).read_text())
        found = _sha256(copy)
    except (OSError, ValueError) as error:
        cause = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise RestoreRefusedError(f"{backup} is not a whole backup ({cause}); choose another one") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
        raise RestoreRefusedError(f"{backup / MANIFEST_NAME} is not a manifest of this program; choose another backup")
    if manifest.get("sha256") != found:
        raise RestoreRefusedError(f"{copy} does not match its manifest (sha256 differs); choose another backup")
    try:
        with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as connection:
            check_recoverable(connection, copy)
    except StateDamagedError as error:
        raise RestoreRefusedError(f"{copy} is not whole; choose another backup ({error.message})") from error
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

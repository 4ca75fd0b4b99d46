"""Copies of the state: made while the scheduler runs, checked before they are believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from scheduler_service.adapters.sqlite_event_log import DATABASE_NAME, FORMAT_VERSION, check_format, lock_state
from scheduler_service.errors import RestoreRefusedError, SettingsError, StateDamagedError, StateUnwritableError

MANIFEST_NAME = "manifest.json"
MANIFEST_SCHEMA = "cotenant.scheduler-backup/1"


def back_up(state_dir: Path, target: Path) -> Mapping[str, object]:
    """Copy a state, running or not, into a new folder.

    Args:
        state_dir: Holds the event log.
        target: Must not exist or be empty.

    Returns:
        The manifest: schema, format_version, last_sequence, bytes, sha256.

    Raises:
        SettingsError: There is no state, or the target is in use.
        StateUnwritableError: The copy could not be written; nothing of it is left.
    """
    source = state_dir / DATABASE_NAME
    if not source.is_file():
        raise SettingsError(f"there is no state in {state_dir}; name the directory that the scheduler serves from")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SettingsError(f"{target} is no empty folder; name a new folder for the backup")
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _copy_state(source, target)
    except (sqlite3.Error, OSError) as error:
        for name in (DATABASE_NAME, MANIFEST_NAME):
            (target / name).unlink(missing_ok=True)
        raise StateUnwritableError(
            f"the backup cannot be written to {target} ({error}); make room there or name another folder"
        ) from error


def _copy_state(source: Path, target: Path) -> Mapping[str, object]:
    copy = target / DATABASE_NAME
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reader,
        closing(sqlite3.connect(copy)) as writer,
    ):
        reader.backup(writer, pages=1_000)
        check_format(writer, copy)
        # One file, without a write-ahead log beside it.
        writer.execute("PRAGMA journal_mode = DELETE")
        (last_sequence,) = writer.execute("SELECT value FROM counters WHERE name = 'last_sequence'").fetchone()
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "format_version": FORMAT_VERSION,
        "last_sequence": last_sequence,
        "bytes": copy.stat().st_size,
        "sha256": _sha256(copy),
    }
    (target / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def restore(backup: Path, state_dir: Path, *, force: bool) -> Mapping[str, object]:
    """Put a backup in the place of a state; the scheduler must not run.

    Args:
        backup: A folder made by `back_up`.
        state_dir: Receives the event log.
        force: Replace a state that is there; it is kept beside with the ending ".replaced".

    Returns:
        The manifest of the backup.

    Raises:
        RestoreRefusedError: The backup is not whole, or there is a state and `force` is not given.
        StateLockedError: A scheduler runs on the directory.
    """
    manifest = _verified_manifest(backup)
    descriptor = lock_state(state_dir)
    try:
        _replace(backup / DATABASE_NAME, state_dir / DATABASE_NAME, force=force)
    finally:
        os.close(descriptor)
    return manifest


def _replace(source: Path, target: Path, *, force: bool) -> None:
    if target.exists() and not force:
        raise RestoreRefusedError(f"{target} exists; add --force to replace it (it is kept as {target.name}.replaced)")
    arriving = target.with_name(target.name + ".arriving")
    shutil.copyfile(source, arriving)
    with arriving.open("rb") as copied:
        os.fsync(copied.fileno())
    for ending in ("", "-wal", "-shm"):
        old = target.with_name(target.name + ending)
        if old.exists():
            old.replace(target.with_name(target.name + ".replaced" + ending))
    arriving.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _verified_manifest(backup: Path) -> Mapping[str, object]:
    copy = backup / DATABASE_NAME
    try:
        manifest = json.loads((backup / MANIFEST_NAME).read_text())
        found = _sha256(copy)
    except (OSError, ValueError) as error:
        raise RestoreRefusedError(f"{backup} is not a whole backup ({error}); choose another one") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != MANIFEST_SCHEMA:
        raise RestoreRefusedError(f"{backup / MANIFEST_NAME} is not a manifest of this program; choose another backup")
    if manifest.get("sha256") != found:
        raise RestoreRefusedError(f"{copy} is not what its manifest says (sha256 differs); choose another backup")
    try:
        with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as connection:
            check_format(connection, copy)
    except StateDamagedError as error:
        raise RestoreRefusedError(f"{copy} is not whole; choose another backup ({error.message})") from error
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

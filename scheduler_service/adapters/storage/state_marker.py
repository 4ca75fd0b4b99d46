"""The marker of a state: a small file next to the database that records that jobs were accepted in this directory.

A database that is lost looks like a first start. The marker distinguishes them: it is on the disk before the
first job is, and it names the one database that belongs here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from pathlib import Path

from cotenant.folder_sync import sync_folder
from scheduler_service.adapters.storage.private_files import create_private
from scheduler_service.adapters.storage.sqlite_faults import disk_full
from scheduler_service.errors import StateMissingError, StateUnwritableError

MARKER_NAME = "state.json"
MARKER_SCHEMA = "cotenant.scheduler-state/1"
_BYTES_MAX = 4_096


def new_state_id() -> str:
    """Draw the id of a new or restored state."""
    return uuid.uuid4().hex


def read_marker(state_dir: Path) -> str | None:
    """Return the id of the state whose jobs were accepted here.

    Returns:
        None without a marker; "" when there is one that names nothing.

    Raises:
        StateUnwritableError: It cannot be read.
    """
    path = state_dir / MARKER_NAME
    try:
        with path.open("rb") as stream:
            content = json.loads(stream.read(_BYTES_MAX))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    except (ValueError, RecursionError):
        return ""
    state_id = content.get("state_id") if isinstance(content, dict) else None
    return state_id if isinstance(state_id, str) else ""


def write_marker(state_dir: Path, state_id: str) -> None:
    """Write the marker durably; readers see the old one or the new one.

    Raises:
        StateFullError: No space is left; the old marker stays.
        StateUnwritableError: It cannot be written otherwise; the old marker stays.
    """
    path = state_dir / MARKER_NAME
    arriving = path.with_name(f"{MARKER_NAME}.arriving")
    text = json.dumps({"schema": MARKER_SCHEMA, "state_id": state_id}) + "\n"
    try:
        with os.fdopen(create_private(arriving, flags=os.O_CREAT | os.O_TRUNC), "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        arriving.replace(path)
        sync_folder(state_dir)
    except OSError as error:
        with contextlib.suppress(OSError):
            arriving.unlink(missing_ok=True)
        raise _unusable(path, error) from error


def state_missing(state_dir: Path, finding: str) -> StateMissingError:
    """Return the error of a directory whose jobs are not there, with the ways out."""
    return StateMissingError(
        f"jobs were accepted in {state_dir}, but {finding}; put their database back, or restore the newest backup "
        f"(python -m scheduler_service restore BACKUP --state-dir {state_dir} --force); "
        "a cluster without any job begins in an empty --state-dir"
    )


def another_state(database: Path) -> StateMissingError:
    """Return the error of a database that the marker next to it does not name."""
    return state_missing(
        database.parent,
        f"{database.name} is not the database that {MARKER_NAME} names (if it is the right one, remove {MARKER_NAME})",
    )


def _unusable(path: Path, error: OSError) -> StateUnwritableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(path.parent)
    return StateUnwritableError(
        f"{path} cannot be used ({error.strerror}); look at the disk and the directory's permissions"
    )

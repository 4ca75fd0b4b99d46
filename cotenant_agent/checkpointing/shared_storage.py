"""Checkpoints that several nodes see: whether they do, and from which one the parts of a gang go on.

The first node of a gang leaves a file in the folder of the new attempt's checkpoints. Another node that does not see it
has other storage, whatever its operator says; and all ranks go on from the checkpoint that the file names.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from pathlib import Path

from cotenant_agent.checkpointing.checkpoints import Checkpoint, newest_resumable
from cotenant_agent.errors import CommandRefusedError, OperatorError
from cotenant_agent.records import GangPart
from cotenant_agent.storage.durable_files import read_json, read_text, write_json

STORAGE_FILE = ".cotenant_storage.json"
GANG_FILE = "cotenant_checkpoint_gang.json"
"""Named like the helper's own files, which are no part of any checkpoint."""
_STORAGE_ID = re.compile("[0-9a-f]{32}")
_REMEDY = "start the agents of both nodes with the same folder as --checkpoint-dir, or leave --across-nodes out"


def read_storage_id(root: Path) -> str:
    """The id of a folder of checkpoints, drawn by the first agent that shares it.

    Raises:
        OperatorError: it cannot be kept there.
    """
    path = root / STORAGE_FILE
    draft = root / f"{STORAGE_FILE}.{uuid.uuid4().hex}"
    try:
        if not path.exists():
            write_json(draft, {"storage_id": uuid.uuid4().hex})
            # Agents of other nodes may run as other users.
            draft.chmod(0o644)
            _link_once(draft, path)
    except OSError as error:
        raise OperatorError(f"{root} cannot be shared: {error}; choose another --checkpoint-dir") from error
    finally:
        draft.unlink(missing_ok=True)
    found = read_text(read_json(path), "storage_id")
    if not _STORAGE_ID.fullmatch(found):
        raise OperatorError(f"{path} names no storage; remove it while no agent runs that shares this folder")
    return found


def _link_once(draft: Path, path: Path) -> None:
    """Give a whole file its name; where two agents do so at once the first one's stays."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return


def find_resumable(part: GangPart | None, folder: Path, granted: Iterable[Path]) -> Checkpoint | None:
    """The checkpoint from which an attempt goes on; other parts of a gang take that of its first.

    Args:
        part: Of a gang across nodes; None = the attempt is here only.
        folder: Of the new attempt's checkpoints.
        granted: Folders of checkpoints that may be resumed, newest first.

    Raises:
        CommandRefusedError: This node does not see what the first one does.
    """
    if part is None or part.group_rank == 0:
        return newest_resumable(granted)
    choice = read_json(folder / GANG_FILE)
    if choice is None:
        raise CommandRefusedError(
            "CHECKPOINTS_NOT_SHARED",
            f"this node does not see in {folder} what the first node of the gang has written there; {_REMEDY}",
        )
    wanted = read_text(choice, "resume")
    if not wanted:
        return None
    found = newest_resumable(path for path in granted if _name(path) == wanted)
    if found is None:
        message = f"this node sees no whole checkpoint {wanted}, from which the first node goes on; {_REMEDY}"
        raise CommandRefusedError("CHECKPOINTS_NOT_SHARED", message)
    return found


def leave_choice(folder: Path, resume: Checkpoint | None) -> None:
    """Tell the other nodes of a gang from which checkpoint its ranks go on; raises OSError."""
    write_json(folder / GANG_FILE, {"resume": "" if resume is None else _name(resume.directory)})
    (folder / GANG_FILE).chmod(0o644)


def check_owner(folder: Path, user: int | None) -> None:
    """See that the ranks here may write where those of the first node do.

    Args:
        folder: Of the new attempt's checkpoints, which the first node has made.
        user: Who runs the job here; None = the agent's own user.

    Raises:
        CommandRefusedError: They may not.
    """
    try:
        owner = folder.stat().st_uid
    except OSError as error:
        raise CommandRefusedError("CHECKPOINTS_NOT_SHARED", f"{folder} cannot be read: {error}; {_REMEDY}") from error
    mine = os.geteuid() if user is None else user
    if owner != mine:
        raise CommandRefusedError(
            "CHECKPOINTS_NOT_SHARED",
            f"{folder} belongs to user {owner}, as whom the job runs on its first node, and here it runs as user {mine}"
            "; start the agents of both nodes with the same --job-user",
        )


def _name(directory: Path) -> str:
    """Incarnation, job and fence: the same on every node, wherever it sees the storage."""
    return "/".join(directory.parts[-3:])

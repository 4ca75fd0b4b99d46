"""Tells a job which of its parameter servers holds which block of its model: one file, the same for all its processes.

    {"servers": 2, "blocks": {"0.weight": [{"server": 0, "offset": 0, "parameters": 4096}, ...], ...}}

A block is cut where it is larger than a server's share; `offset` counts the parameters of the block in its own order.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cotenant.parameter_assignment import assign_parameters
from cotenant_agent.isolation.job_users import Owner
from cotenant_agent.records import ServerGroup

ASSIGNMENT_NAME = "parameter_assignment.json"


def leave_assignment(servers: ServerGroup | None, folder: Path, owner: Owner | None) -> None:
    """Write the assignment into the folder of an attempt, for its owner to read; raises OSError.

    Args:
        servers: None, or without blocks = there is nothing to say.
        folder: Of the attempt, made for it just now.
        owner: Who the job runs as; None = the agent's own user.
    """
    if servers is None or not servers.blocks:
        return
    assignment = assign_parameters(servers.blocks, servers.count)
    content = {"servers": servers.count, "blocks": assignment.places()}
    path = folder / ASSIGNMENT_NAME
    # A new file in a folder that the job's user may write to by now: a link left there is not followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(json.dumps(content))

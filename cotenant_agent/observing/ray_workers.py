"""Processes of Ray: of which of its jobs they are, by their variables and by what Ray itself writes where they print.

Ray starts workers ahead of any job; such a one has no job among its variables, and keeps them when it gets one. But
what a worker prints begins with lines of Ray's: its job, then the class of its actor. The program of a submitted job is
no worker, and has what Ray is to know of the job among its variables.

Source: ray 2.60, `ray/dashboard/modules/job/job_supervisor.py` and `ray/_private/ray_constants.py`, and what a node of
it wrote.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 1_000
"""So much of the beginning of a log is looked at."""
_HEX = "[0-9a-f]"
_NO_JOB: Final = "ffffffff"
_RAYLET = re.compile(r"(?:^|\0)RAY_RAYLET_PID=([0-9]{1,10})(?=\0|$)")
_JOB = re.compile(rf"(?:^|\0)RAY_JOB_ID=({_HEX}{{8}})(?=\0|$)")
_JOB_CONFIG = re.compile(r"(?:^|\0)RAY_JOB_CONFIG_JSON_ENV_VAR=([^\0]{1,100000})(?=\0|$)")
_JOB_LINE = re.compile(rf"\A:job_id:({_HEX}{{8}})\n(?::actor_name:([^\n]{{1,200}})\n)?")
_SUBMISSION = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_RANK: Final = "RayTrainWorker"


@dataclass(frozen=True, slots=True)
class RayOrigin:
    """What is known of where a worker of Ray comes from.

    Attributes:
        job: Ray's id of the job, as `02000000`; empty = not known.
        is_rank: It is one of the workers of Ray Train, which train one model together.
    """

    job: str = ""
    is_rank: bool = False


def raylet_of(environ: str) -> str:
    """Return the process that started a worker of Ray, as the worker knows it; empty = it is no worker.

    Args:
        environ: What the kernel says in /proc/PID/environ: the variables with which it was started. Children of a
            worker have them too.
    """
    raylet = _RAYLET.search(environ)
    return raylet.group(1) if raylet is not None and _JOB.search(environ) else ""


def submission_of(environ: str) -> str:
    """Return the id of the submitted job whose program this is, or was started by it; empty = of none."""
    config = _JOB_CONFIG.search(environ)
    try:
        found = json.loads(config.group(1))["metadata"]["job_submission_id"] if config is not None else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) and _SUBMISSION.fullmatch(found) else ""


def origin_by_log(head: str) -> RayOrigin | None:
    """Return what the beginning of a worker's log tells of it; None = Ray has written nothing there."""
    line = _JOB_LINE.match(head)
    return RayOrigin(job=line.group(1), is_rank=line.group(2) == _RANK) if line is not None else None


def origin_by_variables(environ: str) -> RayOrigin:
    """Return the same by its variables, which know no job where there was none when it was started."""
    job = _JOB.search(environ)
    return RayOrigin(job=job.group(1) if job is not None and job.group(1) != _NO_JOB else "")

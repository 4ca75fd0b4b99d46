"""The jobs on the devices of this machine, found from their processes: no engine is asked."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cotenant.engines.job_tag import JobTag, read_tag
from cotenant_agent.observing.job_owners import owner_of
from cotenant_agent.observing.ray_workers import (
    HEAD_BYTES,
    RayOrigin,
    origin_by_log,
    origin_by_variables,
    raylet_of,
    submission_of,
)

TAG_VARIABLE: Final = "COTENANT_JOB"
JOBS_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 1 << 20
_OUTPUTS: Final = (1, 2)
_PARENTS_MAX: Final = 64
_BEGAN_FIELD: Final = 19
"""Among those behind the program's name."""


@dataclass(slots=True)
class ForeignJob:
    """One job.

    Attributes:
        job_id: `slurm/7`, `kubernetes/UID`, `docker/ID`, or `group/PGID` where no engine is known. Of Ray
            `ray/02000000.PID` for a worker of that job, as trials and actors of one job share and slow each other as
            those of several do; `ray/02000000` for all ranks of Ray Train; `ray/SUBMISSION` for a submitted program;
            `ray/PID` where nothing tells the job.
        pids: Its processes on devices, lowest first.
        log: Where it prints; None = no file.
        tag: What its owner told of it in the environment; None = nothing.
        began_ticks: When the leader of its process group began, since the machine did; 0 = not known, or no such job.
        is_hidden: The files that it has open are not shown to this account.
    """

    job_id: str
    gpu_ids: tuple[str, ...]
    pids: tuple[int, ...]
    log: Path | None = None
    tag: JobTag | None = None
    began_ticks: int = 0
    is_hidden: bool = False


@dataclass(slots=True)
class _Found:
    """The processes of one job, so far.

    Attributes:
        ranks_of: The job of Ray of which they are a rank; empty = none.
    """

    gpu_ids: set[str] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)
    ranks_of: str = ""


class ForeignJobs:
    """Finds jobs.

    Args:
        proc: The kernel's /proc.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def find(self, users: Mapping[str, frozenset[int]]) -> list[ForeignJob]:
        """Return the jobs behind some processes, by id; a process that ends meanwhile is left out.

        Args:
            users: Processes on each device, by GPU id.
        """
        found: dict[str, _Found] = defaultdict(_Found)
        for gpu_id, pids in users.items():
            for pid in pids:
                job_id, ranks_of = self._job_of(pid)
                if job_id:
                    found[job_id].gpu_ids.add(gpu_id)
                    found[job_id].pids.add(pid)
                    found[job_id].ranks_of = ranks_of
        found = _with_joined_ranks(found)
        return [self._describe(job_id, found[job_id]) for job_id in sorted(found)[:JOBS_MAX]]

    def _describe(self, job_id: str, found: _Found) -> ForeignJob:
        pids = tuple(sorted(found.pids))
        logs = (log for pid in pids for log in (self._log_of(pid),) if log is not None)
        tags = (tag for pid in pids for tag in (self._tag_of(pid),) if tag is not None)
        return ForeignJob(
            job_id=job_id,
            gpu_ids=tuple(sorted(found.gpu_ids)),
            pids=pids,
            log=next(logs, None),
            # How many ranks train together is not told here, and a batch on many GPUs is no job of one.
            tag=None if found.ranks_of else next(tags, None),
            began_ticks=self._began_ticks(job_id),
            is_hidden=not any(os.access(self._proc / str(pid) / "fd", os.R_OK | os.X_OK) for pid in pids),
        )

    def _began_ticks(self, job_id: str) -> int:
        owner, _, name = job_id.partition("/")
        fields = self._stat(int(name)) if owner == "group" and name.isdecimal() else []
        return int(fields[_BEGAN_FIELD]) if len(fields) > _BEGAN_FIELD and fields[_BEGAN_FIELD].isdecimal() else 0

    def _job_of(self, pid: int) -> tuple[str, str]:
        """Return the job of a process, empty = it is gone; and the job of Ray of which it is a rank."""
        # Ray's workers first: those of one node share the control group of its container or of its job of Slurm.
        worker = self._ray_worker(pid)
        if worker:
            origin = self._ray_origin(pid, worker)
            job_id = f"ray/{origin.job}.{worker}" if origin.job else f"ray/{worker}"
            return job_id, f"ray/{origin.job}" if origin.is_rank else ""
        submission = submission_of(self._read(pid, "environ"))
        if submission:
            return f"ray/{submission}", ""
        owner = owner_of(self._read(pid, "cgroup"))
        if owner:
            return owner, ""
        fields = self._stat(pid)
        # Threads of the kernel are in group 0, and no job.
        return f"group/{fields[2]}" if len(fields) > 2 and fields[2] != "0" else "", ""

    def _ray_origin(self, pid: int, worker: int) -> RayOrigin:
        for one in dict.fromkeys((pid, worker)):
            log = self._log_of(one)
            origin = origin_by_log(_head_of(log)) if log is not None else None
            if origin is not None:
                return origin
        return origin_by_variables(self._read(worker, "environ"))

    def _ray_worker(self, pid: int) -> int:
        """Return the worker of Ray to which a process belongs, by its variables; it may be a child. 0 = to none."""
        raylet = raylet_of(self._read(pid, "environ"))
        for _ in range(_PARENTS_MAX if raylet else 0):
            fields = self._stat(pid)
            parent = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
            if raylet_of(self._read(parent, "environ")) != raylet:
                break
            pid = parent
        return pid if raylet else 0

    def _stat(self, pid: int) -> list[str]:
        # The name of a program may hold blanks and brackets.
        return self._read(pid, "stat").rpartition(")")[2].split()

    def _log_of(self, pid: int) -> Path | None:
        """Return the file into which a process prints, by the name under which it is found from here.

        In a container the same name may stand for another file than here: what counts is which file is open.
        """
        folder = self._proc / str(pid)
        for number in _OUTPUTS:
            opened = folder / "fd" / str(number)
            try:
                target, found = opened.readlink(), opened.stat()
            except OSError:
                continue
            for path in (target, folder / "root" / str(target).lstrip("/")):
                if stat.S_ISREG(found.st_mode) and _is_file(path, found):
                    return path
        return None

    def _tag_of(self, pid: int) -> JobTag | None:
        for entry in self._read(pid, "environ").split("\0"):
            name, _, value = entry.partition("=")
            if name == TAG_VARIABLE:
                return read_tag(value)
        return None

    def _read(self, pid: int, name: str) -> str:
        try:
            with (self._proc / str(pid) / name).open("rb") as file:
                return file.read(_FILE_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""


def _is_file(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), found)
    except OSError:
        return False


def _head_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            return file.read(HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _with_joined_ranks(found: Mapping[str, _Found]) -> dict[str, _Found]:
    """Return the same with the ranks of one training as one job: of one job of Ray, each on GPUs of its own.

    Ranks on one GPU are of several trainings, as in a search whose trials train with Ray Train.
    """
    joined = dict(found)
    ranks_of: dict[str, list[str]] = defaultdict(list)
    for job_id, one in found.items():
        if one.ranks_of:
            ranks_of[one.ranks_of].append(job_id)
    for name, job_ids in ranks_of.items():
        ranks = [found[job_id] for job_id in job_ids]
        gpu_ids = set[str]().union(*(rank.gpu_ids for rank in ranks))
        if len(ranks) > 1 and len(gpu_ids) == sum(len(rank.gpu_ids) for rank in ranks):
            for job_id in job_ids:
                del joined[job_id]
            pids = set[int]().union(*(rank.pids for rank in ranks))
            joined[name] = _Found(gpu_ids=gpu_ids, pids=pids, ranks_of=name)
    return joined

"""Jobs of the past from Slurm's accounting: what sacct writes with --parsable2.

sacct --allusers --allocations --parsable2 --noconvert --starttime 2026-01-01 --endtime 2026-02-01
          --format JobIDRaw,JobName,User,Submit,Start,End,State,AllocTRES > sacct.txt
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cotenant_simulator.errors import TraceError

COLUMNS: Final = ("JobIDRaw", "JobName", "User", "Submit", "Start", "End", "AllocTRES")
ROWS_MAX: Final = 5_000_000
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]{1,6})(?=,|$)")
_TYPED_GPUS = re.compile(r"(?:^|,)gres/gpu:[^=,]{1,100}=([0-9]{1,6})(?=,|$)")
_SHARDS = re.compile(r"(?:^|,)gres/(?:shard|mps)[:=]")
_MIG = re.compile(r"(?:^|,)gres/gpu:[^=,]{0,100}[0-9]g\.[0-9]{1,3}gb[^=,]{0,100}=")
_JOB_ID = re.compile(r"[0-9]{1,18}")
_EPOCH = re.compile(r"[0-9]{9,10}")
_NO_TIME: Final = frozenset({"", "Unknown", "None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One job that had GPUs and has ended; times in ms since 1970, by the clock of the table.

    Attributes:
        name: Jobs of one user and name are taken for equal.
        utilization_ratio: How busy its GPUs were on average, where that was measured.
        memory_bytes: Most memory on one of its GPUs, where that was measured; 0 = unknown.
    """

    job_id: str
    name: str
    user: str
    gpus: int
    submitted_at_ms: int
    started_at_ms: int
    ended_at_ms: int
    utilization_ratio: float | None = None
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Past jobs of one source.

    Attributes:
        jobs: By submission.
        skipped: Rows without meaning here, by reason.
        doubts: What the source does not tell, where that changes a figure.
        tells_submissions: Else jobs count as submitted when they began, and how long they waited is unknown.
    """

    jobs: tuple[PastJob, ...]
    skipped: dict[str, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    tells_submissions: bool = True


def read_accounting(path: Path) -> Accounting:
    """Read a table of sacct.

    Raises:
        TraceError: It cannot be read, lacks a column, or holds no job with GPUs.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
            found = _read(path, csv.reader(file, delimiter="|", quoting=csv.QUOTE_NONE))
    except (OSError, csv.Error) as error:
        cause = getattr(error, "strerror", None) or error
        raise TraceError(path, f"cannot be read as a table ({cause}); name what sacct wrote (docs/slurm.md)") from error
    if not found.jobs:
        told = "".join(f"; {count:,} rows: {reason}" for reason, count in found.skipped.items())
        raise TraceError(
            path,
            f"holds no ended job with GPUs{told}. AllocTRES must name gres/gpu (AccountingStorageTRES), and times must "
            "be written as 2026-03-01T00:00:00 (SLURM_TIME_FORMAT=standard)",
        )
    return found


def _read(path: Path, lines: Iterator[list[str]]) -> Accounting:
    header = next(lines, [])
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise TraceError(path, f"lacks the column {missing[0]}; write it with --parsable2 --format {','.join(COLUMNS)}")
    places = {name: header.index(name) for name in COLUMNS}
    skipped: Counter[str] = Counter()
    jobs = []
    for number, cells in enumerate(lines, start=2):
        if number > ROWS_MAX:
            raise TraceError(path, f"has more than {ROWS_MAX:,} lines; split it")
        if len(cells) != len(header):
            # A job's name may hold the separator itself.
            skipped["another number of cells than the header"] += 1
            continue
        found = _job({name: cells[place] for name, place in places.items()})
        if isinstance(found, PastJob):
            jobs.append(found)
        else:
            skipped[found] += 1
    jobs.sort(key=lambda job: (job.submitted_at_ms, job.job_id, job.started_at_ms))
    return Accounting(jobs=tuple(_unique(jobs, skipped)), skipped=dict(skipped))


def _job(cells: dict[str, str]) -> PastJob | str:
    """Return a job, or why a row is none."""
    if not _JOB_ID.fullmatch(cells["JobIDRaw"].strip()):
        # Without --allocations the steps of a job follow it, with its GPUs once more.
        return "a step of a job, or no job's number"
    gpus = _gpus(cells["AllocTRES"])
    if not gpus:
        return "a part of a GPU (gres/shard), shared already" if _SHARDS.search(cells["AllocTRES"]) else "no GPUs"
    if _MIG.search(cells["AllocTRES"]):
        return "a part of a GPU (MIG), shared already"
    times = [cells[name].strip() for name in ("Submit", "Start", "End")]
    if _NO_TIME.intersection(times):
        return "not ended"
    try:
        submitted, started, ended = (_milliseconds(text) for text in times)
    except ValueError:
        return "no time"
    if not submitted <= started < ended:
        return "no time with GPUs"
    return PastJob(
        job_id=cells["JobIDRaw"].strip(),
        name=cells["JobName"][:200],
        user=cells["User"][:100],
        gpus=gpus,
        submitted_at_ms=submitted,
        started_at_ms=started,
        ended_at_ms=ended,
    )


def _gpus(text: str) -> int:
    match = _GPUS.search(text)
    return int(match.group(1)) if match else sum(int(count) for count in _TYPED_GPUS.findall(text))


def _milliseconds(text: str) -> int:
    if _EPOCH.fullmatch(text):
        return int(text) * 1_000
    at = datetime.fromisoformat(text)
    # Without an offset it is local time of the cluster, of which nothing but differences counts.
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _unique(jobs: Iterable[PastJob], skipped: Counter[str]) -> Iterator[PastJob]:
    """Yield jobs with ids of their own: a requeued job has a row for each time that it ran, where all are asked for."""
    runs: Counter[str] = Counter()
    seen: set[tuple[str, int]] = set()
    for job in jobs:
        if (job.job_id, job.started_at_ms) in seen:
            skipped["told twice"] += 1
            continue
        seen.add((job.job_id, job.started_at_ms))
        runs[job.job_id] += 1
        yield replace(job, job_id=f"{job.job_id}.{runs[job.job_id] - 1}") if runs[job.job_id] > 1 else job

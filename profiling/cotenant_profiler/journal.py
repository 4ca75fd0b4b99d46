"""The results folder of a campaign: one JSON object per line, durable before the next run begins."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cotenant_profiler.errors import JournalError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.plan import Kind, Run

FILE_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One attempt of one run.

    Attributes:
        run_id: Identity of the run.
        attempt: From 0; an attempt follows a rejected one.
        kind: What was measured.
        jobs: The job, or the jobs of a group.
        repeat: Number of the repetition.
        status: ok, rejected, failed or out_of_memory.
        figures: One mapping per job: step times and utilization, or memory.
        waits_ms: Waiting per step of each job.
        references_ms: Mean step times of the references alone, (before, after): of every job of a group, of the anchor
            job otherwise.
        foreign_ratio: Share of the device core that others took.
        elsewhere_ratio: How busy the other cores were.
        flags: Reasons for doubt.
        error: Why the attempt failed; empty otherwise.
    """

    run_id: str
    attempt: int
    kind: Kind
    jobs: tuple[JobSpec, ...]
    repeat: int
    status: str
    figures: tuple[dict[str, float], ...] = ()
    waits_ms: tuple[float, ...] = ()
    references_ms: tuple[tuple[float, float], ...] = ()
    foreign_ratio: float = 0.0
    elsewhere_ratio: float = 0.0
    flags: tuple[str, ...] = ()
    error: str = ""


@dataclass(slots=True)
class Journal:
    """The records of a results folder, and the file behind them.

    Attributes:
        path: The file.
        header: What describes the whole campaign: name, device, framework, how the core was held.
        records: All records in the order of writing.
    """

    path: Path
    header: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on the disk."""
        _append_line(self.path, asdict(record))
        self.records.append(record)

    def is_finished(self, run: Run) -> bool:
        """Whether the run needs no further attempt."""
        return self.is_measured(run) or self.attempts(run) >= run.method.attempts_max

    def is_measured(self, run: Run) -> bool:
        """Whether an attempt of the run was accepted; that it does not fit is a result as well."""
        return any(record.run_id == run.run_id and record.status in {"ok", "out_of_memory"} for record in self.records)

    def attempts(self, run: Run) -> int:
        """Attempts of the run so far."""
        return sum(record.run_id == run.run_id for record in self.records)


def open_journal(folder: Path, header: dict[str, Any]) -> Journal:
    """Continue the journal of `folder`, or begin one with `header`.

    A line that a crash cut short is removed.

    Raises:
        JournalError: The folder holds another campaign, or a damaged file.
    """
    path = folder / FILE_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _append_line(path, header)
        return Journal(path, header)
    _cut_torn_line(path)
    journal = read_journal(folder)
    for key in ("campaign", "device", "framework", "share_mode"):
        if journal.header.get(key) != header.get(key):
            was = journal.header.get(key)
            raise JournalError(
                f"{folder} holds results of {key} {was!r}, not {header.get(key)!r}; choose another --out"
            )
    return journal


def read_journal(folder: Path) -> Journal:
    """Return the journal of `folder` without touching it.

    Raises:
        JournalError: There is none, or it is damaged.
    """
    path = folder / FILE_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(lines[0])
        return Journal(path, header, [_record(json.loads(line)) for line in lines[1:]])
    except FileNotFoundError:
        raise JournalError(f"{folder} has no {FILE_NAME}; run the campaign first") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise JournalError(f"{path} is damaged ({error}); restore it or begin in an empty folder") from error


def _record(content: dict[str, Any]) -> Record:
    content["kind"] = Kind(content["kind"])
    content["jobs"] = tuple(JobSpec(**job) for job in content["jobs"])
    for key in ("figures", "waits_ms", "flags"):
        content[key] = tuple(content[key])
    content["references_ms"] = tuple((before, after) for before, after in content["references_ms"])
    return Record(**content)


def _append_line(path: Path, content: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(json.dumps(content).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)

"""Past jobs from what `cotenant observe` measured: one JSON object a line, of one machine or of several in turn.

cotenant observe --seconds 86400 -o json > observed.jsonl
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.accounting import Accounting, PastJob
from cotenant_simulator.readers.json_documents import Row, number_of, read_lines, row_of, text_of

ORIGIN: Final = "cotenant observe -o json"
_FIELDS: Final = ("ended_at_ms", "window_ms")


def read_observed_jobs(path: Path) -> Accounting:
    """Read observed windows; each job lasts from its first to its last.

    Raises:
        TraceError: The file holds no window of a job that was alone.
    """
    skipped: Counter[str] = Counter()
    windows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for found in read_lines(path, ORIGIN):
        row = row_of(found)
        job_id, times = text_of(row, "job_id"), [number_of(row.get(name)) for name in _FIELDS]
        if not job_id or None in times or not all(time and 0 < time < 1e15 for time in times):
            skipped["no job's window with its time"] += 1
        else:
            windows[text_of(row, "machine"), job_id].append(row)
    shared = [key for key, rows in windows.items() if any(row.get("co_located_job_ids") for row in rows)]
    skipped["jobs that shared a GPU already"] += len(shared)
    jobs = [_job(*key, rows) for key, rows in windows.items() if key not in shared]
    if not jobs:
        told = "; ".join(f"{reason}: {count:,}" for reason, count in skipped.items() if count)
        raise TraceError(path, f"holds no job that had a GPU to itself ({told}); write it with {ORIGIN}")
    jobs.sort(key=lambda job: (job.submitted_at_ms, job.job_id))
    return Accounting(
        jobs=tuple(jobs),
        skipped={reason: count for reason, count in skipped.items() if count},
        doubts=("jobs count from their first to their last measured window; those of several GPUs are not measured",),
        tells_submissions=False,
    )


def _job(machine: str, job_id: str, rows: Sequence[Row]) -> PastJob:
    spans = [(number_of(row.get("ended_at_ms")) or 0.0, number_of(row.get("window_ms")) or 0.0) for row in rows]
    began = int(min(ended - took for ended, took in spans))
    busy = [(ratio, took) for row, (_, took) in zip(rows, spans, strict=True) if (ratio := _ratio(row)) is not None]
    memory = [number_of(row.get("memory_peak_bytes")) or 0.0 for row in rows]
    return PastJob(
        job_id=f"{machine}:{job_id}" if machine else job_id,
        # What a job is called is not observed: each is its own kind.
        name=job_id,
        user=machine,
        gpus=1,
        submitted_at_ms=began,
        started_at_ms=began,
        ended_at_ms=max(int(max(ended for ended, _ in spans)), began + 1),
        utilization_ratio=sum(ratio * took for ratio, took in busy) / sum(took for _, took in busy) if busy else None,
        memory_bytes=int(max(0.0, *memory)),
    )


def _ratio(row: Row) -> float | None:
    found = number_of(row.get("utilization_ratio"))
    return min(max(found, 0.0), 1.0) if found is not None else None

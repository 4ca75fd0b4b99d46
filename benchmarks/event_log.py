"""What durable facts cost: appends of one and of many events per commit, next to a raw flush on the same disk.

    python -m benchmarks.event_log [--directory DIRECTORY] [--seconds SECONDS]

Prints JSON. The raw figure is a write and fdatasync of 4 KiB; a disk shared with other work changes both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.core.events import JobProgressed

BATCHES = (1, 8, 64, 256)


def _record() -> LogRecord:
    return LogRecord(event=JobProgressed(at_ms=1, job_id="job-1", attempt=1, fence=1, steps_done=5, window_ms=2_000))


def _repeat(act: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return calls per second of wall time and CPU milliseconds per call."""
    calls, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        act()
        calls += 1
    wall_s = time.perf_counter() - started
    return calls / wall_s, 1_000 * (time.process_time() - cpu_started) / calls


def _measure_flush(directory: Path, seconds: float) -> dict[str, float]:
    descriptor = os.open(directory / "raw", os.O_RDWR | os.O_CREAT)

    def flush() -> None:
        os.pwrite(descriptor, b"x" * 4_096, 0)
        os.fdatasync(descriptor)

    rate, cpu_ms = _repeat(flush, seconds)
    os.close(descriptor)
    return {"commits_per_s": round(rate, 1), "cpu_ms_per_commit": round(cpu_ms, 4)}


def _measure_batch(directory: Path, size: int, seconds: float) -> dict[str, float]:
    batch = [_record() for _ in range(size)]
    with closing(SqliteEventLog(directory / f"log-{size}")) as log:
        rate, cpu_ms = _repeat(lambda: log.append(batch), seconds)
    return {
        "events_per_commit": size,
        "commits_per_s": round(rate, 1),
        "events_per_s": round(rate * size, 1),
        "cpu_ms_per_event": round(cpu_ms / size, 4),
    }


def main(directory: Path | None = None, seconds: float = 1.0) -> dict[str, object]:
    """Measure on the disk of `directory` (the temporary one by default), each figure for this long."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        return {
            "raw_flush": _measure_flush(Path(name), seconds),
            "appends": [_measure_batch(Path(name), size, seconds) for size in BATCHES],
        }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    print(json.dumps(main(arguments.directory, arguments.seconds), indent=2))


if __name__ == "__main__":
    _main()

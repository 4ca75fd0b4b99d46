"""What collected profiles cost: keeping a window, reading all of them as rows, and an agent's reading of its jobs.

    python -m benchmarks.profile_store [--stretches N]

Prints JSON: CPU seconds, best of five. Next to the store stands the same text put into one SQLite table unchecked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from cotenant.job_settings import JobSettings
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.records import AttemptKey, GpuReading, LivingAttempt, MeasuredJob
from predictor_service.profile_store.measurement_window import MeasuredJob as StoredJob
from predictor_service.profile_store.measurement_window import MeasurementWindow, encode
from predictor_service.profile_store.rows import make_rows
from predictor_service.profile_store.store import ProfileStore
from tests.support.measurement_windows import observed_window

REPEATS = 5
CALL = 100
TENANTS = 64
NOW_MS = 1_790_000_000_000


def _windows(count: int) -> Iterator[MeasurementWindow]:
    """Every fourth one co-located with another job; a job comes back after 200 others, so that no hour is full."""
    for number in range(count):
        jobs = [_job(number // 40 * 10 + part) for part in (number % 10, (number + 1) % 10)]
        yield MeasurementWindow(
            window_id=f"{number:032x}",
            campaign="collected_00000000",
            device="cpu-standin",
            job=jobs[0],
            others=tuple(jobs[1:]) if number % 4 == 3 else (),
            micro_batch_size=16,
            steps=4_000,
            window_ms=20_000 + number % 7,
            utilization_ratio=0.7,
            memory_peak_bytes=50_000_000,
        )


def _job(number: int) -> StoredJob:
    return StoredJob(
        graph_sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        settings=JobSettings(global_batch_size=16, optimizer="adam"),
    )


def _best_cpu_s(act: Callable[[Path], object]) -> float:
    """CPU seconds of the best of five, each in a folder of its own."""
    times = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as name:
            started = time.process_time()
            act(Path(name))
            times.append(time.process_time() - started)
    return min(times)


def _keep(folder: Path, windows: list[MeasurementWindow]) -> None:
    with closing(ProfileStore(folder / "profiles.sqlite")) as store:
        for start in range(0, len(windows), CALL):
            added = store.add(windows[start : start + CALL], NOW_MS + start * 60_000)
            if added.refused:
                raise RuntimeError(f"the benchmark is wrong: {added.refused[0][1]}")


def _keep_unchecked(folder: Path, windows: list[MeasurementWindow]) -> None:
    with closing(sqlite3.connect(folder / "plain.sqlite", isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE rows (id TEXT UNIQUE, content TEXT)")
        for start in range(0, len(windows), CALL):
            rows = [(item.window_id, encode(item)) for item in windows[start : start + CALL]]
            with connection:
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)


def _read(path: Path) -> None:
    with closing(ProfileStore(path)) as store:
        rows = make_rows([item.window for item in store.read() if item.window is not None])
    if not rows.pairs:
        raise RuntimeError("the benchmark is wrong: no pair")


def _look(_: Path) -> None:
    """A thousand looks of an agent with 64 jobs, two on each device, and a heartbeat after every twentieth."""
    job = MeasuredJob(graph_sha256="ab" * 32, settings=JobSettings(global_batch_size=16))
    tenants = [
        LivingAttempt(key=AttemptKey(job_id=str(number), attempt=1, fence=1), gpu_ids=(f"g{number // 2}",), job=job)
        for number in range(TENANTS)
    ]
    recorder = MeasurementWindowRecorder(campaign="collected_00000000", devices={}, make_id=lambda: "0" * 32)
    observations = [observed_window(living_attempt.key) for living_attempt in tenants]
    readings = [GpuReading(gpu_id=f"g{number}") for number in range(TENANTS // 2)]
    for look in range(1_000):
        recorder.look(tenants, look * 100)
        if look % 20 == 0:
            recorder.add(observations, readings, look * 100)


def main(windows: int = 10_000) -> dict[str, object]:
    """Measures, on the disk of the temporary folder.

    Args:
        windows: Kept and read.
    """
    made = list(_windows(windows))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        _keep(path, made)
        file_bytes = (path / "profiles.sqlite").stat().st_size
        read_s = _best_cpu_s(lambda _: _read(path / "profiles.sqlite"))
    return {
        "stretches": windows,
        "stretches_per_call": CALL,
        "keep_cpu_us_per_stretch": round(1e6 * _best_cpu_s(lambda folder: _keep(folder, made)) / windows, 1),
        "unchecked_cpu_us_per_stretch": round(
            1e6 * _best_cpu_s(lambda folder: _keep_unchecked(folder, made)) / windows, 1
        ),
        "bytes_per_stretch": round(file_bytes / windows),
        "read_as_rows_cpu_us_per_stretch": round(1e6 * read_s / windows, 1),
        "agent_look_cpu_us": round(1e6 * _best_cpu_s(_look) / 1_000, 1),
        "agent_tenants": TENANTS,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--stretches", type=int, default=10_000)
    print(json.dumps(main(parser.parse_args().windows), indent=2))

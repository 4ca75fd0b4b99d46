"""Kinds of jobs from a folder of our own measurements: solo.csv and pairs.csv in the profile schema.

Rows with status ok count; a job's step time, memory and utilization are the medians of its runs alone, the slowdown of
a pair the median of its runs. An unmeasured pair is unknown. The files may be compressed (.csv.gz).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, read_rows
from cotenant_simulator.errors import TraceError
from cotenant_simulator.truth.kinds import Kind
from cotenant_simulator.truth.trace import JOB_MEMORY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One job key on one device type.

    Attributes:
        key: Of the measurements.
        kind: What was measured alone, on one GPU.
        graph_sha256: Of its ONNX graph; empty = the set has none.
        settings: As the predictor takes them.
    """

    key: str
    kind: Kind
    graph_sha256: str
    settings: JobSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJobs:
    """A folder of measurements.

    Attributes:
        device: Device type measured.
        jobs: In the order of their keys.
        slowdowns: By victim key, other key and device type.
    """

    device: str
    jobs: tuple[MeasuredJob, ...]
    slowdowns: Mapping[tuple[str, str, str], float]


def read_measured_jobs(folder: Path) -> MeasuredJobs:
    """Read a folder; where it holds several device types, the first by name.

    Raises:
        TraceError: It is no such folder, or holds no usable row.
    """
    try:
        solo = [row for row in read_rows(_file(folder, "solo.csv"), SoloRow) if row.status == "ok" and row.gpus == 1]
        pairs = [row for row in read_rows(_file(folder, "pairs.csv"), PairRow) if row.status == "ok"]
    except (OSError, ProfileSchemaError) as error:
        cause = getattr(error, "strerror", None) or error
        raise TraceError(
            folder, f"is no folder of measurements ({cause}); name one with solo.csv and pairs.csv"
        ) from error
    timed = [row for row in solo if row.step_ms_mean is not None]
    if not timed:
        raise TraceError(folder, "holds no row with status ok and a step time of a job on one GPU; name another folder")
    device = min(row.device for row in timed)
    runs: dict[str, list[SoloRow]] = {}
    for row in timed:
        if row.device == device:
            runs.setdefault(row.job_key, []).append(row)
    jobs = tuple(_job(key, rows) for key, rows in sorted(runs.items()))
    return MeasuredJobs(device=device, jobs=jobs, slowdowns=_slowdowns(pairs, device))


def _file(folder: Path, name: str) -> Path:
    """Return a file of the folder, compressed where only that is there."""
    plain, packed = folder / name, folder / f"{name}.gz"
    return packed if packed.is_file() and not plain.is_file() else plain


def _job(key: str, rows: list[SoloRow]) -> MeasuredJob:
    first = rows[0]
    memory = [row.memory_peak_bytes for row in rows if row.memory_peak_bytes is not None]
    busy = [row.utilization_ratio for row in rows if row.utilization_ratio is not None]
    step_ms = median([row.step_ms_mean for row in rows if row.step_ms_mean is not None])
    settings = JobSettings(
        global_batch_size=first.batch,
        mode=first.mode,
        precision=first.precision,
        optimizer=first.optimizer,
        input_wait_ratio=first.input_wait_ratio,
    )
    kind = Kind(
        step_ms_by_gpus={1: step_ms},
        batch=first.batch,
        memory_bytes=int(median(memory)) if memory else JOB_MEMORY_BYTES,
        utilization_ratio=min(median(busy), 1.0) if busy else 0.6,
    )
    return MeasuredJob(key=key, kind=kind, graph_sha256=first.graph_sha256 or "", settings=settings)


def _slowdowns(pairs: list[PairRow], device: str) -> dict[tuple[str, str, str], float]:
    seen: dict[tuple[str, str, str], list[float]] = {}
    for row in pairs:
        if row.device == device and len(row.other_job_keys) == 1 and row.slowdown_ratio is not None:
            seen.setdefault((row.victim_job_key, row.other_job_keys[0], device), []).append(row.slowdown_ratio)
    return {pair: max(median(ratios), 0.0) for pair, ratios in seen.items()}

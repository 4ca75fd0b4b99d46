"""Gavel's job lists, with its measured step rates alone and co-located.

The tables lie next to the list: throughput_isolated.csv and throughput_colocated.csv. A pair that was measured with no
progress does not fit into memory; a pair that is not there was not measured, so it is not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.job_lists import GPUS_MAX, in_order
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.rows import Row, read_rows
from cotenant_simulator.truth.kinds import DOES_NOT_FIT, GroundTruth, Kind
from cotenant_simulator.truth.trace import JOB_MEMORY_BYTES, Trace, TraceJob

ISOLATED_FILE = "throughput_isolated.csv"
COLOCATED_FILE = "throughput_colocated.csv"
REFERENCE_DEVICE = "v100"


def read_gavel(path: Path, consent: Consent) -> Trace:
    """Read a job list of Gavel.

    Raises:
        TraceError: A line is wrong, a table is not next to the list, or has no rate for a job.
    """
    rates = _rates(path.parent / ISOLATED_FILE)
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[tuple[Row, TraceJob]] = []
    columns = ("job_id", "model", "batch_size", "total_steps", "num_gpus", "submit_time_s")
    for row in read_rows(path, columns):
        gpus = row.integer("num_gpus", least=1, most=GPUS_MAX)
        model, batch = row.text("model"), _batch(row, "batch_size")
        if (REFERENCE_DEVICE, model, batch, gpus) not in rates:
            raise row.error(f"{ISOLATED_FILE} has no {REFERENCE_DEVICE} rate for {model}, batch {batch}, {gpus} GPUs")
        key = _key(model, batch, gpus)
        total = max(int(float(batch or 1)), 1) * gpus
        for device in {device for device, *_ in rates}:
            steps_per_s = rates.get((device, model, batch, gpus))
            if steps_per_s is not None:
                kinds[key, device] = _kind(steps_per_s, gpus, total)
        request = consent.request(
            f"job-{row.text('job_id')}",
            key=key,
            gpus=gpus,
            batch=total,
            steps_total=row.integer("total_steps", least=1),
        )
        jobs.append((row, TraceJob(submitted_at_ms=row.milliseconds("submit_time_s"), request=request)))
    used = {key for key, _ in kinds}
    truth = GroundTruth(
        kinds=kinds, slowdowns=_slowdowns(path.parent / COLOCATED_FILE, used), predicts_unmeasured=False
    )
    return Trace(format="gavel", jobs=in_order(path, jobs), truth=truth, device=REFERENCE_DEVICE)


def _kind(steps_per_s: Mapping[bool, float], gpus: int, batch: int) -> Kind:
    consolidated = steps_per_s.get(True) or steps_per_s[False]
    spread = {gpus: 1_000 / steps_per_s[False]} if steps_per_s.get(False) else {}
    return Kind(
        step_ms_by_gpus={gpus: 1_000 / consolidated},
        spread_step_ms_by_gpus=spread,
        batch=batch,
        memory_bytes=JOB_MEMORY_BYTES,
    )


def _rates(path: Path) -> dict[tuple[str, str, str, int], dict[bool, float]]:
    """Return steps per second by device, model, batch and GPUs; True = on as few servers as possible."""
    if not path.is_file():
        raise TraceError(path, "is missing; Gavel's job lists need the table of step rates next to them")
    found: dict[tuple[str, str, str, int], dict[bool, float]] = {}
    for row in read_rows(path, ("gpu_type", "consolidated", "model", "batch_size", "num_gpus", "steps_per_s")):
        rate = row.number("steps_per_s")
        if rate > 0:
            shape = (row.text("gpu_type"), row.text("model"), _batch(row, "batch_size"), row.integer("num_gpus"))
            found.setdefault(shape, {})[row.text("consolidated") == "1"] = rate
    return found


def _slowdowns(path: Path, used: set[str]) -> dict[tuple[str, str, str], float]:
    """Return the slowdown ratios among the kinds of this trace, by victim, other and device."""
    found: dict[tuple[str, str, str], float] = {}
    if not path.is_file():
        return found
    columns = ("gpu_type", "slowdown_a", "slowdown_b", *(f"{name}_{side}" for side in "ab" for name in _SHAPE))
    for row in read_rows(path, columns):
        keys = [
            _key(row.text(f"model_{side}"), _batch(row, f"batch_size_{side}"), row.integer(f"num_gpus_{side}"))
            for side in "ab"
        ]
        if not used.issuperset(keys):
            continue
        for side, victim, other in (("a", *keys), ("b", *reversed(keys))):
            text = row.text(f"slowdown_{side}")
            ratio = row.number(f"slowdown_{side}") - 1.0 if text else DOES_NOT_FIT
            found[victim, other, row.text("gpu_type")] = max(ratio, 0.0)
    return found


_SHAPE = ("model", "batch_size", "num_gpus")


def _key(model: str, batch: str, gpus: int) -> str:
    return f"{model}/batch {batch or 'own'}/{gpus} GPUs"


def _batch(row: Row, column: str) -> str:
    """Return a batch size in one spelling; models that choose their own have none."""
    return f"{row.integer(column)}" if row.text(column) else ""

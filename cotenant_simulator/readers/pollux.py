"""Workloads of the Pollux artifact under the live engine's rules, with its measured step times.

A job has no duration: it does the optimizer steps that its batch needs to its last epoch. The profiles lie in a
folder `profiles` above the workload. A job allows every number of GPUs that its application was measured on, as few
nodes as possible, with at least the fewest samples per GPU that the profiles allow; the batch stays its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.job_lists import GPUS_MAX, in_order
from cotenant_simulator.readers.pollux_profiles import find_profiles
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.rows import Row, read_rows
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import JOB_MEMORY_BYTES, Trace, TraceJob

GPUS_PER_NODE = 4
"""Of the cluster that was measured."""
Point = tuple[float, float, float]
"""Samples per GPU, step time in s, part of it that waits for the other GPUs in s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an application was allowed to do.

    Attributes:
        first_batch: Samples per step that it begins with.
        most_samples: Most that a GPU takes in one pass.
        fewest_samples: Fewest that a GPU may have of a step.
        gpus_max: Most GPUs; 0 = as many as have samples.
    """

    first_batch: float
    most_samples: float
    fewest_samples: float = 1.0
    gpus_max: int = 0


def read_pollux(path: Path, consent: Consent, *, profiles: Path | None = None, is_elastic: bool = True) -> Trace:
    """Read a workload.

    Args:
        path: The file.
        consent: What owners consent to.
        profiles: Folder of the measured profiles; None = the nearest `profiles` above the workload.
        is_elastic: Jobs allow other numbers of GPUs than their own.

    Raises:
        TraceError: A line is wrong, or the profiles lack an application.
    """
    profiles = profiles or find_profiles(path)
    for name in ("applications.csv", "work.csv", "placements.csv", "scalability.csv"):
        if not (profiles / name).is_file():
            raise TraceError(profiles / name, "is missing; the workload's profiles contain how long its jobs run")
    steps, times = _steps(profiles / "work.csv"), _step_times(profiles)
    bounds = _bounds(profiles / "applications.csv")
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[tuple[Row, TraceJob]] = []
    for row in read_rows(path, ("job_id", "submit_time_s", "application", "num_gpus", "batch_size")):
        application, gpus = row.text("application"), row.integer("num_gpus", least=1, most=GPUS_MAX)
        batch = row.integer("batch_size", least=1, most=10**9)
        if application not in steps or application not in bounds:
            raise row.error(f"application {application!r} has no profile; there are {', '.join(sorted(steps))}")
        key = f"{application}/batch {batch}/{gpus} GPUs"
        if (key, EVERY_DEVICE) not in kinds:
            known = times if is_elastic else {place: points for place, points in times.items() if place[1] == gpus}
            kinds[key, EVERY_DEVICE] = _kind(row, known, bounds[application])
        total = max(round(_between(steps[application], batch)), 1)
        request = consent.request(row.text("job_id"), key=key, gpus=gpus, batch=batch, steps_total=total)
        request = replace(request, allowed_gpus=tuple(kinds[key, EVERY_DEVICE].step_ms_by_gpus))
        jobs.append((row, TraceJob(submitted_at_ms=row.milliseconds("submit_time_s"), request=request)))
    return Trace(format="pollux", jobs=in_order(path, jobs), truth=GroundTruth(kinds=kinds))


def _steps(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the optimizer steps to the last epoch by application, as points over the batch."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in read_rows(path, ("application", "batch_size", "iterations_to_finish")):
        point = (row.number("batch_size"), row.number("iterations_to_finish"))
        found.setdefault(row.text("application"), []).append(point)
    return {application: sorted(points) for application, points in found.items()}


def _step_times(profiles: Path) -> dict[tuple[str, int], list[Point]]:
    """Return step times by application and GPUs on as few nodes as possible, over the samples per GPU."""
    found: dict[tuple[str, int], list[Point]] = {}
    columns = ("local_batch_size", "step_time_s", "sync_time_s")
    for row in read_rows(profiles / "placements.csv", ("application", "placement", *columns)):
        on_nodes = [int(digit) for digit in row.text("placement")]
        gpus = sum(on_nodes)
        if len(on_nodes) == -(-gpus // GPUS_PER_NODE):
            found.setdefault((row.text("application"), gpus), []).append(_point(row))
    measured = set(found)
    for row in read_rows(profiles / "scalability.csv", ("application", "num_nodes", "num_replicas", *columns)):
        place = (row.text("application"), row.integer("num_replicas"))
        if place not in measured and row.integer("num_nodes") == -(-place[1] // GPUS_PER_NODE):
            found.setdefault(place, []).append(_point(row))
    return {place: sorted(points) for place, points in found.items()}


def _point(row: Row) -> Point:
    return row.number("local_batch_size"), row.number("step_time_s"), row.number("sync_time_s")


def _bounds(path: Path) -> dict[str, Bounds]:
    columns = ("application", "init_batch_size", "max_local_batch_size")
    return {
        row.text("application"): Bounds(
            first_batch=row.number("init_batch_size"),
            most_samples=row.number("max_local_batch_size", least=1),
            fewest_samples=row.number("min_local_batch_size", least=1) if row.cells.get("min_local_batch_size") else 1,
            gpus_max=row.integer("forced_max_gpus", least=1) if row.cells.get("forced_max_gpus") else 0,
        )
        for row in read_rows(path, columns)
    }


def _kind(row: Row, times: Mapping[tuple[str, int], Sequence[Point]], bounds: Bounds) -> Kind:
    """Return what a job needs by number of GPUs; passes are part of its step times, so that its memory stays."""
    application, gpus, batch = row.text("application"), row.integer("num_gpus"), row.integer("batch_size")
    most = bounds.gpus_max or int(batch // bounds.fewest_samples)
    counts = {gpus, *(count for name, count in times if name == application and count <= most)}
    step_ms = {
        count: _step_ms(row, times.get((application, count), ()), batch / count, _passes(bounds, batch, count))
        for count in sorted(counts)
    }
    return Kind(
        step_ms_by_gpus=step_ms,
        batch=batch,
        memory_bytes=JOB_MEMORY_BYTES,
        fixed_memory_ratio=0.5 if len(step_ms) == 1 else 1.0,
    )


def _passes(bounds: Bounds, batch: int, gpus: int) -> int:
    """Return the passes of one optimizer step: as few as the bound allows, two for one GPU beyond the first batch."""
    passes = max(ceil(batch / gpus / bounds.most_samples), 1)
    return max(passes, 2) if gpus == 1 and batch > bounds.first_batch else passes


def _step_ms(row: Row, points: Sequence[Point], samples: float, passes: int) -> float:
    """Return the time of one optimizer step in ms; only the last pass waits for the other GPUs."""
    if not points:
        raise row.error(f"no step time was measured for {row.text('application')} on {row.text('num_gpus')} GPUs")
    local = ceil(samples / passes)
    step_s = _between([(size, step) for size, step, _ in points], local)
    sync_s = _between([(size, sync) for size, _, sync in points], local)
    return 1_000 * (step_s + (passes - 1) * max(step_s - sync_s, 0.0))


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate linearly; outside the measured range the nearest point holds."""
    position = bisect_left(points, (at, 0.0))
    if position == 0:
        return points[0][1]
    if position == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[position - 1], points[position]
    return low + (high - low) * (at - left) / (right - left)

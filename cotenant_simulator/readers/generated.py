"""Workloads that are drawn: a TOML file sets how jobs arrive, how long they are and what they are; a seed draws them.

Example:
    jobs = 1000
    seed = 1
    slowdown_ratio = 0.5

    [arrival]
    kind = "poisson"            # or "fixed", or "at_once"
    mean_s = 60.0

    [[classes]]
    weight = 3.0
    gpus = [1, 2]
    length = "exponential"      # or "fixed", or "uniform"
    mean_s = 600.0
    step_ms = 100.0
    memory_gib = 6.0
    utilization_ratio = 0.6
    batch = 32

With `dataset = "FOLDER"` (relative to the file) every job is one of the measured jobs of that folder instead, chosen
with equal chance: step time, memory, utilization, slowdowns and graph are the measured ones, on one GPU.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.measured_jobs import MeasuredJob, read_measured_jobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import GIB, Trace, TraceJob

JOBS_MAX = 1_000_000
_TOP = {"jobs", "seed", "slowdown_ratio", "dataset", "arrival", "classes"}
_ARRIVAL = {"kind", "mean_s"}
_CLASS = {
    "weight",
    "gpus",
    "length",
    "mean_s",
    "step_ms",
    "memory_gib",
    "utilization_ratio",
    "batch",
    "fixed_step_ratio",
    "name",
}


def read_generated(path: Path, consent: Consent, *, seed: int | None = None) -> Trace:
    """Draw the workload that a TOML file describes.

    Args:
        path: The file.
        consent: What owners consent to.
        seed: Instead of the file's own.

    Raises:
        TraceError: The file has an entry without a meaning.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(path, f"cannot be read as TOML: {error}") from error
    _require_known(path, data, _TOP, "the file")
    own_seed = int(_number(path, data, "seed", 0, least=0))
    return draw(path, data, consent, seed=own_seed if seed is None else seed)


def draw(path: Path, data: Mapping[str, Any], consent: Consent, *, seed: int) -> Trace:
    """Draw a workload; every quantity has its own random generator, so that changing one leaves the others.

    Raises:
        TraceError: The description has an entry without a meaning.
    """
    classes = data.get("classes")
    if not isinstance(classes, list) or not classes:
        raise TraceError(path, "has no [[classes]] table; write at least one (docs/simulate.md)")
    for number, one in enumerate(classes, start=1):
        _require_known(path, one, _CLASS, f"[[classes]] table {number}")
    arrival = data.get("arrival", {})
    _require_known(path, arrival, _ARRIVAL, "[arrival]")
    count = int(_number(path, data, "jobs", 100, least=1, most=JOBS_MAX))
    weights = [_number(path, one, "weight", 1.0) for one in classes]
    if not sum(weights):
        raise TraceError(path, "has only classes of weight 0; give one a positive weight")
    measured = read_measured_jobs(path.parent / str(data["dataset"])) if "dataset" in data else None
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[TraceJob] = []
    at_ms = 0.0
    generators = {name: Random(f"{seed}/{name}") for name in ("arrival", "class", "gpus", "length")}
    for index in range(count):
        at_ms += _gap_ms(path, arrival, generators["arrival"], is_first=index == 0)
        place = generators["class"].choices(range(len(classes)), weights=weights)[0]
        job_id = f"job-{index:06d}"
        if measured is not None:
            chosen = generators["gpus"].choice(measured.jobs)
            length_ms = _length_ms(path, classes[place], generators["length"])
            kinds[chosen.key, measured.device] = chosen.kind
            jobs.append(_measured_job(chosen, job_id, round(at_ms), length_ms, consent))
        else:
            jobs.append(_job(path, classes[place], place, job_id, round(at_ms), kinds, generators, consent))
    ratio = _number(path, data, "slowdown_ratio", 0.5, most=1e3)
    if measured is not None:
        truth = GroundTruth(kinds=kinds, slowdowns=measured.slowdowns, slowdown_ratio=ratio, predicts_unmeasured=False)
        return Trace(format="generated", jobs=jobs, truth=truth, device=measured.device)
    truth = GroundTruth(kinds=kinds, slowdown_ratio=ratio)
    return Trace(format="generated", jobs=jobs, truth=truth)


def _gap_ms(path: Path, arrival: Mapping[str, Any], generator: Random, *, is_first: bool) -> float:
    kind, mean_ms = arrival.get("kind", "poisson"), 1_000 * _number(path, arrival, "mean_s", 60.0)
    if kind == "poisson":
        return generator.expovariate(1.0) * mean_ms
    if kind == "fixed":
        return 0.0 if is_first else mean_ms
    if kind == "at_once":
        return 0.0
    raise TraceError(path, f"arrival kind {kind!r} is not poisson, fixed or at_once")


def _measured_job(chosen: MeasuredJob, job_id: str, at_ms: int, length_ms: float, consent: Consent) -> TraceJob:
    """Return a job that is one of the measured ones, for about so long."""
    step_ms = chosen.kind.step_ms(gpus=1)
    request = consent.request(
        job_id, key=chosen.key, gpus=1, batch=chosen.kind.batch, steps_total=max(round(length_ms / step_ms), 1)
    )
    return TraceJob(submitted_at_ms=at_ms, request=request, graph_sha256=chosen.graph_sha256, settings=chosen.settings)


def _job(  # noqa: PLR0917 - one line of the loop above
    path: Path,
    one: Mapping[str, Any],
    place: int,
    job_id: str,
    at_ms: int,
    kinds: dict[tuple[str, str], Kind],
    generators: Mapping[str, Random],
    consent: Consent,
) -> TraceJob:
    widths = one.get("gpus", [1])
    if not isinstance(widths, list) or not widths or not all(type(width) is int and width > 0 for width in widths):
        raise TraceError(path, f"gpus of [[classes]] table {place + 1} must be a list of positive counts")
    gpus = generators["gpus"].choice(widths)
    step_ms = _number(path, one, "step_ms", 1_000.0, least=1e-3)
    length_ms = _length_ms(path, one, generators["length"])
    batch = int(_number(path, one, "batch", 1, least=1)) * gpus
    key = f"{one.get('name', f'class {place}')}/{gpus} GPUs"
    if (key, EVERY_DEVICE) not in kinds:
        kinds[key, EVERY_DEVICE] = Kind(
            step_ms_by_gpus={gpus: step_ms},
            batch=batch,
            fixed_step_ratio=_number(path, one, "fixed_step_ratio", 0.1, most=1.0),
            memory_bytes=int(_number(path, one, "memory_gib", 6.0) * GIB),
            utilization_ratio=_number(path, one, "utilization_ratio", 0.6, most=1.0),
        )
    steps = max(round(length_ms / step_ms), 1)
    request = consent.request(job_id, key=key, gpus=gpus, batch=batch, steps_total=steps)
    return TraceJob(submitted_at_ms=at_ms, request=request)


def _length_ms(path: Path, one: Mapping[str, Any], generator: Random) -> float:
    kind, mean_ms = one.get("length", "exponential"), 1_000 * _number(path, one, "mean_s", 600.0)
    if kind == "exponential":
        return generator.expovariate(1.0) * mean_ms
    if kind == "fixed":
        return mean_ms
    if kind == "uniform":
        return generator.uniform(0.0, 2.0) * mean_ms
    raise TraceError(path, f"length {kind!r} is not exponential, fixed or uniform")


def _require_known(path: Path, table: object, known: set[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise TraceError(path, f"{where} must be a table")
    unknown = sorted(table.keys() - known)
    if unknown:
        raise TraceError(path, f"{where} has unknown {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _number(
    path: Path, table: Mapping[str, Any], name: str, default: float, *, least: float = 0.0, most: float = 1e12
) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise TraceError(path, f"{name} must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)

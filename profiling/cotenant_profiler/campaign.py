"""Campaign files: what is measured, how, and in which order of chance."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cotenant_profiler import zoo
from cotenant_profiler.errors import InvalidCampaignError, UnknownArchitectureError
from cotenant_profiler.job_spec import JobSpec

SCALES = ("small", "full", "all")
SHARE_MODES = ("time_slicing", "mps")
_COUNT_MAX = 10_000
_BATCH_MAX = 1_000_000
_SEED_MAX = (1 << 63) - 1
_METHOD_MINIMA = {
    "window_ms": 100,
    "attempts_max": 1,
    "warm_up_steps": 1,
    "memory_steps": 2,
    "reference_ms": 50,
    "trace_samples": 10,
    "trace_ms_max": 100,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How a run is measured; part of the identity of every run.

    Attributes:
        warm_up_steps: Steps before a job is measured for the first time.
        warm_up_ms: Time of the same, at least.
        warm_up_ms_max: When a job is measured although its step times are not steady.
        warm_in_ms: Time for which the jobs of a group run together before the window.
        window_ms: Length of the measurement.
        reference_ms: Length of the reference windows right before and after it: of each job alone, or of the anchor
            job when the run itself is of a job alone.
        tail_ms: Time for which the jobs of a group go on after the window, so that none sees another one's end.
        memory_steps: Steps before the peak of memory is read.
        trace_samples: Random instants at which a trace of memory is sampled.
        trace_steps: Steps that these instants cover, at least.
        trace_ms_max: Time in which the instants must fit, also of a job with longer steps.
        foreign_ratio_max: Foreign share of the device core above which a run is rejected.
        attempts_max: Attempts of a run, repetitions after a rejection included.
        speed_change_ratio_max: Change of a reference from before to after above which a run is rejected.
        anchor_drift_ratio_max: Deviation of the anchor job from its median above which a run alone is rejected.
    """

    warm_up_steps: int = 10
    warm_up_ms: int = 700
    warm_up_ms_max: int = 6_000
    warm_in_ms: int = 400
    window_ms: int = 1_800
    reference_ms: int = 300
    tail_ms: int = 100
    memory_steps: int = 12
    trace_samples: int = 100
    trace_steps: int = 20
    trace_ms_max: int = 6_000
    foreign_ratio_max: float = 0.05
    attempts_max: int = 3
    speed_change_ratio_max: float = 0.1
    anchor_drift_ratio_max: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign: jobs to be measured alone and together on one device.

    Attributes:
        name: Written into every row.
        device: Device type, e.g. cpu-standin.
        seed: Decides the order of the runs.
        method: How each run is measured.
        core_jobs: Jobs that are measured together, all unordered pairs of them; the first is the anchor.
        solo_jobs: Jobs that are measured alone only.
        solo_repeats: Measurements of each core job alone.
        solo_first: Whether all jobs are measured alone before any two together.
        pair_repeats: Measurements of each pair in `repeated_pairs`; other pairs are measured once.
        repeated_pairs: How many pairs are repeated, for the noise floor.
        groups: Further groups of jobs measured together.
        triples: How many groups of three core jobs the seed chooses.
        traces: Whether the memory of every core job is sampled over time.
        share_mode: How co-located jobs share the device: time_slicing, or mps where a probe proves it.
    """

    name: str
    device: str
    seed: int
    method: Method
    core_jobs: tuple[JobSpec, ...]
    solo_jobs: tuple[JobSpec, ...] = ()
    solo_repeats: int = 3
    solo_first: bool = False
    pair_repeats: int = 3
    repeated_pairs: int = 0
    groups: tuple[tuple[JobSpec, ...], ...] = ()
    triples: int = 0
    traces: bool = False
    share_mode: str = "time_slicing"


def read_campaign(path: Path) -> Campaign:
    """Return the campaign of a TOML file.

    Raises:
        InvalidCampaignError: The file is missing or cannot be carried out; the message names the key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidCampaignError(f"{path} cannot be read: {error.strerror}; profiling/campaigns has some") from error
    except (ValueError, RecursionError) as error:
        raise InvalidCampaignError(f"{path}: is no TOML: {error}") from error
    try:
        return parse_campaign(document)
    except (InvalidCampaignError, UnknownArchitectureError) as error:
        raise InvalidCampaignError(f"{path}: {error}") from error


def parse_campaign(document: Mapping[str, Any]) -> Campaign:
    """Return the campaign that a parsed TOML document describes.

    Raises:
        InvalidCampaignError: A key is unknown, missing or has a wrong value.
    """
    known = {
        "name",
        "device",
        "share_mode",
        "seed",
        "method",
        "core_jobs",
        "solo",
        "pairs",
        "triples",
        "traces",
        "groups",
    }
    _refuse_unknown(document, known, "the campaign")
    jobs = _table(document, "core_jobs")
    core = {str(key): _job(value, f"core_jobs.{key}") for key, value in jobs.items()}
    if not core:
        raise InvalidCampaignError("core_jobs is empty; name at least one job, e.g. [core_jobs.mlp]")
    solo = _table(document, "solo")
    _refuse_unknown(solo, {"repeats", "architectures", "wait_ratios", "batches", "first"}, "solo")
    pairs = _table(document, "pairs")
    _refuse_unknown(pairs, {"repeats", "repeated"}, "pairs")
    triples = _table(document, "triples")
    _refuse_unknown(triples, {"count"}, "triples")
    return Campaign(
        name=_text(document, "name"),
        device=_text(document, "device"),
        seed=_number(document, "seed", 0, minimum=0, maximum=_SEED_MAX),
        method=_method(_table(document, "method")),
        core_jobs=tuple(core.values()),
        solo_jobs=_sweep(solo, core.values()),
        solo_repeats=_number(solo, "repeats", 3, minimum=1),
        solo_first=_flag(solo, "first", "solo.first"),
        pair_repeats=_number(pairs, "repeats", 3, minimum=1),
        repeated_pairs=_number(pairs, "repeated", 0, minimum=0),
        groups=tuple(_group(names, core) for names in _list(document, "groups", "groups")),
        triples=_number(triples, "count", 0, minimum=0),
        traces=_flag(document, "traces", "traces"),
        share_mode=_share_mode(document.get("share_mode", "time_slicing")),
    )


def _refuse_unknown(table: Mapping[str, Any], known: set[str], place: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise InvalidCampaignError(f"{place} has unknown keys: {', '.join(unknown)}; known: {', '.join(sorted(known))}")


def _table(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise InvalidCampaignError(f"{key} must be a table, not {value!r}")
    return value


def _list(table: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise InvalidCampaignError(f"{place} must be a list, not {value!r}")
    return value


def _flag(table: Mapping[str, Any], key: str, place: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InvalidCampaignError(f"{place} must be true or false, not {value!r}")
    return value


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidCampaignError(f"{key} must be a text that is not empty")
    return value


def _number(table: Mapping[str, Any], key: str, default: int, *, minimum: int, maximum: int = _COUNT_MAX) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise InvalidCampaignError(
            f"{key} must be a whole number of at least {minimum} and at most {maximum}, not {value!r}"
        )
    return value


def _share_mode(value: object) -> str:
    if value not in SHARE_MODES:
        raise InvalidCampaignError(f"share_mode must be one of {', '.join(SHARE_MODES)}, not {value!r}")
    return str(value)


def _method(table: Mapping[str, Any]) -> Method:
    kinds = {field.name: type(field.default) for field in fields(Method)}
    _refuse_unknown(table, set(kinds), "method")
    values: dict[str, Any] = {}
    for key, value in table.items():
        least = _METHOD_MINIMA.get(key, 0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < math.inf:
            raise InvalidCampaignError(f"method.{key} must be a number of at least {least}, not {value!r}")
        values[key] = float(value) if kinds[key] is float else int(value)
    return Method(**values)


def _job(table: object, place: str) -> JobSpec:
    if not isinstance(table, dict):
        raise InvalidCampaignError(f"{place} must be a table with architecture and batch")
    _refuse_unknown(table, {"architecture", "batch", "input_wait_ratio"}, place)
    wait_ratio = table.get("input_wait_ratio", 0.0)
    if not isinstance(wait_ratio, int | float) or not 0 <= wait_ratio < 1:
        raise InvalidCampaignError(f"{place}.input_wait_ratio must be at least 0 and below 1, not {wait_ratio!r}")
    architecture = zoo.find(_text(table, "architecture")).name
    batch = _number(table, "batch", 0, minimum=1, maximum=_BATCH_MAX)
    return JobSpec(architecture=architecture, batch=batch, input_wait_ratio=float(wait_ratio))


def _sweep(table: Mapping[str, Any], core: Collection[JobSpec]) -> tuple[JobSpec, ...]:
    """The named architectures (or a scale of the zoo) with their largest batches, and with waits at a middle batch."""
    wanted = table.get("architectures", [])
    names = zoo.names(wanted) if wanted in SCALES else _list(table, "architectures", "solo.architectures")
    wait_ratios = _list(table, "wait_ratios", "solo.wait_ratios")
    jobs: dict[JobSpec, None] = {}
    for architecture in (zoo.find(str(name)) for name in names):
        for batch in architecture.batches[-_number(table, "batches", 99, minimum=1) :]:
            jobs[JobSpec(architecture=architecture.name, batch=batch)] = None
        for wait_ratio in wait_ratios:
            batch = architecture.batches[len(architecture.batches) // 2]
            jobs[_job({"architecture": architecture.name, "batch": batch, "input_wait_ratio": wait_ratio}, "solo")] = (
                None
            )
    return tuple(job for job in jobs if job not in set(core))


def _group(names: object, core: Mapping[str, JobSpec]) -> tuple[JobSpec, ...]:
    if not isinstance(names, list) or len(names) < 2 or not all(name in list(core) for name in names):
        raise InvalidCampaignError(f"a group must list two or more of: {', '.join(core)}; not {names!r}")
    return tuple(sorted(core[name] for name in names))

"""Measurements of a contribution as rows of the profile schema, in text cells."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cotenant import profile_schema
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow, format_row
from cotenant_profiler import zoo
from cotenant_profiler.bench import Bench, Load, Measurement
from cotenant_profiler.campaign import Method
from cotenant_profiler.errors import OutOfMemoryError, ProfilerError
from cotenant_profiler.job_spec import JobSpec

FOREIGN_LOAD: Final = "foreign_load"
_METHOD: Final = Method(window_ms=1_200, warm_up_ms=300, warm_up_ms_max=2_000, reference_ms=400)


def settings_of(name: str) -> JobSettings:
    """Returns how a network of the zoo is trained: at the batch in the middle of its range."""
    return JobSettings(global_batch_size=_job(name).batch, optimizer=zoo.find(name).optimizer)


def measure_network(bench: Bench, name: str, content: Mapping[str, Any]) -> dict[str, str]:
    """Returns the row of a network alone; one that did not run says why by its status."""
    job = _job(name)
    try:
        memory = bench.measure_memory(job, _METHOD).figures[0]
        found = bench.measure([Load(job=job)], [Load(job=job)], _METHOD)
    except OutOfMemoryError:
        return format_row(_solo_row(name, content, status="out_of_memory"))
    except ProfilerError:
        bench.close()  # an answer that comes too late would be taken for that of the next network
        return format_row(_solo_row(name, content, status="failed"))
    return format_row(
        _solo_row(name, content, status="ok", figures=found.figures[0], memory=memory, flags=_flags(found))
    )


def measure_pair(bench: Bench, names: tuple[str, str], content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the rows of two networks together, one for each; none where they did not run."""
    loads = [Load(job=_job(name)) for name in names]
    try:
        found = bench.measure(loads, loads, _METHOD)
    except ProfilerError:
        bench.close()
        return []
    keys = [_key(name, content) for name in names]
    rows = []
    for index, figures in enumerate(found.figures):
        alone_ms = sum(found.references_ms[index]) / 2
        row = PairRow(
            run_id="+".join(names),
            campaign=content["campaign"],
            device=content["calibration"]["device"],
            share_mode="time_slicing",
            victim_job_key=keys[index],
            other_job_keys=(keys[1 - index],),
            victim_step_ms_mean=round(figures["step_ms_mean"], 4),
            victim_solo_step_ms_mean=round(alone_ms, 4),
            slowdown_ratio=round(figures["step_ms_mean"] / alone_ms - 1, 4),
            repeat=0,
            status="ok",
            quality_flags=_flags(found),
        )
        rows.append(format_row(row))
    return rows


def _job(name: str) -> JobSpec:
    batches = zoo.find(name).batches
    return JobSpec(architecture=name, batch=batches[len(batches) // 2])


def _key(name: str, content: Mapping[str, Any]) -> str:
    return settings_of(name).key(content["graphs"][name])


def _solo_row(
    name: str,
    content: Mapping[str, Any],
    *,
    status: str,
    figures: Mapping[str, float] = MappingProxyType({}),
    memory: Mapping[str, float] = MappingProxyType({}),
    flags: tuple[str, ...] = (),
) -> SoloRow:
    job, architecture = _job(name), zoo.find(name)
    known: dict[str, Any] = {
        "schema_version": profile_schema.SCHEMA_VERSION,
        "run_id": name,
        "campaign": content["campaign"],
        "mode": "train",
        "device": content["calibration"]["device"],
        "driver": content["calibration"]["driver"],
        "framework": content["calibration"]["framework"],
        "share_mode": "exclusive",
        "job_key": _key(name, content),
        "graph_sha256": content["graphs"][name],
        "architecture": name,
        "family": architecture.family,
        "batch": job.batch,
        "sub_batch": job.batch,
        "precision": "fp32",
        "optimizer": architecture.optimizer,
        "input_wait_ratio": 0.0,
        "gpus": 1,
        "nodes": 1,
        "steps": int(figures.get("steps", 0)),
        "step_ms_mean": round(figures["step_ms_mean"], 4) if figures else None,
        "utilization_ratio": round(figures["utilization_ratio"], 4) if "utilization_ratio" in figures else None,
        "memory_peak_bytes": int(memory["peak_bytes"]) if memory else None,
        "memory_reserved_bytes": int(memory.get("reserved_bytes", 0)) or None if memory else None,
        "memory_context_bytes": int(memory.get("context_bytes", 0)) if memory else None,
        "status": status,
        "quality_flags": flags,
    }
    nullable: dict[str, Any] = dict.fromkeys(SoloRow.__slots__)
    return SoloRow(**(nullable | known))


def _flags(found: Measurement) -> tuple[str, ...]:
    foreign = (FOREIGN_LOAD,) if found.foreign_ratio > _METHOD.foreign_ratio_max else ()
    return tuple(dict.fromkeys((*found.flags, *foreign)))

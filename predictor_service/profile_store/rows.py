"""Windows as rows of the profile schema: a window alone is a solo row, one with co-located jobs a row of pairs.

What a job does alone is the median of its windows alone on the same machine, at the same micro-batch, with or without
MPS as then, and without a doubt; a slowdown is measured against nothing else, so machines are never mixed inside one. A
job of a pair that never ran alone there has a solo row of status failed, so that a set of rows names all of its jobs.

Where an agent measured a job alone, what others reported of it has no row: it is the same job measured twice.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from cotenant.profile_schema import SCHEMA_VERSION, PairRow, SoloRow
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow, Source

NEVER_ALONE: Final = "co-located only: never measured alone on its machine"
NEVER_ALONE_FLAG: Final = "never_alone"
DUPLICATE_REPORT: Final = "an agent measured the same job"
ODD_SLOWDOWN: Final = "a slowdown that no neighbour explains"
SLOWDOWN_MIN: Final = -0.5
SLOWDOWN_MAX: Final = 100.0
UNSTATED: Final = "unstated"
Names = Mapping[str, tuple[str, str]]
"""Architecture and family by graph hash."""


@dataclass(slots=True)
class ProfileRows:
    """Rows, and how many windows became none, by reason."""

    solo: list[SoloRow] = field(default_factory=list)
    pairs: list[PairRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


Place = tuple[str, str, str, int, bool]
"""Where times are compared: machine, device type, job, micro-batch, whether under MPS."""


def make_rows(windows: Iterable[MeasurementWindow], names: Names | None = None) -> ProfileRows:
    """Makes rows, in the order of the windows.

    Args:
        windows: What was measured.
        names: Of known graphs; any other one is named by its hash, as a family of its own.
    """
    rows = ProfileRows()
    kept = drop_duplicate_reports(windows, rows.left_out)
    alone_ms = _times_alone(kept)
    repeats = Counter[tuple[str, ...]]()
    for window in kept:
        if not window.others:
            rows.solo.append(_solo_row(window, names or {}))
            continue
        solo_step_ms = alone_ms.get(place_of(window))
        if solo_step_ms is None:
            rows.left_out[NEVER_ALONE] += 1
        elif not SLOWDOWN_MIN <= window.step_ms / solo_step_ms - 1 <= SLOWDOWN_MAX:
            rows.left_out[ODD_SLOWDOWN] += 1
        else:
            rows.pairs.append(_pair_row(window, solo_step_ms, repeats))
    rows.solo += _rows_never_alone(kept, rows, names or {})
    return rows


def own_names(graph_sha256: str) -> tuple[str, str]:
    """Returns architecture and family of a graph that no data set knows."""
    return (f"graph_{graph_sha256[:12]}",) * 2


def drop_duplicate_reports(windows: Iterable[MeasurementWindow], left_out: Counter[str]) -> list[MeasurementWindow]:
    """Returns the windows without outcomes of jobs that an agent measured, and counts these."""
    kept = list(windows)
    by_agents = {_job_on_device(item) for item in kept if item.source is Source.AGENT and not item.others}
    reported = [item for item in kept if item.source is Source.AGENT or _job_on_device(item) not in by_agents]
    if len(reported) < len(kept):
        left_out[DUPLICATE_REPORT] += len(kept) - len(reported)
    return reported


def _job_on_device(window: MeasurementWindow) -> tuple[str, str]:
    return window.device, window.job.key


def _times_alone(windows: Iterable[MeasurementWindow]) -> dict[Place, float]:
    times = defaultdict[Place, list[float]](list)
    for window in windows:
        if not window.others and not window.quality_flags:
            times[place_of(window)].append(window.step_ms)
    return {place: median(values) for place, values in times.items()}


def place_of(window: MeasurementWindow) -> Place:
    """Returns where a window was measured; a slowdown compares windows of one place."""
    return window.campaign, window.device, window.job.key, window.micro_batch_size, window.under_mps


def _rows_never_alone(windows: Iterable[MeasurementWindow], rows: ProfileRows, names: Names) -> list[SoloRow]:
    known = {(row.campaign, row.device, row.job_key) for row in rows.solo}
    wanted = {(row.campaign, row.device, key) for row in rows.pairs for key in row.other_job_keys} - known
    missing: dict[tuple[str, str, str], SoloRow] = {}
    for window in windows:
        for job in window.others if wanted else ():
            place = (window.campaign, window.device, job.key)
            if place in wanted and place not in missing:
                missing[place] = _job_row(window, job, f"{NEVER_ALONE_FLAG}_{len(missing)}", names)
    return list(missing.values())


def _solo_row(window: MeasurementWindow, names: Names) -> SoloRow:
    return dataclasses.replace(
        _job_row(window, window.job, window.window_id, names),
        sub_batch=window.micro_batch_size,
        step_ms_mean=window.step_ms,
        input_wait_ratio=window.job.settings.input_wait_share(window.step_ms),
        steps=window.steps,
        utilization_ratio=window.utilization_ratio,
        sm_activity_ratio=window.sm_activity_ratio,
        memory_peak_bytes=window.memory_peak_bytes,
        # What a process holds of a device counts its context as well.
        memory_context_bytes=None if window.memory_peak_bytes is None else 0,
        power_watts=window.power_watts,
        status="ok",
        quality_flags=(f"from_{window.source.value}", *window.quality_flags),
    )


def _job_row(window: MeasurementWindow, job: MeasuredJob, run_id: str, names: Names) -> SoloRow:
    """A job of which nothing was measured alone."""
    settings = job.settings
    architecture, family = names.get(job.graph_sha256) or own_names(job.graph_sha256)
    return SoloRow(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        campaign=window.campaign,
        mode=settings.mode,
        device=window.device,
        host_memory_bytes=settings.host_memory_bytes,
        disk_read_bytes_per_s=settings.disk_read_bytes_per_s,
        network_bytes_per_s=settings.network_bytes_per_s,
        driver=UNSTATED,
        framework=UNSTATED,
        share_mode="exclusive",
        job_key=job.key,
        graph_sha256=job.graph_sha256,
        architecture=architecture,
        family=family,
        batch=settings.global_batch_size,
        input_shape=None,
        precision=settings.precision,
        optimizer="none" if settings.mode == "infer" else settings.optimizer,
        input_wait_ratio=settings.input_wait_ratio,
        gpus=1,
        nodes=1,
        workers=None,
        servers=None,
        sub_batch=settings.global_batch_size,
        sync_ms_mean=None,
        step_ms_mean=None,
        step_ms_p50=None,
        step_ms_p95=None,
        steps=0,
        utilization_ratio=None,
        sm_activity_ratio=None,
        dram_activity_ratio=None,
        memory_peak_bytes=None,
        memory_reserved_bytes=None,
        memory_context_bytes=None,
        power_watts=None,
        status="failed",
        quality_flags=(NEVER_ALONE_FLAG,),
        features_json=None,
    )


def _pair_row(window: MeasurementWindow, solo_step_ms: float, repeats: Counter[tuple[str, ...]]) -> PairRow:
    others = tuple(sorted(job.key for job in window.others))
    measured = (window.campaign, window.device, window.job.key, *others)
    repeats[measured] += 1
    return PairRow(
        run_id=window.window_id,
        campaign=window.campaign,
        device=window.device,
        share_mode=window.sharing.label,
        victim_job_key=window.job.key,
        other_job_keys=others,
        victim_step_ms_mean=window.step_ms,
        victim_solo_step_ms_mean=solo_step_ms,
        slowdown_ratio=window.step_ms / solo_step_ms - 1,
        repeat=repeats[measured] - 1,
        status="ok",
        quality_flags=(f"from_{window.source.value}", *window.quality_flags),
    )

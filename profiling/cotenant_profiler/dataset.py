"""Turns the journal of a campaign into a dataset: solo.csv, pairs.csv and the graphs, in the profile schema."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant import profile_schema
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import MemoryTraceRow, PairRow, SoloRow, write_rows
from cotenant_profiler import zoo
from cotenant_profiler.drift import drift_ratio
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import Journal, Record
from cotenant_profiler.plan import Kind
from cotenant_profiler.zoo.export import export_graph
from cotenant_profiler.zoo.registry import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the rows are made from.

    Attributes:
        journal: Records of the campaign.
        graphs: Hash of the graph of every architecture.
        flags: Reasons for doubt, one tuple per record of the journal.
        memory: Memory of every job without waits, bytes by kind: peak, reserved, context.
    """

    journal: Journal
    graphs: Mapping[str, str]
    flags: Sequence[tuple[str, ...]]
    memory: Mapping[JobSpec, Mapping[str, int]]

    def job_key(self, job: JobSpec) -> str:
        """Key under which predictor, scheduler and profiler know the job."""
        return settings_of(job).key(self.graphs[job.architecture])


def settings_of(job: JobSpec) -> JobSettings:
    """Return the settings of a job as the prediction service reads them."""
    return JobSettings(
        global_batch_size=job.batch,
        optimizer=zoo.find(job.architecture).optimizer,
        precision=job.precision,
        input_wait_ratio=job.input_wait_ratio,
    )


def write_dataset(journal: Journal, folder: Path, drift_ratio_max: float) -> tuple[int, int]:
    """Write solo.csv, pairs.csv, graphs/ and, where memory was sampled, memory_traces.csv into `folder`.

    Args:
        journal: What was measured.
        folder: Made when absent; files of the same names are replaced.
        drift_ratio_max: Deviation of the anchor job above which the rows around it are flagged.

    Returns:
        Number of solo rows and of pair rows.
    """
    graphs = write_graphs({job.architecture for record in journal.records for job in record.jobs}, folder / "graphs")
    sources = gather(journal, graphs, drift_ratio_max)
    solo = list(solo_rows(sources))
    pairs = list(pair_rows(sources))
    write_rows(folder / "solo.csv", solo, SoloRow)
    write_rows(folder / "pairs.csv", pairs, PairRow)
    traces = list(trace_rows(sources))
    if traces:
        write_rows(folder / "memory_traces.csv", traces, MemoryTraceRow)
    return len(solo), len(pairs)


def write_graphs(architectures: set[str], folder: Path) -> dict[str, str]:
    """Write the graph of every architecture under its hash; returns the hashes by architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name in sorted(architectures):
        graph = export_graph(name)
        (folder / f"{graph.sha256}.onnx").write_bytes(graph.content)
        hashes[name] = graph.sha256
    return hashes


def gather(journal: Journal, graphs: Mapping[str, str], drift_ratio_max: float) -> Sources:
    """Return the sources of the rows, with what has to be known of the whole campaign."""
    flags = [
        (*record.flags, "anchor_drift") if _has_drifted(record, journal.records, drift_ratio_max) else record.flags
        for record in journal.records
    ]
    return Sources(
        journal=journal,
        graphs=graphs,
        flags=flags,
        memory={
            record.jobs[0]: {key: int(value) for key, value in record.figures[0].items()}
            for record in journal.records
            if record.kind is Kind.MEMORY and record.status == "ok"
        },
    )


def _has_drifted(record: Record, records: Sequence[Record], drift_ratio_max: float) -> bool:
    """Judge again what was accepted before the campaign knew the usual speed of the machine."""
    return "anchor_drift" not in record.flags and abs(drift_ratio(record, records)) > drift_ratio_max


def solo_rows(sources: Sources) -> Iterator[SoloRow]:
    """Yield one row per attempt of a job alone, rejected ones included."""
    for record, flags in zip(sources.journal.records, sources.flags, strict=True):
        if record.kind is Kind.SOLO:
            yield _solo_row(sources, record, flags)


def _solo_row(sources: Sources, record: Record, flags: tuple[str, ...]) -> SoloRow:
    job = record.jobs[0]
    architecture = zoo.find(job.architecture)
    figures: Mapping[str, float] = record.figures[0] if record.figures else {}
    memory = sources.memory.get(job.without_wait, {})
    return SoloRow(
        schema_version=profile_schema.SCHEMA_VERSION,
        run_id=f"{record.run_id}-{record.attempt}",
        campaign=sources.journal.header["campaign"],
        mode="train",
        device=sources.journal.header["device"],
        host_memory_bytes=None,
        disk_read_bytes_per_s=None,
        network_bytes_per_s=None,
        driver=sources.journal.header.get("driver", "none"),
        framework=sources.journal.header["framework"],
        share_mode="exclusive",
        job_key=sources.job_key(job),
        graph_sha256=sources.graphs[job.architecture],
        architecture=job.architecture,
        family=architecture.family,
        batch=job.batch,
        input_shape=_sample_shape(architecture),
        precision=job.precision,
        optimizer=architecture.optimizer,
        input_wait_ratio=job.input_wait_ratio,
        gpus=1,
        nodes=1,
        workers=None,
        servers=None,
        sub_batch=job.batch,
        sync_ms_mean=None,
        step_ms_mean=_rounded(figures.get("step_ms_mean")),
        step_ms_p50=_rounded(figures.get("step_ms_p50")),
        step_ms_p95=_rounded(figures.get("step_ms_p95")),
        steps=int(figures.get("steps", 0)),
        utilization_ratio=_rounded(figures.get("utilization_ratio")),
        sm_activity_ratio=_rounded(figures.get("sm_activity_ratio")),
        dram_activity_ratio=_rounded(figures.get("dram_activity_ratio")),
        memory_peak_bytes=memory.get("peak_bytes"),
        memory_reserved_bytes=memory.get("reserved_bytes") or None,
        memory_context_bytes=memory.get("context_bytes", 0),
        power_watts=_rounded(figures.get("power_watts")),
        status=record.status,
        quality_flags=flags,
        features_json=None,
    )


def pair_rows(sources: Sources) -> Iterator[PairRow]:
    """Yield one row per victim of every attempt of a group."""
    for record, flags in zip(sources.journal.records, sources.flags, strict=True):
        if record.kind is not Kind.GROUP:
            continue
        for index in range(len(record.jobs)):
            yield _pair_row(sources, record, index, flags)


def _pair_row(sources: Sources, record: Record, index: int, flags: tuple[str, ...]) -> PairRow:
    victim = record.jobs[index]
    others = record.jobs[:index] + record.jobs[index + 1 :]
    alone_ms = statistics.fmean(record.references_ms[index]) if record.references_ms else None
    shared_ms = record.figures[index]["step_ms_mean"] if record.figures else None
    return PairRow(
        run_id=f"{record.run_id}-{record.attempt}",
        campaign=sources.journal.header["campaign"],
        device=sources.journal.header["device"],
        share_mode=sources.journal.header.get("share_mode", "time_slicing"),
        victim_job_key=sources.job_key(victim),
        other_job_keys=tuple(sorted(sources.job_key(job) for job in others)),
        victim_step_ms_mean=_rounded(shared_ms),
        victim_solo_step_ms_mean=_rounded(alone_ms),
        slowdown_ratio=_rounded(slowdown_ratio(record, index)),
        repeat=record.repeat,
        status=record.status,
        quality_flags=flags,
    )


def trace_rows(sources: Sources) -> Iterator[MemoryTraceRow]:
    """Yield one row per sample of every trace of memory."""
    for record in sources.journal.records:
        if record.kind is not Kind.TRACE or record.status != "ok":
            continue
        for sample in record.figures:
            yield MemoryTraceRow(
                run_id=f"{record.run_id}-{record.attempt}",
                job_key=sources.job_key(record.jobs[0]),
                offset_ms=int(sample["offset_ms"]),
                allocated_bytes=int(sample["allocated_bytes"]),
                reserved_bytes=int(sample["reserved_bytes"]),
            )


def slowdown_ratio(record: Record, index: int) -> float | None:
    """Return shared / alone - 1 of one job of a group, alone being the mean of right before and right after."""
    if not record.figures or not record.references_ms:
        return None
    return record.figures[index]["step_ms_mean"] / statistics.fmean(record.references_ms[index]) - 1


def _sample_shape(architecture: Architecture) -> str:
    return "x".join(str(size) for size in architecture.make_batch(1)[0].shape[1:])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""Outcomes that are good enough become training rows: what a job really did, with the settings it was predicted for.

Accepted is an outcome of one job without quality flags, measured over at least ten seconds, with a step time above 0
and values within their possible range, whose graph this service still keeps. Several outcomes of one job on one device
type become one row with their medians. A graph that a data set knows keeps that set's architecture and family; any
other graph is a family of its own, so that it is held out alone.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from cotenant.profile_schema import SoloRow
from predictor_service.errors import GraphError, GraphLimitError
from predictor_service.features.graph_description import GraphDescription, describe_graph
from predictor_service.features.graph_limits import DEFAULT_LIMITS
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.retraining.datasets import Dataset

NAME: Final = "outcomes"
WINDOW_MS_MIN: Final = 10_000
QUALITY_FLAG: Final = "from_outcome"
_SETTINGS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedOutcomes:
    """What became of the outcomes.

    Attributes:
        dataset: None when none was accepted.
        left_out: Outcomes left out by reason.
    """

    dataset: Dataset | None
    left_out: Mapping[str, int]


def collect_outcomes(
    joined: Sequence[tuple[PredictionEntry, Mapping[str, Any]]], graphs_folder: Path, known: Sequence[Dataset]
) -> CollectedOutcomes:
    """Turns outcomes into a data set.

    Args:
        joined: Every outcome beside its prediction.
        graphs_folder: Where the service keeps graphs by hash.
        known: Data sets that name architectures and families of graphs.
    """
    left_out = Counter[str]()
    by_job: dict[tuple[str, str], list[tuple[PredictionEntry, Mapping[str, Any]]]] = defaultdict(list)
    for entry, outcome in joined:
        reason = _refuse(entry, outcome)
        if reason:
            left_out[reason] += 1
        else:
            by_job[entry.device, str(entry.content["job_key"])].append((entry, outcome))
    names = {
        row.graph_sha256: (row.architecture, row.family)
        for dataset in known
        for row in dataset.solo
        if row.graph_sha256
    }
    rows, graphs = [], dict[str, GraphDescription]()
    for _, members in sorted(by_job.items(), key=lambda item: item[0]):
        content: Mapping[str, Any] = members[-1][0].content
        graph_sha256 = str(content["graph_sha256"])
        try:
            if graph_sha256 not in graphs:
                graphs[graph_sha256] = _describe(graphs_folder, graph_sha256, content.get("bindings", {}))
        except (GraphError, OSError):
            left_out["its graph is not kept any more, or cannot be described"] += len(members)
            continue
        rows.append(_row(members, names.get(graph_sha256)))
    if not rows:
        return CollectedOutcomes(dataset=None, left_out=dict(left_out))
    digest = hashlib.sha256("\n".join(repr(row) for row in rows).encode()).hexdigest()
    dataset = Dataset(name=NAME, solo=tuple(rows), pairs=(), graphs=graphs, sha256=digest)
    return CollectedOutcomes(dataset=dataset, left_out=dict(left_out))


def _refuse(entry: PredictionEntry, outcome: Mapping[str, Any]) -> str:
    """Why an outcome is no training row; empty when it is one."""
    settings = entry.content.get("settings")
    if entry.kind != "job":
        return "an outcome of a pair"
    if not isinstance(settings, list) or len(settings) != _SETTINGS or not entry.content.get("graph_sha256"):
        return "its prediction was kept without graph and settings"
    if outcome.get("quality_flags"):
        return "flagged: " + ", ".join(sorted(outcome["quality_flags"]))
    if outcome.get("window_ms", 0) < WINDOW_MS_MIN:
        return f"measured over less than {WINDOW_MS_MIN // 1000} s"
    step_ms = outcome.get("step_ms_mean")
    if not step_ms or not math.isfinite(step_ms) or step_ms <= 0:
        return "without a step time"
    utilization_ratio = outcome.get("utilization_ratio")
    if utilization_ratio is not None and not 0 <= utilization_ratio <= 1:
        return "a utilization outside 0 to 1"
    return ""


def _describe(folder: Path, graph_sha256: str, bindings: Mapping[str, int]) -> GraphDescription:
    path = folder / f"{graph_sha256}.onnx"
    if path.stat().st_size > DEFAULT_LIMITS.graph_bytes:
        raise GraphLimitError(f"{path.name} is too large", remedy="send it without its weights")
    return describe_graph(path.read_bytes(), bindings)


def _row(members: Sequence[tuple[PredictionEntry, Mapping[str, Any]]], names: tuple[str, str] | None) -> SoloRow:
    entry = members[-1][0]
    content: Mapping[str, Any] = entry.content
    batch, mode, precision, optimizer, input_wait_ratio = content["settings"]
    graph_sha256 = str(content["graph_sha256"])
    architecture, family = names or (f"graph_{graph_sha256[:12]}", f"graph_{graph_sha256[:12]}")
    step_ms = _median(members, "step_ms_mean")
    memory_bytes = _median(members, "memory_peak_bytes")
    return SoloRow(
        schema_version=1,
        run_id=f"outcome-{entry.prediction_id}",
        campaign=NAME,
        mode=mode,
        device=entry.device,
        host_memory_bytes=None,
        disk_read_bytes_per_s=None,
        network_bytes_per_s=None,
        driver="unstated",
        framework="unstated",
        share_mode="exclusive",
        job_key=str(content["job_key"]),
        graph_sha256=graph_sha256,
        architecture=architecture,
        family=family,
        batch=batch,
        input_shape=None,
        precision=precision,
        optimizer=optimizer,
        input_wait_ratio=input_wait_ratio,
        gpus=1,
        nodes=1,
        workers=None,
        servers=None,
        sub_batch=batch,
        sync_ms_mean=None,
        step_ms_mean=step_ms,
        step_ms_p50=step_ms,
        step_ms_p95=step_ms,
        steps=sum(int(outcome["window_ms"] / outcome["step_ms_mean"]) for _, outcome in members),
        utilization_ratio=_median(members, "utilization_ratio"),
        sm_activity_ratio=_median(members, "sm_activity_ratio"),
        dram_activity_ratio=None,
        memory_peak_bytes=None if memory_bytes is None else int(memory_bytes),
        memory_reserved_bytes=None,
        memory_context_bytes=0,
        power_watts=None,
        status="ok",
        quality_flags=(QUALITY_FLAG,),
        features_json=None,
    )


def _median(members: Sequence[tuple[PredictionEntry, Mapping[str, Any]]], name: str) -> float | None:
    values = [outcome[name] for _, outcome in members if outcome.get(name) is not None]
    return float(median(values)) if values else None

"""Draws the workloads of the Horus tables: jobs slow each other down by their summed utilization."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.papers.summed_utilization import SummedUtilization
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import GIB, REFERENCE_DEVICE, Trace, TraceJob
from scheduler_service.core.records import Share

FILE = Path(__file__).parent / "workloads" / "horus.toml"
ANYBODY = Consent(share=Share.ANY, max_slowdown_ratio=1e6)
"""The paper asks no owner."""
STEP_MS = 1_000.0
Job = tuple[float, float, int]
"""Submitted at s, length alone in s, GPUs."""


def settings_of(part: str) -> Mapping[str, Any]:
    """Return a table of the committed file."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found: Mapping[str, Any] = tables[part]
    return found


def cluster_of(settings: Mapping[str, Any]) -> Cluster:
    """Return the machines, with the memory that their GPUs have."""
    cluster = read_cluster(settings["cluster"], device=REFERENCE_DEVICE)
    memory_bytes = int(settings["gpu_memory_gib"] * GIB)
    nodes = [
        replace(node, gpus=tuple(replace(gpu, memory_bytes=memory_bytes) for gpu in node.gpus))
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=nodes)


def with_summed_crowds(trace: Trace, settings: Mapping[str, Any]) -> Trace:
    """Return the same jobs where three and more on a GPU slow each other down by their summed utilization too.

    Without it, each is slowed down by the sum of what it would be with each other one alone.
    """
    return replace(trace, truth=replace(trace.truth, multiway_law=SummedUtilization(**settings["slowdown"])))


def draw_testbed(settings: Mapping[str, Any], pattern: str, seed: int) -> Trace:
    """Draw W-Small or W-Large; both have the same arrivals, utilizations and memories in one seed."""
    arrival, length, at_s, jobs = Random(f"{seed}/arrival"), Random(f"{seed}/length"), 0.0, []
    for _ in range(settings["jobs"]):
        at_s += arrival.expovariate(1.0) * settings["arrival_mean_s"]
        is_short = length.random() < settings["short_ratio"][pattern]
        jobs.append((at_s, length.choice(settings["short_s" if is_short else "long_s"]), 1))
    return _trace(settings, jobs, seed)


def draw_philly(settings: Mapping[str, Any], path: Path, seed: int) -> Trace:
    """Draw jobs of Philly; they keep their order of submission and the relative gaps between them."""
    eligible = [
        job for job in _philly_jobs(path) if job[1] >= settings["duration_min_s"] and job[2] <= settings["gpus_max"]
    ]
    drawn = sorted(Random(f"{seed}/philly").sample(eligible, settings["jobs"]))
    first_s, last_s = drawn[0][0], drawn[-1][0]
    scale = settings["window_s"] / max(last_s - first_s, 1.0)
    jobs = [((at_s - first_s) * scale, min(run_s, settings["duration_max_s"]), gpus) for at_s, run_s, gpus in drawn]
    return _trace(settings, jobs, seed)


@cache
def _philly_jobs(path: Path) -> Sequence[Job]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            (
                datetime.fromisoformat(f"{cells['submit_time']}+00:00").timestamp(),
                float(cells["duration_s"]),
                int(cells["num_gpus"]),
            )
            for cells in csv.DictReader(file)
        ]


def _trace(settings: Mapping[str, Any], jobs: Sequence[Job], seed: int) -> Trace:
    generators = {name: Random(f"{seed}/{name}") for name in ("utilization", "memory")}
    kinds: dict[tuple[str, str], Kind] = {}
    found = []
    for number, (at_s, length_s, gpus) in enumerate(jobs):
        utilization = generators["utilization"].choice(settings["utilizations"])
        memory_gib = generators["memory"].choice(settings["memories_gib"])
        key = f"{utilization}/{memory_gib} GiB/{gpus} GPUs"
        kinds[key, EVERY_DEVICE] = Kind(
            step_ms_by_gpus={gpus: STEP_MS},
            batch=gpus,
            memory_bytes=int(memory_gib * GIB),
            utilization_ratio=utilization,
        )
        steps = max(round(length_s * 1_000 / STEP_MS), 1)
        request = ANYBODY.request(f"job-{number:04d}", key=key, gpus=gpus, batch=gpus, steps_total=steps)
        found.append(TraceJob(submitted_at_ms=round(at_s * 1_000), request=request))
    return Trace(format="horus", jobs=found, truth=GroundTruth(kinds=kinds, slowdowns=_slowdowns(kinds, settings)))


def _slowdowns(kinds: Mapping[tuple[str, str], Kind], settings: Mapping[str, Any]) -> dict[tuple[str, str, str], float]:
    law = SummedUtilization(**settings["slowdown"])
    return {
        (victim, other, EVERY_DEVICE): law.slowdown_ratio(one.utilization_ratio + partner.utilization_ratio)
        for (victim, _), one in kinds.items()
        for (other, _), partner in kinds.items()
    }

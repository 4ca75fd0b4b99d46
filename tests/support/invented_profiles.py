"""Invented measured rows for learning and evaluation: figures that follow from the jobs by known rules."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cotenant.profile_schema import PairRow, SoloRow, write_rows

DEVICE = "Invented A"
FAMILIES = ("ant", "bee", "cat", "dog", "elk", "fox")
BATCHES = (8, 16, 32, 64)


def solo_row(**changes: Any) -> SoloRow:
    """Returns a row that is right, but for the changes."""
    row = SoloRow(
        schema_version=1, run_id="run", campaign="one", mode="train", device=DEVICE, host_memory_bytes=None,
        disk_read_bytes_per_s=None, network_bytes_per_s=None, driver="none", framework="none", share_mode="exclusive",
        job_key="key", graph_sha256=None, architecture="ant_1", family="ant", batch=8, input_shape=None,
        precision="fp32", optimizer="adam", input_wait_ratio=0.0, gpus=1, nodes=1, workers=None, servers=None,
        sub_batch=8, sync_ms_mean=None, step_ms_mean=10.0, step_ms_p50=10.0, step_ms_p95=11.0, steps=100,
        utilization_ratio=0.5, sm_activity_ratio=None, dram_activity_ratio=None, memory_peak_bytes=1 << 30,
        memory_reserved_bytes=None, memory_context_bytes=0, power_watts=None, status="ok", quality_flags=(),
        features_json=None,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def pair_row(victim: SoloRow, *others: SoloRow, slowdown_ratio: float, **changes: Any) -> PairRow:
    """Returns a row of a victim with co-located jobs, but for the changes."""
    alone_ms = victim.step_ms_mean or 1.0
    row = PairRow(
        run_id="run",
        campaign=victim.campaign,
        device=victim.device,
        share_mode="time_slicing",
        victim_job_key=victim.job_key,
        other_job_keys=tuple(sorted(other.job_key for other in others)),
        victim_step_ms_mean=alone_ms * (1 + slowdown_ratio),
        victim_solo_step_ms_mean=alone_ms,
        slowdown_ratio=slowdown_ratio,
        repeat=0,
        status="ok",
        quality_flags=(),
    )
    return dataclasses.replace(row, **changes)


def solo_rows(
    seed: int = 0,
    noise: float = 0.02,
    families: Sequence[str] = FAMILIES,
    architectures: int = 3,
    extra_features: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[SoloRow]:
    """Returns jobs whose figures follow from two published numbers and the batch.

    Args:
        seed: Of the published numbers and the noise.
        noise: Standard deviation of the logarithm of every figure.
        families: Names.
        architectures: In each family.
        extra_features: Published with every row.
        changes: To every row.
    """
    random = np.random.default_rng(seed)
    rows = []
    for family in families:
        for number in range(architectures):
            parameters, flops = float(np.exp(random.uniform(13, 18))), float(np.exp(random.uniform(18, 23)))
            for batch in BATCHES:
                features = {"set.parameters": parameters, "set.flops": flops, **(extra_features or {})}
                name = f"{family}_{number}"
                step_ms = (2 + flops * batch / 1e10) * float(np.exp(random.normal(0, noise)))
                memory_bytes = (5e8 + 16 * parameters + flops * batch / 100) * float(np.exp(random.normal(0, noise)))
                figures = {
                    "run_id": f"{name}-{batch}",
                    "job_key": f"key-{name}-{batch}",
                    "architecture": name,
                    "family": family,
                    "batch": batch,
                    "sub_batch": batch,
                    "step_ms_mean": step_ms,
                    "step_ms_p50": step_ms,
                    "step_ms_p95": step_ms * 1.1,
                    "utilization_ratio": step_ms / (step_ms + 5.0),
                    "memory_peak_bytes": int(memory_bytes),
                    "features_json": json.dumps(features),
                }
                rows.append(solo_row(**{**figures, **changes}))
    return rows


def pair_rows(solo: Sequence[SoloRow], seed: int = 0, noise: float = 0.02) -> list[PairRow]:
    """Returns all ordered pairs of the jobs; each loses what the other one uses of the device."""
    random = np.random.default_rng(seed)
    rows = []
    for victim in solo:
        for other in solo:
            shared = 1 + (victim.utilization_ratio or 0) * (other.utilization_ratio or 0)
            slowdown_ratio = shared * float(np.exp(random.normal(0, noise))) - 1
            run_id = f"{victim.run_id}+{other.run_id}"
            rows.append(pair_row(victim, other, slowdown_ratio=slowdown_ratio, run_id=run_id))
    return rows


def write_profiles(folder: Path, solo: Sequence[SoloRow], pairs: Sequence[PairRow] = ()) -> Path:
    """Writes a data-set folder and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "solo.csv", solo, SoloRow)
    write_rows(folder / "pairs.csv", pairs, PairRow)
    return folder

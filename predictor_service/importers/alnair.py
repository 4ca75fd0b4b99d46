"""Alnair: slowdown of pairs under MPS, with utilization alone, transcribed from slides; the GPU is not named.

Campaign mps_slides. Times are printed as microseconds per 10 steps and may be per step: ratios stand, step times are
flagged time_unit_suspect. One cell (InceptionV3, batch 32, co-located with ResNet-50, batch 256, at 0.96) is odd and
flagged.
Campaign colab: TensorFlow jobs on a P100, of which only extremes of utilization are published, and memory that
TensorFlow took in advance. Its rows are rejected: utilization_is_maximum, memory_preallocated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, has_table, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_DEVICE: Final = "alnair-unnamed-gpu"
_CAMPAIGN: Final = "mps_slides"
_MICROSECONDS_PER_STEP_MS: Final = 10 * 1e3
# Times say that CIFAR-10 images keep their 32 x 32 in ResNet-50 and are enlarged for Inception. The LSTM is unknown.
_ARCHITECTURES: Final = {
    ("InceptionV3", "CIFAR-10"): "inception3",
    ("InceptionV3", "ImageNet"): "inception3",
    ("ResNet-50", "CIFAR-10"): "resnet50_cifar",
    ("ResNet-50", "ImageNet"): "resnet50",
}
_SOLO_COLUMNS: Final = "model dataset batch_size gpu_util_pct us_per_10_steps"
_PAIR_COLUMNS: Final = (
    "victim_model victim_dataset victim_batch victim_solo_util_pct victim_solo_us_per_10_steps other_model "
    "other_dataset other_batch other_solo_util_pct victim_packed_us_per_10_steps victim_slowdown"
)
_COLAB_COLUMNS: Final = (
    "id model dataset epochs batch_size run_env gpu_util_range_pct max_gpu_util_pct min_gpu_util_pct "
    "max_gpu_mem_alloc_pct max_gpu_time_accessing_mem_pct max_gpu_power_pct max_cpu_util_pct max_sys_mem_pct"
)
_COLAB_DEVICE: Final = "Tesla P100-PCIE-16GB"
# Ratios are printed with four decimals.
_RATIO_TOLERANCE: Final = 2e-4


def import_alnair(folder: Path) -> ImportedSet:
    """Reads solo.csv and mps_pairs.csv, and colab_p100_tf_jobs.csv where it is.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    solo = [_solo(row) for row in read_table(folder, "solo.csv", _SOLO_COLUMNS)]
    if has_table(folder, "colab_p100_tf_jobs.csv"):
        solo += [_colab(row) for row in read_table(folder, "colab_p100_tf_jobs.csv", _COLAB_COLUMNS)]
    return ImportedSet(
        solo=solo,
        pairs=[_pair(row) for row in read_table(folder, "mps_pairs.csv", _PAIR_COLUMNS)],
    )


def _solo(row: PublishedRow) -> SoloRow:
    model, dataset, batch = row.text("model"), row.text("dataset"), row.integer("batch_size", minimum=1)
    return solo_row(
        run_id=f"alnair-solo-{row.line}",
        campaign=_CAMPAIGN,
        device=_DEVICE,
        job_key=_key(model, dataset, batch),
        architecture=model,
        family=model_family(model),
        batch=batch,
        step_ms_mean=row.number("us_per_10_steps", above=0) / _MICROSECONDS_PER_STEP_MS,
        utilization_ratio=row.number("gpu_util_pct", maximum=100) / 100,
        quality_flags=("time_unit_suspect", "utilization_read_by_eye"),
        features_json=features_json(
            {"model": model, "dataset": dataset, "batch_size": batch},
            ZooFeatures.load().of(_ARCHITECTURES.get((model, dataset))),
        ),
    )


def _colab(row: PublishedRow) -> SoloRow:
    model, batch = " ".join(row.text("model").split()), row.integer("batch_size", minimum=1)
    dataset, epochs = row.text("dataset"), row.integer("epochs", minimum=1)
    memory_ratio = row.number("max_gpu_mem_alloc_pct", maximum=100) / 100
    return solo_row(
        run_id=f"alnair-colab-{row.line}",
        campaign="colab",
        device=_COLAB_DEVICE,
        framework="tensorflow",
        job_key=job_key("alnair_colab", model, batch, dataset=dataset, epochs=epochs, host=row.text("run_env")),
        architecture=model,
        family=model_family(model),
        batch=batch,
        utilization_ratio=row.number("max_gpu_util_pct", maximum=100) / 100,
        memory_peak_bytes=round(memory_ratio * DEVICE_TYPES[_COLAB_DEVICE].memory_bytes),
        memory_context_bytes=0,
        status="rejected",
        quality_flags=("utilization_is_maximum", "memory_preallocated"),
        features_json=features_json({"model": model, "dataset": dataset, "batch_size": batch}),
    )


def _pair(row: PublishedRow) -> PairRow:
    alone_ms = row.number("victim_solo_us_per_10_steps", above=0) / _MICROSECONDS_PER_STEP_MS
    shared_ms = row.number("victim_packed_us_per_10_steps", above=0) / _MICROSECONDS_PER_STEP_MS
    published = row.number("victim_slowdown", above=0)
    if abs(shared_ms / alone_ms - published) > _RATIO_TOLERANCE:
        raise row.refusal("victim_slowdown", f"{published:g} is not packed / solo time = {shared_ms / alone_ms:g}")
    names = [row.cells[f"{side}_{name}"] for side in ("victim", "other") for name in ("model", "batch")]
    odd = names == ["InceptionV3", "32", "ResNet-50", "256"]
    return PairRow(
        run_id=f"alnair-pair-{row.line}",
        campaign=_CAMPAIGN,
        device=_DEVICE,
        share_mode="mps",
        victim_job_key=_key_of_side(row, "victim"),
        other_job_keys=(_key_of_side(row, "other"),),
        victim_step_ms_mean=shared_ms,
        victim_solo_step_ms_mean=alone_ms,
        slowdown_ratio=shared_ms / alone_ms - 1,
        repeat=0,
        status="ok",
        quality_flags=("odd_cell",) if odd else (),
    )


def _key_of_side(row: PublishedRow, side: str) -> str:
    return _key(row.text(f"{side}_model"), row.text(f"{side}_dataset"), row.integer(f"{side}_batch", minimum=1))


def _key(model: str, dataset: str, batch: int) -> str:
    return job_key("alnair", model, batch, dataset=dataset)

"""MISO: TensorFlow jobs alone on an A100 and on its MIG slices.

Campaign util_collection: utilization, memory, power. Campaign mig: step times on a slice, whose device type is named
as NVIDIA names the profile. TensorFlow grows its pool in steps, so memory is an upper bound: memory_quantised. The
memory utilization of nvidia-smi is the share of time with any transfer: dram_activity_is_time_share. deepspeech2 on one
slice is noisy by the set's own account: flagged noisy. The tables name the networks only; what these are fed is in the
training scripts next to them (mps/models): images of 32 x 32 pixels, molecules, time series, texts of 512 symbols.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import SoloRow
from predictor_service.importers.imported_set import MEBIBYTE, ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_DEVICE: Final = "NVIDIA A100-SXM4-40GB"
# As their training scripts define them, see the zoo's `keras_examples`; `embedding` is none of the zoo.
_ARCHITECTURES: Final = {
    "bert": "bert_base_512",
    "cyclegan": "cyclegan",
    "deepspeech2": "deepspeech2_ljspeech",
    "gnn": "mpnn_molecules",
    "mobilenet": "mobilenet_v2_32px",
    "resnet": "resnet50_32px",
    "transformer": "transformer_series",
}
_SOLO_COLUMNS: Final = "model batch_size gpu_util_pct mem_util_pct gpu_mem_mib power_w"
_SLICE_COLUMNS: Final = (
    "model batch_size mig_compute_slices mig_mem_gb median_iter_s mean_iter_s p95_iter_s n_iters slowdown_vs_7g"
)


def import_miso(folder: Path) -> ImportedSet:
    """Reads solo_util_memory.csv and mig_slice_iteration_time.csv.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    rows = [_solo(row) for row in read_table(folder, "solo_util_memory.csv", _SOLO_COLUMNS)]
    rows += [_slice(row) for row in read_table(folder, "mig_slice_iteration_time.csv", _SLICE_COLUMNS)]
    return ImportedSet(solo=rows)


def _solo(row: PublishedRow) -> SoloRow:
    return solo_row(
        run_id=f"miso-util-{row.line}",
        campaign="util_collection",
        device=_DEVICE,
        utilization_ratio=row.number("gpu_util_pct", maximum=100) / 100,
        dram_activity_ratio=row.number("mem_util_pct", maximum=100) / 100,
        memory_peak_bytes=round(row.number("gpu_mem_mib") * MEBIBYTE),
        memory_context_bytes=0,
        power_watts=row.number("power_w"),
        quality_flags=("memory_includes_context", "memory_quantised", "dram_activity_is_time_share"),
        **_job(row),
    )


def _slice(row: PublishedRow) -> SoloRow:
    slices, gigabytes = row.integer("mig_compute_slices", minimum=1), row.integer("mig_mem_gb", minimum=1)
    noisy = slices == 1 and row.text("model") == "deepspeech2"
    return solo_row(
        run_id=f"miso-mig-{row.line}",
        campaign="mig",
        device=f"{_DEVICE} MIG {slices}g.{gigabytes}gb",
        share_mode="mig",
        step_ms_mean=1e3 * row.number("mean_iter_s", above=0),
        step_ms_p50=1e3 * row.number("median_iter_s", above=0),
        step_ms_p95=1e3 * row.number("p95_iter_s", above=0),
        steps=row.integer("n_iters", minimum=1),
        quality_flags=("noisy",) if noisy else (),
        **_job(row),
    )


def _job(row: PublishedRow) -> dict[str, object]:
    model, batch = row.text("model"), row.integer("batch_size", minimum=1)
    return {
        "job_key": job_key("miso", model, batch),
        "framework": "tensorflow",
        "architecture": model,
        "family": model_family(model),
        "batch": batch,
        "features_json": features_json(
            {"model": model, "batch_size": batch}, ZooFeatures.load().of(_ARCHITECTURES.get(model))
        ),
    }

"""Salus: peak memory and time per iteration of TensorFlow 1 networks.

The file names no GPU; the paper used a P100 with 16 GB: flagged device_from_paper. Time per iteration is wall time
over iterations, so runs of a minute include the start: flagged includes_start_up. Three run lengths are three rows of
one job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import SoloRow
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_COLUMNS: Final = "model batch_size run_length wall_s peak_gpu_mem_mb iterations s_per_iteration"
_MEGABYTE: Final = 1e6
_SHORT_RUN_S: Final = 120


def import_salus(folder: Path) -> ImportedSet:
    """Reads tf_workloads.csv.

    Raises:
        TrainingDataError: The file is not what the set's README describes; names file, line and column.
    """
    return ImportedSet(solo=[_row(row) for row in read_table(folder, "tf_workloads.csv", _COLUMNS)])


def _row(row: PublishedRow) -> SoloRow:
    model, batch = row.text("model"), row.integer("batch_size", minimum=1)
    short = row.number("wall_s", above=0) < _SHORT_RUN_S
    return solo_row(
        run_id=f"salus-{row.line}",
        campaign="tf_workloads",
        device="Tesla P100-PCIE-16GB",
        framework="tensorflow-1",
        job_key=job_key("salus", model, batch),
        architecture=model,
        family=model_family(model),
        batch=batch,
        step_ms_mean=1e3 * row.number("s_per_iteration", above=0),
        steps=row.integer("iterations", minimum=1),
        memory_peak_bytes=round(row.number("peak_gpu_mem_mb") * _MEGABYTE),
        quality_flags=("device_from_paper", *(("includes_start_up",) if short else ())),
        features_json=features_json({"model": model, "batch_size": batch}, ZooFeatures.load().of(model)),
    )

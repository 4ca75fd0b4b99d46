"""pytorch-gpu-benchmark: step time of torchvision models, 12 images of 224 x 224 per GPU, one to four GPUs.

A campaign is a folder of the source: one machine, one go; the two runs on an RTX 2080 Ti stay apart. Our zoo has the
models under the same names.

A step of training ends with the backward pass: the script updates no weight, so its optimizer is none. Half precision
is the whole model in 16 bits, weights too. The images are copied to the device within the step.
Source: benchmark_models.py, as copies of the repository at github (lamikr, Llauset and others) have it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cotenant.profile_schema import SoloRow
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, read_table
from predictor_service.importers.zoo_features import ZooFeatures

_COLUMNS: Final = "folder gpu n_gpus precision mode model batch_per_gpu median_ms mean_ms std_ms n"
_PRECISIONS: Final = {"half": "fp16", "float": "fp32", "double": "fp64"}
_MODES: Final = {"train": "train", "inference": "infer"}
_SIDE: Final = 224


def import_torchvision_bench(folder: Path) -> ImportedSet:
    """Reads step_times.csv.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    return ImportedSet(solo=[_row(row) for row in read_table(folder, "step_times.csv", _COLUMNS)])


def _row(row: PublishedRow) -> SoloRow:
    model, mode = row.text("model"), _MODES[row.choice("mode", tuple(_MODES))]
    gpus, per_device = row.integer("n_gpus", minimum=1), row.integer("batch_per_gpu", minimum=1)
    precision = _PRECISIONS[row.choice("precision", tuple(_PRECISIONS))]
    gpu = row.text("gpu")
    return solo_row(
        run_id=f"torchvision-{row.line}",
        campaign=re.sub(r"\W+", "_", row.text("folder")).strip("_"),
        mode=mode,
        device=gpu if gpu.startswith("NVIDIA") else f"NVIDIA {gpu}",
        job_key=job_key("torchvision_bench", model, per_device, gpus=gpus, precision=precision, mode=mode),
        architecture=model,
        family=model_family(model),
        batch=per_device * gpus,
        sub_batch=per_device,
        input_shape=f"3x{_SIDE}x{_SIDE}",
        precision=precision,
        optimizer="none",
        gpus=gpus,
        step_ms_mean=row.number("mean_ms", above=0),
        step_ms_p50=row.number("median_ms", above=0),
        steps=row.integer("n", minimum=1),
        features_json=features_json({"model": model, "batch_per_gpu": per_device}, ZooFeatures.load().of(model)),
    )

"""timm's benchmark tables: step time of training and inference of image models on five consumer GPUs.

Campaigns: train, and infer by torch version and compilation. `amp` is mixed precision in 16 bits. The training batch
is the largest that fitted, tried downward from 512. Our features at the image size of the row are joined where the
table of timm features has them, unless the parameters that are published with the row show that another network was
measured (an older one of that name, or one whose branches were merged): flagged features_of_another_network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import SoloRow
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, has_table, read_table
from predictor_service.importers.timm_features import TimmFeatures

_DEVICES: Final = {
    "RTX3090": "NVIDIA GeForce RTX 3090",
    "RTX4090": "NVIDIA GeForce RTX 4090",
    "RTX5090": "NVIDIA GeForce RTX 5090",
    "RTXPRO6000-MaxQ": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
}
_PRECISIONS: Final = {"amp": "fp16", "amp_bf16": "bf16", "bf16": "bf16"}
_PARAMETERS_TOLERANCE: Final = 0.05
_LAYOUTS: Final = ("nchw", "nhwc")
_MODEL_COLUMNS: Final = "gpu precision model params_m layout fwd_gmacs fwd_mactivations"
_TRAIN_COLUMNS: Final = "train_samples_per_sec train_step_ms train_batch_size train_img_size"
_INFER_COLUMNS: Final = "torch compiled infer_samples_per_sec infer_step_ms infer_batch_size infer_img_size"


def import_timm_bench(folder: Path) -> ImportedSet:
    """Reads train_rtx3090.csv, and infer_all_gpus.csv where it is.

    Raises:
        TrainingDataError: A file is not what the set's README describes; names file, line and column.
    """
    features = TimmFeatures.load()
    table = read_table(folder, "train_rtx3090.csv", f"{_MODEL_COLUMNS} {_TRAIN_COLUMNS}")
    rows = [_row(row, "train", features) for row in table]
    if has_table(folder, "infer_all_gpus.csv"):
        table = read_table(folder, "infer_all_gpus.csv", f"{_MODEL_COLUMNS} {_INFER_COLUMNS}")
        rows += [_row(row, "infer", features) for row in table]
    return ImportedSet(solo=rows)


def _row(row: PublishedRow, mode: str, features: TimmFeatures) -> SoloRow:
    model, layout = row.text("model"), row.choice("layout", _LAYOUTS)
    batch, side = row.integer(f"{mode}_batch_size", minimum=1), row.integer(f"{mode}_img_size", minimum=1)
    precision = _PRECISIONS[row.choice("precision", tuple(_PRECISIONS))]
    published = {
        "model": model,
        "layout": layout,
        "batch_size": batch,
        "img_size": side,
        **{name: row.optional_number(name) for name in ("params_m", "fwd_gmacs", "fwd_mactivations")},
    }
    graph = features.at_size(model, side)
    is_another = graph is not None and _differs(graph["parameters"], row.optional_number("params_m"))
    settings: dict[str, str | int] = {"side": side, "layout": layout, "mode": mode, "precision": row.text("precision")}
    return solo_row(
        run_id=f"timm-{mode}-{row.line}",
        campaign=_campaign(row, mode),
        mode=mode,
        device=_DEVICES[row.choice("gpu", tuple(_DEVICES))],
        job_key=job_key("timm_bench", model, batch, **settings),
        architecture=model.split(".")[0],
        family=model_family(model),
        batch=batch,
        input_shape=f"3x{side}x{side}",
        precision=precision,
        optimizer="none" if mode == "infer" else "unstated",
        step_ms_mean=row.number(f"{mode}_step_ms", above=0),
        quality_flags=("features_of_another_network",) if is_another else (),
        features_json=features_json(published, None if is_another else graph),
    )


def _differs(parameters: float, published_millions: float | None) -> bool:
    if not published_millions:
        return False
    return abs(parameters / (1e6 * published_millions) - 1) > _PARAMETERS_TOLERANCE


def _campaign(row: PublishedRow, mode: str) -> str:
    if mode == "train":
        return "train"
    return f"infer_torch{row.integer('torch')}{'_compiled' if row.flag('compiled') else ''}"

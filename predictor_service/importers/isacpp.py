"""ISACPP: slowdowns of pairs on RTX 3090 and RTX 4090, read from three figures of the manuscript; ratios only.

One campaign per figure. No time is published, of most pairs no batch, and of one figure it is not stated whether its
batch is that of both jobs: every row is rejected, ratio_only, and kept for comparisons by eye. Where the figure names
no GPU the device is isacpp-unnamed-gpu. A batch that is not published is 1, flagged batch_not_published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.importers.imported_set import ImportedSet, features_json, job_key, solo_row
from predictor_service.importers.model_families import model_family
from predictor_service.importers.published_table import PublishedRow, read_table

_COLUMNS: Final = "figure gpu victim_model other_model batch_size_on_axis victim_slowdown error_bar"
_DEVICES: Final = {
    "": "isacpp-unnamed-gpu",
    "RTX3090": "NVIDIA GeForce RTX 3090",
    "RTX4090": "NVIDIA GeForce RTX 4090",
}


def import_isacpp(folder: Path) -> ImportedSet:
    """Reads pairs.csv.

    Raises:
        TrainingDataError: The file is not what the set's README describes; names file, line and column.
    """
    solo: dict[tuple[str, str, str], SoloRow] = {}
    pairs = []
    for row in read_table(folder, "pairs.csv", _COLUMNS):
        pairs.append(_pair(row))
        for side in ("victim", "other"):
            solo.setdefault((_campaign(row), _device(row), _key(row, side)), _unpublished_solo(row, side))
    return ImportedSet(solo=list(solo.values()), pairs=pairs)


def _pair(row: PublishedRow) -> PairRow:
    doubts = () if row.cells["batch_size_on_axis"] else ("batch_not_published",)
    return PairRow(
        run_id=f"isacpp-pair-{row.line}",
        campaign=_campaign(row),
        device=_device(row),
        share_mode="unstated",
        victim_job_key=_key(row, "victim"),
        other_job_keys=(_key(row, "other"),),
        victim_step_ms_mean=None,
        victim_solo_step_ms_mean=None,
        slowdown_ratio=round(row.number("victim_slowdown", above=0) - 1, 6),
        repeat=0,
        status="rejected",
        quality_flags=("ratio_only", *doubts),
    )


def _unpublished_solo(row: PublishedRow, side: str) -> SoloRow:
    doubts = () if row.cells["batch_size_on_axis"] else ("batch_not_published",)
    model = row.text(f"{side}_model")
    return solo_row(
        run_id=f"isacpp-{side}-{row.line}",
        campaign=_campaign(row),
        device=_device(row),
        job_key=_key(row, side),
        architecture=model,
        family=model_family(model),
        batch=_batch(row),
        status="failed",
        quality_flags=("solo_not_published", *doubts),
        features_json=features_json({"model": model}),
    )


def _campaign(row: PublishedRow) -> str:
    return f"figure_{row.integer('figure', minimum=1)}"


def _device(row: PublishedRow) -> str:
    return _DEVICES[row.choice("gpu", tuple(_DEVICES))]


def _batch(row: PublishedRow) -> int:
    return row.integer("batch_size_on_axis", minimum=1) if row.cells["batch_size_on_axis"] else 1


def _key(row: PublishedRow, side: str) -> str:
    return job_key("isacpp", row.text(f"{side}_model"), _batch(row))

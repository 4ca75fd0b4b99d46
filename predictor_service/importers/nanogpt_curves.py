"""modded-nanogpt: loss curves of runs of GPT-2 size on eight H100. Curves only: runs state their batch in many ways."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.profile_schema import LossCurveRow
from predictor_service.importers.imported_set import ImportedSet
from predictor_service.importers.published_table import PublishedRow, read_table

_COLUMNS: Final = "run step split loss train_time_s"
_SPLITS: Final = {"train": "train", "val": "validation"}


def import_nanogpt_curves(folder: Path) -> ImportedSet:
    """Reads loss.csv.

    Raises:
        TrainingDataError: The file is not what the set's README describes; names file, line and column.
    """
    return ImportedSet(curves=[_point(row) for row in read_table(folder, "loss.csv", _COLUMNS)])


def _point(row: PublishedRow) -> LossCurveRow:
    elapsed_s = row.optional_number("train_time_s")
    return LossCurveRow(
        run=f"nanogpt-{row.text('run')}",
        step=row.integer("step"),
        epoch=None,
        split=_SPLITS[row.choice("split", tuple(_SPLITS))],
        loss=row.number("loss"),
        elapsed_ms=None if elapsed_s is None else round(1e3 * elapsed_s),
    )

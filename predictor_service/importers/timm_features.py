"""Our features of timm's models, by name and image size: datasets/timm_features, joined to sets that only name a model.

The table is rebuilt by `cotenant datasets features` where timm is installed; reading it needs no timm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from predictor_service.importers.published_table import PublishedRow, read_columns
from predictor_service.settings import default_datasets_dir

FILE_NAME: Final = "features.csv"
KEY_COLUMNS: Final = ("model", "input_shape", "is_default")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmFeatures:
    """The table.

    Attributes:
        by_shape: Features by model and shape of one sample, e.g. ("resnet50", "3x224x224").
        default_shapes: Shape at the size that a model is published for.
    """

    by_shape: Mapping[tuple[str, str], Mapping[str, float]]
    default_shapes: Mapping[str, str]

    @classmethod
    def load(cls, folder: Path | None = None) -> TimmFeatures:
        """Reads the table that comes with the program; without one, nothing is known.

        Raises:
            TrainingDataError: The table is damaged.
        """
        return _load(folder or default_datasets_dir() / "timm_features")

    def default_shape(self, model: str) -> str | None:
        """Shape of one sample at the model's own image size; None when the table lacks the model."""
        return self.default_shapes.get(_plain(model))

    def at_default_size(self, model: str) -> Mapping[str, float] | None:
        """Features at the model's own image size; None when the table lacks the model."""
        shape = self.default_shape(model)
        return None if shape is None else self.by_shape[_plain(model), shape]

    def at_size(self, model: str, side: int) -> Mapping[str, float] | None:
        """Features at a square image of three channels; None when the table lacks it."""
        return self.by_shape.get((_plain(model), f"3x{side}x{side}"))


def _plain(model: str) -> str:
    """The name without the tag of its weights: resnet50.a1_in1k is resnet50."""
    return model.split(".")[0]


@cache
def _load(folder: Path) -> TimmFeatures:
    by_shape: dict[tuple[str, str], Mapping[str, float]] = {}
    default_shapes: dict[str, str] = {}
    path = folder / FILE_NAME
    for row in read_columns(folder, FILE_NAME, KEY_COLUMNS) if path.is_file() else ():
        model, shape = row.text("model"), row.text("input_shape")
        by_shape[model, shape] = _features(row)
        if row.flag("is_default"):
            default_shapes[model] = shape
    return TimmFeatures(by_shape=by_shape, default_shapes=default_shapes)


def _features(row: PublishedRow) -> dict[str, float]:
    """Constants of lines may be below 0, where a count grows a little less than the batch."""
    return {name: row.number(name, minimum=-math.inf) for name in row.cells if name not in KEY_COLUMNS}

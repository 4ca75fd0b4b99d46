"""The public sets that can be imported, by name. A new set is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from predictor_service.errors import TrainingDataError
from predictor_service.importers.alnair import import_alnair
from predictor_service.importers.contributed import import_contributed
from predictor_service.importers.gavel import import_gavel
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.imported_set import ImportedSet
from predictor_service.importers.isacpp import import_isacpp
from predictor_service.importers.miso import import_miso
from predictor_service.importers.nanogpt_curves import import_nanogpt_curves
from predictor_service.importers.pollux import import_pollux
from predictor_service.importers.salus import import_salus
from predictor_service.importers.timm_bench import import_timm_bench
from predictor_service.importers.torchvision_bench import import_torchvision_bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One public set.

    Attributes:
        read: Reads the folder of the set.
        measures: What it knows, for people.
        licence: Of the data, as its README states it.
    """

    read: Callable[[Path], ImportedSet]
    measures: str
    licence: str


def _importer(read: Callable[[Path], ImportedSet], licence: str, measures: str) -> Importer:
    return Importer(read=read, measures=measures, licence=licence)


IMPORTERS: Final[Mapping[str, Importer]] = {
    "alnair": _importer(import_alnair, "Apache-2.0", "utilization alone and slowdown of pairs under MPS"),
    "gavel": _importer(import_gavel, "MIT", "step time alone and of pairs, K80 and V100"),
    "gpumemnet": _importer(import_gpumemnet, "CC-BY-4.0", "memory and utilization of generated and timm models, A100"),
    "isacpp": _importer(import_isacpp, "MIT", "slowdown of a few pairs, ratios only, RTX 3090 and 4090"),
    "miso": _importer(import_miso, "MIT", "utilization and memory on A100, step time on its MIG slices"),
    "nanogpt_curves": _importer(import_nanogpt_curves, "MIT", "loss curves of GPT-2 size, 8 x H100"),
    "pollux": _importer(import_pollux, "Apache-2.0", "step time over placements on T4, validation curves"),
    "salus": _importer(import_salus, "Apache-2.0", "memory and step time of TensorFlow 1 networks, P100"),
    "timm_bench": _importer(import_timm_bench, "Apache-2.0", "step time of timm models, RTX 3090 to PRO 6000"),
    "torchvision_bench": _importer(import_torchvision_bench, "MIT", "step time of torchvision models, six GPU types"),
}


CONTRIBUTED: Final = "contributed"
"""Not a public set but what strangers send: it is imported like one and never shipped."""


def import_set(name: str, folder: Path) -> ImportedSet:
    """Reads a public set.

    Args:
        name: One of `IMPORTERS`, or contributed.
        folder: Where its files lie, named as its README names them; a contributed file itself.

    Raises:
        TrainingDataError: Unknown name, or a file is not what the README describes; names file, line and column.
    """
    if name == CONTRIBUTED:
        return import_contributed(folder)
    importer = IMPORTERS.get(name)
    if importer is None:
        raise TrainingDataError(
            f"no importer is called {name!r}", remedy=f"use one of {', '.join(IMPORTERS)}, {CONTRIBUTED}"
        )
    return importer.read(folder)

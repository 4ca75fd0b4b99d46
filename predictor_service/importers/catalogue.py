"""The public sets that can be imported, by name. A new set is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from predictor_service.errors import TrainingDataError
from predictor_service.importers.gavel import import_gavel
from predictor_service.importers.gpumemnet import import_gpumemnet
from predictor_service.importers.imported_set import ImportedSet


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


IMPORTERS: Final[Mapping[str, Importer]] = {
    "gavel": Importer(read=import_gavel, measures="step time alone and in pairs, K80 and V100", licence="MIT"),
    "gpumemnet": Importer(read=import_gpumemnet, measures="memory and utilization, A100", licence="CC-BY-4.0"),
}


def import_set(name: str, folder: Path) -> ImportedSet:
    """Reads a public set.

    Args:
        name: One of `IMPORTERS`.
        folder: Where its files lie, named as its README names them.

    Raises:
        TrainingDataError: Unknown name, or a file is not what the README describes; names file, line and column.
    """
    importer = IMPORTERS.get(name)
    if importer is None:
        raise TrainingDataError(f"no importer is called {name!r}", remedy=f"use one of {', '.join(IMPORTERS)}")
    return importer.read(folder)

"""Files of `cotenant calibrate --contribute`: measurements of devices that are not here, as rows of the schema.

A file holds rows already; they are checked like any others. Their graphs are those of the zoo, whose figures come from
`datasets/zoo_features`, so that no graph file is needed. What was predicted there before is not read: it only judges.

What was measured while others used the device (`--despite-load`) is rejected, as in a campaign: it would teach their
load as the device's speed, and its ranges would hold on no other day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from cotenant.profile_schema import PairRow, ProfileSchemaError, SoloRow, parse_row
from predictor_service.errors import TrainingDataError
from predictor_service.importers.imported_set import ImportedSet, features_json
from predictor_service.importers.zoo_features import ZooFeatures

SCHEMA: Final = "cotenant.contribution/1"
_FILE_BYTES_MAX: Final = 8 << 20
_FILES_MAX: Final = 1_000
_FOREIGN_LOAD: Final = "foreign_load"
_UNTOUCHED: Final = "leave the file as it was written"
Row = TypeVar("Row", SoloRow, PairRow)


def import_contributed(place: Path) -> ImportedSet:
    """Reads a contributed file, or every one in a folder.

    Raises:
        TrainingDataError: There is none, or one holds something else or rows that cannot be; names the file.
    """
    paths = sorted(place.glob("*.json"))[:_FILES_MAX] if place.is_dir() else [place]
    if not paths:
        raise TrainingDataError(f"{place} has no .json file", remedy="name a file of `cotenant calibrate --contribute`")
    solo, pairs = [], []
    zoo = ZooFeatures.load()
    for path in paths:
        content = _read(path)
        for name, cells in content["measured"].items():
            solo += [_with_features(row, zoo) for row in _rows(f"{path.name}, {name}", [cells], SoloRow)]
        for names, rows in content["paired"].items():
            pairs += list(_rows(f"{path.name}, {names}", rows, PairRow))
    return ImportedSet(solo=solo, pairs=pairs)


def _read(path: Path) -> Mapping[str, Any]:
    remedy = "name a file of `cotenant calibrate --contribute`"
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        content = json.loads(data) if len(data) <= _FILE_BYTES_MAX else None
    except (OSError, ValueError, RecursionError) as error:
        raise TrainingDataError(f"{path} cannot be read: {error}", remedy=remedy) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise TrainingDataError(f"{path} is no contribution of the schema {SCHEMA}", remedy=remedy)
    if not all(isinstance(content.get(part), dict) for part in ("measured", "paired")):
        raise TrainingDataError(f"{path} lacks measured or paired", remedy=remedy)
    return content


def _rows(source: str, rows: Any, row_type: type[Row]) -> Iterator[Row]:  # noqa: ANN401 (of a stranger's file)
    for cells in rows if isinstance(rows, Iterable) else (rows,):
        if not isinstance(cells, dict) or not all(isinstance(value, str) for value in cells.values()):
            raise TrainingDataError(f"{source}: a row is not made of text cells", remedy=_UNTOUCHED)
        try:
            row = parse_row(cells, row_type, source)
        except ProfileSchemaError as error:
            raise TrainingDataError(str(error), remedy=_UNTOUCHED) from error
        is_contaminated = row.status == "ok" and _FOREIGN_LOAD in row.quality_flags
        yield replace(row, status="rejected") if is_contaminated else row


def _with_features(row: SoloRow, zoo: ZooFeatures) -> SoloRow:
    return replace(row, graph_sha256=None, features_json=features_json({}, zoo.of(row.architecture)))

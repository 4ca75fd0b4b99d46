"""What an importer returns, and how it becomes a dataset folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from cotenant.profile_schema import (
    SCHEMA_VERSION,
    LossCurveRow,
    PairRow,
    ProfileSchemaError,
    SoloRow,
    write_rows,
)
from predictor_service.errors import TrainingDataError

MEBIBYTE: Final = 1 << 20
UNSTATED: Final = "unstated"

Features: TypeAlias = Mapping[str, "float | int | str | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSet:
    """A public set in our schema.

    Attributes:
        solo: Jobs alone.
        pairs: Co-located jobs.
        curves: Points of loss curves.
    """

    solo: Sequence[SoloRow] = ()
    pairs: Sequence[PairRow] = ()
    curves: Sequence[LossCurveRow] = ()


def job_key(set_name: str, architecture: str, batch: int, **settings: str | int) -> str:
    """Names a job by what the set publishes of it: equal for equal jobs in every campaign and on every device.

    Args:
        set_name: The public set.
        architecture: Its name for the model.
        batch: Samples per optimizer step and device.
        settings: Whatever else distinguishes two jobs of the set.

    Returns:
        64 hexadecimal digits.
    """
    identity = [set_name, architecture, batch, sorted(settings.items())]
    return hashlib.sha256(json.dumps(identity, separators=(",", ":")).encode()).hexdigest()


def features_json(published: Features, graph: Features | None = None) -> str | None:
    """The cell of features: what the set publishes below `set.`, what we computed below `graph.`; null for nothing."""
    named = {f"set.{name}": value for name, value in published.items()}
    named.update({f"graph.{name}": value for name, value in (graph or {}).items()})
    return json.dumps(named, separators=(",", ":"), sort_keys=True) if named else None


def solo_row(**known: Any) -> SoloRow:  # noqa: ANN401 (the row's own columns, checked when the set is written)
    """A row of a job alone. What public sets never state is filled in; one device unless said otherwise.

    Args:
        known: Columns of `SoloRow`; at least run_id, campaign, device, job_key, architecture, family, batch.
    """
    defaults: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "mode": "train",
        "driver": UNSTATED,
        "framework": "pytorch",
        "share_mode": "exclusive",
        "precision": "fp32",
        "optimizer": UNSTATED,
        "input_wait_ratio": 0.0,
        "gpus": 1,
        "nodes": 1,
        "sub_batch": known["batch"],
        "steps": 0,
        "status": "ok",
        "quality_flags": (),
    }
    nullable: dict[str, Any] = dict.fromkeys(SoloRow.__slots__)
    return SoloRow(**(nullable | defaults | known))


def write_set(folder: Path, imported: ImportedSet, suffix: str = ".csv") -> list[Path]:
    """Writes the files of a dataset folder; creates the folder.

    Args:
        folder: Where they go.
        imported: Rows.
        suffix: .csv, or .csv.gz for compressed files.

    Returns:
        The files: solo and pairs always, loss_curves where there are curves.

    Raises:
        TrainingDataError: A row breaks the schema, or the folder cannot be written.
    """
    files = [folder / f"{kind}{suffix}" for kind in ("solo", "pairs", "loss_curves")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(files[0], imported.solo, SoloRow)
        write_rows(files[1], imported.pairs, PairRow)
        if imported.curves:
            write_rows(files[2], imported.curves, LossCurveRow)
    except (ProfileSchemaError, OSError) as error:
        raise TrainingDataError(str(error), remedy="name a folder that can be written, or report the row") from error
    return sorted(path for path in folder.iterdir() if path in files)

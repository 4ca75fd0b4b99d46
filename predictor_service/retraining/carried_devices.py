"""Device types that new data do not mention keep their served models: a set of one GPU type must not cost the others.

They are taken over as they are, with what they predicted of held-out rows, so that the gate finds them unchanged.
Models of older features or rules are not taken over: they are learned anew from their data, or promoted by hand.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from predictor_service.features.devices import find_device_type
from predictor_service.features.job_features import FEATURE_VERSION
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, held_out_to_json
from predictor_service.registry.manifest import LEARNING_VERSION, Manifest, TargetRecord, seal
from predictor_service.registry.model_card import write_card
from predictor_service.retraining.datasets import Dataset, fingerprint
from predictor_service.retraining.training import TrainedVersion


def list_mentioned(datasets: Iterable[Dataset]) -> frozenset[str]:
    """Device types that have a row, by the names that versions keep them by."""
    names = {row.device for dataset in datasets for row in dataset.solo}
    names |= {row.device for dataset in datasets for row in dataset.pairs}
    return frozenset(device.name if (device := find_device_type(name)) else name for name in names)


def carry_over(
    trained: TrainedVersion, datasets: Sequence[Dataset], served: Manifest, held_out: HeldOut, folder: Path
) -> TrainedVersion:
    """Adds the served models of device types that the data do not mention.

    Args:
        trained: From the data alone.
        datasets: The data.
        served: Manifest of the served version.
        held_out: What it predicted of held-out rows.
        folder: Of its files.

    Returns:
        The version with both; `trained` itself where nothing is to be added.

    Raises:
        OSError: A file of the served version cannot be read.
    """
    if (served.feature_version, served.learning_version) != (FEATURE_VERSION, LEARNING_VERSION):
        return trained
    mentioned = list_mentioned(datasets)
    kept = {device: records for device, records in served.targets.items() if device not in mentioned}
    if not kept:
        return trained
    own = trained.manifest
    rows = {**trained.held_out, **{device: held_out[device] for device in kept if device in held_out}}
    text = held_out_to_json(rows).encode()
    hashes = {**served.datasets, **own.datasets}
    manifest = seal(
        dataclasses.replace(
            own,
            version="",
            fingerprint=fingerprint(hashes),
            datasets=hashes,
            targets={**own.targets, **kept},
            skipped=tuple(sorted({*own.skipped, *(line for line in served.skipped if _is_about(line, kept))})),
            seen=_merge(served.seen, own.seen),
            held_out_sha256=hashlib.sha256(text).hexdigest(),
        )
    )
    files = {**trained.files, **{name: (folder / name).read_bytes() for name in _file_names(kept)}}
    files |= {HELD_OUT_FILE: text, "card.md": write_card(manifest).encode()}
    return TrainedVersion(manifest=manifest, files=files, held_out=rows)


def _is_about(line: str, devices: Iterable[str]) -> bool:
    return any(line.startswith((f"{device}:", f"{device},")) for device in devices)


def _merge(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {level: tuple(sorted({*one.get(level, ()), *other.get(level, ())})) for level in sorted({*one, *other})}


def _file_names(kept: Mapping[str, Mapping[str, TargetRecord]]) -> list[str]:
    records = [record for targets in kept.values() for record in targets.values()]
    return [Path(name).name for record in records for name in record.file_names]

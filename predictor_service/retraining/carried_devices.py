"""Models that a new version takes over: of device types without data, and public ones where they are better.

A set of one GPU type must not cost the others: the served models of types that it does not mention are taken over as
they are, with what they predicted of held-out rows, so that the gate finds them unchanged. Models that come with the
program (`TargetRecord.is_public`) yield to what own rows of the same type teach, but only where that errs less on the
own rows. Models of older features or rules are not taken over: they are learned anew from their data, or promoted by
hand.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor_service.features.devices import find_device_type
from predictor_service.registry.held_out import HELD_OUT_FILE, HeldOut, held_out_to_json
from predictor_service.registry.manifest import Manifest, TargetRecord, seal
from predictor_service.registry.model_card import write_card
from predictor_service.registry.public_version import PackedVersion, learns_alike
from predictor_service.regressors.candidates import UNCORRECTED
from predictor_service.retraining.datasets import Dataset, fingerprint
from predictor_service.retraining.public_models import PublicTarget, is_better
from predictor_service.retraining.training import TrainedVersion

_Records = dict[str, dict[str, TargetRecord]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredModels:
    """Models that may be taken over.

    Attributes:
        manifest: Of their version.
        held_out: What it predicted of held-out rows.
        read: Returns the content of a file by its name; raises OSError.
    """

    manifest: Manifest
    held_out: HeldOut
    read: Callable[[str], bytes]


def models_of_package(packed: PackedVersion) -> StoredModels:
    """The models of others that come with the program; those of the stand-in are learned from its own rows.

    Not among them: a device type's own model that is the model of all types as it is. It would answer the same, with
    the range of its few families instead of one that was checked on whole device types left out.
    """
    targets = {
        device: {name: record for name, record in records.items() if record.winner != UNCORRECTED}
        for device, records in _public_only(packed.manifest.targets).items()
    }
    manifest = dataclasses.replace(packed.manifest, targets={name: kept for name, kept in targets.items() if kept})
    return StoredModels(manifest=manifest, held_out=packed.held_out, read=lambda name: packed.files[name])


def list_mentioned(datasets: Iterable[Dataset]) -> frozenset[str]:
    """Device types that have a row, by the names that versions keep them by."""
    names = {row.device for dataset in datasets for row in dataset.solo}
    names |= {row.device for dataset in datasets for row in dataset.pairs}
    return frozenset(device.name if (device := find_device_type(name)) else name for name in names)


def carry_over(trained: TrainedVersion, datasets: Sequence[Dataset], source: StoredModels) -> TrainedVersion:
    """Adds models that were served, or that come with the program.

    Args:
        trained: From the data alone.
        datasets: The data.
        source: What may be taken over.

    Returns:
        The version with both; `trained` itself where nothing is to be added.

    Raises:
        OSError: A file of the source cannot be read.
    """
    served = source.manifest
    if not learns_alike(served):
        return trained
    mentioned = list_mentioned(datasets)
    kept = {device: dict(records) for device, records in served.targets.items() if device not in mentioned}
    kept |= _better_ones(trained, datasets, source, mentioned)
    return _join(trained, kept, source) if kept else trained


def keep_served(
    trained: TrainedVersion, targets: Collection[tuple[str, str]], source: StoredModels
) -> TrainedVersion | None:
    """The version with some targets as they are served, and without the changes that were found of them.

    Args:
        trained: As it was learned.
        targets: Device type and target of each that stays.
        source: The served models.

    Returns:
        None where one of them is not served, or the served models are of older rules.

    Raises:
        OSError: A file of the source cannot be read.
    """
    served = source.manifest
    if not learns_alike(served) or any(target not in served.targets.get(device, {}) for device, target in targets):
        return None
    kept: _Records = {}
    for device, target in targets:
        kept.setdefault(device, {})[target] = served.targets[device][target]
    changes = tuple(
        change
        for change in trained.manifest.changes
        if change in served.changes or (change.device, change.target) not in targets
    )
    manifest = dataclasses.replace(trained.manifest, changes=changes)
    return _join(dataclasses.replace(trained, manifest=manifest), kept, source)


def _better_ones(
    trained: TrainedVersion, datasets: Sequence[Dataset], source: StoredModels, mentioned: frozenset[str]
) -> _Records:
    """Models of others for device types that have own rows: where these teach nothing, or nothing better."""
    kept: _Records = {}
    for device, records in _public_only(source.manifest.targets).items():
        if device not in mentioned:
            continue
        for target, record in records.items():
            own = trained.held_out.get(device, {}).get(target)
            known = source.held_out.get(device, {}).get(target)
            if own is None or is_better(PublicTarget(device, record, known, source.read), datasets, own):
                kept.setdefault(device, {})[target] = record
    return kept


def _public_only(targets: Mapping[str, Mapping[str, TargetRecord]]) -> _Records:
    public = {
        device: {name: record for name, record in records.items() if record.is_public}
        for device, records in targets.items()
    }
    return {device: records for device, records in public.items() if records}


def _join(trained: TrainedVersion, kept: _Records, source: StoredModels) -> TrainedVersion:
    own, served = trained.manifest, source.manifest
    rows = {device: dict(targets) for device, targets in trained.held_out.items()}
    targets = {device: dict(records) for device, records in own.targets.items()}
    for device, records in kept.items():
        targets.setdefault(device, {}).update(records)
        found = source.held_out.get(device, {})
        rows.setdefault(device, {}).update({name: found[name] for name in records if name in found})
    text = held_out_to_json(rows).encode()
    hashes = {**served.datasets, **own.datasets}
    manifest = seal(
        dataclasses.replace(
            own,
            version="",
            fingerprint=fingerprint(hashes),
            datasets=hashes,
            targets=targets,
            skipped=tuple(sorted({*own.skipped, *(line for line in served.skipped if _is_about(line, kept))})),
            seen=_merge(served.seen, own.seen),
            held_out_sha256=hashlib.sha256(text).hexdigest(),
        )
    )
    files = {**trained.files, **{name: source.read(name) for name in _file_names(kept)}}
    files |= {HELD_OUT_FILE: text, "card.md": write_card(manifest).encode()}
    return TrainedVersion(manifest=manifest, files=files, held_out=rows)


def _is_about(line: str, devices: Iterable[str]) -> bool:
    return any(line.startswith((f"{device}:", f"{device},")) for device in devices)


def _merge(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {level: tuple(sorted({*one.get(level, ()), *other.get(level, ())})) for level in sorted({*one, *other})}


def _file_names(kept: Mapping[str, Mapping[str, TargetRecord]]) -> list[str]:
    records = [record for targets in kept.values() for record in targets.values()]
    return [Path(name).name for record in records for name in record.file_names]

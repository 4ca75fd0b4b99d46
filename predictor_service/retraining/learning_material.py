"""What a retraining learns from: data sets, what running jobs taught, and since when a device measures otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from predictor_service.errors import ModelError, TrainingDataError
from predictor_service.features.devices import find_device_type
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.profile_store.intake import open_profiles
from predictor_service.profile_store.measurement_window import StoredMeasurementWindow
from predictor_service.profile_store.store import FILE_NAME as PROFILES_FILE
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.collected_rows import CollectedProfiles, collect_profiles
from predictor_service.retraining.datasets import Dataset, find_datasets, read_datasets
from predictor_service.retraining.device_changes import FoundChange, alarming_targets, find_changes
from predictor_service.retraining.drift import read_drift
from predictor_service.retraining.restated_rows import restate_dataset

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningMaterial:
    """Everything that would be learned from.

    Attributes:
        datasets: Data sets, then what running jobs taught; what is older than a change is restated.
        changes: All changes: those of the served version, and `found`.
        found: Changes that the served version does not know.
        left_out: Windows of the profile store left out by reason.
    """

    datasets: Sequence[Dataset]
    changes: Sequence[DeviceChange] = ()
    found: Sequence[FoundChange] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


def collect_material(
    state_dir: Path, root: Path, store: VersionStore, *, from_outcomes: bool, devices: Collection[str], tell: Tell
) -> LearningMaterial:
    """Reads what there is.

    Args:
        state_dir: Of the service.
        root: Folder of data sets.
        store: Of versions.
        from_outcomes: Whether what running jobs taught, the profile store, counts.
        devices: Device types to learn; none = all.
        tell: Receives the progress, one line each.

    Raises:
        TrainingDataError: There is nothing to learn from.
    """
    names = frozenset(_full_name(name) for name in devices)
    datasets = read_datasets(root) if find_datasets(root) or not from_outcomes else []
    changes = _known_changes(store)
    if not from_outcomes:
        restated = [restate_dataset(each, changes) for each in datasets]
        return LearningMaterial(datasets=_of_devices(restated, names), changes=changes)
    if not any((state_dir / name).is_file() for name in (PROFILES_FILE, JOURNAL_FILE)):
        raise TrainingDataError(
            f"{state_dir} has no profiles", remedy="they come from a service that ran there while jobs did"
        )
    with closing(open_profiles(state_dir)) as opened:
        stored = opened.read()
    collected = _collect(stored, state_dir, datasets, changes)
    found = _find_changes(state_dir, store, collected, names, [each.name for each in datasets])
    if found:
        changes = (*changes, *(item.change for item in found))
        collected = _collect(stored, state_dir, datasets, changes)
    _tell_about(collected, found, tell)
    restated = [restate_dataset(each, changes) for each in datasets]
    if collected.dataset is not None:
        restated.append(collected.dataset)
    if not restated:
        raise TrainingDataError("no profile can be learned from", remedy="give --datasets, or let jobs run longer")
    return LearningMaterial(
        datasets=_of_devices(restated, names), changes=changes, found=found, left_out=collected.left_out
    )


def _collect(
    stored: Sequence[StoredMeasurementWindow],
    state_dir: Path,
    datasets: Sequence[Dataset],
    changes: Sequence[DeviceChange],
) -> CollectedProfiles:
    return collect_profiles(stored, state_dir / "graphs", datasets, changes)


def _known_changes(store: VersionStore) -> tuple[DeviceChange, ...]:
    served = store.current()
    try:
        return () if served is None else store.manifest(served).changes
    except ModelError:  # a version that cannot be read any more knows nothing
        return ()


def _find_changes(
    state_dir: Path,
    store: VersionStore,
    collected: CollectedProfiles,
    names: Collection[str],
    datasets: Sequence[str],
) -> list[FoundChange]:
    """What changed where an alarm is on; public models come with no claim about the machines at hand."""
    served = store.current()
    if served is None or not (state_dir / JOURNAL_FILE).is_file():
        return []
    alarming = alarming_targets(read_drift(state_dir / JOURNAL_FILE))
    asked = [each for each in alarming if not names or _full_name(each[0]) in names]
    if not asked:
        return []
    try:
        champion, held_out = store.load(served).without_public(), store.held_out(served)
    except ModelError:
        return []
    return find_changes(collected, champion, held_out, asked, datasets)


def _tell_about(collected: CollectedProfiles, found: Sequence[FoundChange], tell: Tell) -> None:
    for reason, count in sorted(collected.left_out.items()):
        tell(f"{count} measurement windows left out: {reason}")
    if collected.dataset is not None:
        tell(f"{len(collected.dataset.solo)} jobs and {len(collected.dataset.pairs)} pairs measured in operation")
    for item in found:
        tell(item.change.say())


def _full_name(name: str) -> str:
    device = find_device_type(name)
    return device.name if device else name


def _of_devices(datasets: Sequence[Dataset], names: Collection[str]) -> Sequence[Dataset]:
    """The rows of some device types; all where none is named."""
    if not names:
        return datasets
    found = [
        dataclasses.replace(
            dataset,
            solo=tuple(row for row in dataset.solo if _full_name(row.device) in names),
            pairs=tuple(row for row in dataset.pairs if _full_name(row.device) in names),
        )
        for dataset in datasets
    ]
    kept = [dataset for dataset in found if dataset.solo or dataset.pairs]
    if not kept:
        raise TrainingDataError(
            f"nothing was measured on {', '.join(sorted(names))}", remedy="name another device type, or none for all"
        )
    return kept

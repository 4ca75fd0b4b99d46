"""One retraining from start to end: collect, train, compare, promote or refuse. One at a time for a state folder."""

from __future__ import annotations

import fcntl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from predictor_service.errors import ModelError, RetrainingBusyError
from predictor_service.registry.held_out import HeldOut
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.public_version import learns_alike, read_public_version
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.batch_check import find_contradictions, find_repeated_runs
from predictor_service.retraining.carried_devices import StoredModels, carry_over, keep_served, models_of_package
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.device_changes import FoundChange
from predictor_service.retraining.first_rows import find_mixed_labels, find_wrong_units
from predictor_service.retraining.gate import Objection, TargetComparison, compare_held_out, compare_newest
from predictor_service.retraining.learned_rows import name_collected
from predictor_service.retraining.learning_material import LearningMaterial, Tell, collect_material
from predictor_service.retraining.public_models import without_public
from predictor_service.retraining.training import TrainedVersion, train_version

LOCK_FILE: Final = ".retraining.lock"
MEANWHILE: Final = "an operator changed what is served while it was learned; retrain again, or promote it"


class RetrainingOutcome(StrEnum):
    """How a retraining ended."""

    PROMOTED = "promoted"
    REFUSED = "refused"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingPlan:
    """What to learn from.

    Attributes:
        state_dir: Models, graphs and the journal.
        datasets: Folder of dataset folders.
        from_outcomes: Whether what running jobs taught, the profile store, becomes rows.
        devices: Device types to learn, the others stay as they are served; none = all.
        seed: Of every regressor.
        why: For the history.
    """

    state_dir: Path
    datasets: Path
    from_outcomes: bool = False
    devices: tuple[str, ...] = ()
    seed: int = 0
    why: str = "retrained"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingResult:
    """How it ended.

    Attributes:
        outcome: See there.
        version: The new version; empty when the data was refused before anything was learned.
        served: The version that is served now.
        why: One sentence for each reason.
        comparisons: Target by target, where there was a served version to compare with.
        left_out: Windows of the profile store left out by reason.
    """

    outcome: RetrainingOutcome
    version: str
    served: str
    why: Sequence[str]
    comparisons: Sequence[TargetComparison] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema": "cotenant.retraining/1",
            "outcome": self.outcome.value,
            "version": self.version,
            "served": self.served,
            "why": list(self.why),
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
            "outcomes_left_out": dict(self.left_out),
        }


def retrain(plan: RetrainingPlan, registry: ModelRegistry, tell: Tell) -> RetrainingResult:
    """Retrains once. Killed at any moment it leaves the served version as it was, or the new one whole.

    Args:
        plan: What to learn from.
        registry: Of the same state folder.
        tell: Receives the progress, one line each.

    Raises:
        TrainingDataError: There is nothing to learn from.
        RetrainingBusyError: Another retraining of this state folder is under way.
    """
    with _alone(plan.state_dir / "models"):
        tell("reading the data")
        served = registry.store.current() or ""
        material = collect_material(
            plan.state_dir,
            plan.datasets,
            registry.store,
            from_outcomes=plan.from_outcomes,
            devices=plan.devices,
            tell=tell,
        )
        datasets, left_out = material.datasets, material.left_out
        repeated = find_repeated_runs(datasets)
        if repeated:
            registry.refuse("", "; ".join(repeated))
            return RetrainingResult(
                outcome=RetrainingOutcome.REFUSED, version="", served=served, why=repeated, left_out=left_out
            )
        tell(f"training on {', '.join(dataset.name for dataset in datasets)}")
        trained = _keep_others(train_version(datasets, plan.seed, changes=material.changes), datasets, registry)
        registry.add(trained.manifest, trained.files, plan.why)
        if trained.manifest.version == served:
            return RetrainingResult(
                outcome=RetrainingOutcome.UNCHANGED,
                version=served,
                served=served,
                why=["same data, seed and rules"],
                left_out=left_out,
            )
        tell("comparing with the served version")
        return _decide(plan, registry, material, trained, served)


def _keep_others(trained: TrainedVersion, datasets: Sequence[Dataset], registry: ModelRegistry) -> TrainedVersion:
    """The version with the served models of device types that the data do not mention."""
    try:
        source = _find_source(registry.store)
        return trained if source is None else carry_over(trained, datasets, source)
    except (ModelError, OSError):  # a version that cannot be read any more has nothing to give
        return trained


def _find_source(store: VersionStore) -> StoredModels | None:
    """What may be taken over: the served models, else, or where these are of older rules, those of the program.

    A retraining before the first start must not lose what a first start takes over.
    """
    served = store.current()
    if served is not None and learns_alike(manifest := store.manifest(served)):
        folder = store.folder(served)
        return StoredModels(
            manifest=manifest, held_out=store.held_out(served), read=lambda name: (folder / name).read_bytes()
        )
    packed = read_public_version()
    return None if packed is None else models_of_package(packed)


def _decide(
    plan: RetrainingPlan, registry: ModelRegistry, material: LearningMaterial, trained: TrainedVersion, served: str
) -> RetrainingResult:
    objections, comparisons, note = _judge(plan, registry, material, trained)
    cured = _keep_the_others(registry, material, trained, objections)
    if cured is not None:
        registry.add(cured.manifest, cured.files, plan.why)
        trained = cured
    new = {item.change for item in material.found} & set(trained.manifest.changes)
    note = "; ".join([note, *(change.say() for change in sorted(new)), *(f"as served: {each}" for each in objections)])
    name, details = trained.manifest.version, {"comparisons": [comparison.as_json() for comparison in comparisons]}
    refused = [str(each) for each in objections] if cured is None else []
    if not refused and not registry.promote(name, f"{plan.why}: {note}", details, in_place_of=served):
        refused = [MEANWHILE]
    if refused:
        registry.refuse(name, "; ".join(refused), details)
    return RetrainingResult(
        outcome=RetrainingOutcome.REFUSED if refused else RetrainingOutcome.PROMOTED,
        version=name,
        served=registry.store.current() or "",
        why=refused or [note],
        comparisons=comparisons,
        left_out=material.left_out,
    )


def _keep_the_others(
    registry: ModelRegistry, material: LearningMaterial, trained: TrainedVersion, objections: Sequence[Objection]
) -> TrainedVersion | None:
    """The version in which what is objected to stays as it is served; None unless that cures a device that changed.

    A slower device makes jobs that wait for input busier, each by another share: what jobs do not share must not keep
    what they share from being learned.
    """
    refused = {(each.device, each.target) for each in objections}
    if not refused or not {(item.change.device, item.change.target) for item in material.found} - refused:
        return None
    try:
        source = _find_source(registry.store)
        return None if source is None else keep_served(trained, refused, source)
    except (ModelError, OSError):
        return None


def _judge(
    plan: RetrainingPlan, registry: ModelRegistry, material: LearningMaterial, trained: TrainedVersion
) -> tuple[list[Objection], list[TargetComparison], str]:
    """Objections, comparisons, and the reason to state when there is no objection."""
    served = registry.store.current()
    if served is None:
        return _judge_first(material.datasets, trained, {}), [], "the first version"
    try:
        champion = registry.store.load(served)
        held_out = without_public(registry.store.held_out(served), champion.manifest)
    except ModelError as error:
        return [], [], f"version {served} cannot be served any more ({error.message})"
    changes = [item.change for item in material.found]
    held_out = _without_changed(held_out, {(change.device, change.target) for change in changes})
    comparisons = compare_held_out(held_out, trained.held_out, plan.seed)
    comparisons += [_compare_change(item, material.datasets, trained, plan.seed) for item in material.found]
    objections = find_contradictions(material.datasets, champion.without_public(), held_out, changes)
    objections += _judge_first(material.datasets, trained, held_out)
    objections += [Objection(each.device, each.target, each.objection) for each in comparisons if each.objection]
    return objections, comparisons, f"not worse than {served} on the same held-out groups"


def _judge_first(datasets: Sequence[Dataset], trained: TrainedVersion, served: HeldOut) -> list[Objection]:
    """What speaks against targets that are not served yet.

    What came with the program was judged before it was shipped, and is nothing that these data teach.
    """
    own = without_public(trained.held_out, trained.manifest)
    return [*find_wrong_units(datasets, own, served), *find_mixed_labels(own, served)]


def _without_changed(held_out: HeldOut, changed: Collection[tuple[str, str]]) -> HeldOut:
    """Rows of before a change are no judges of what is behind it."""
    return {
        device: {target: rows for target, rows in targets.items() if (device, target) not in changed}
        for device, targets in held_out.items()
    }


def _compare_change(
    found: FoundChange, datasets: Sequence[Dataset], trained: TrainedVersion, seed: int
) -> TargetComparison:
    device, target = found.change.device, found.change.target
    known = trained.held_out.get(device, {}).get(target)
    predicted = {} if known is None else dict(zip(known.row_ids, known.predicted, strict=True))
    names = name_collected(datasets, device, target)
    return compare_newest(
        device,
        target,
        champion=found.newest,
        challenger={job_key: predicted[name] for job_key, name in names.items() if name in predicted},
        seed=seed,
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock of a state folder; the kernel releases it whatever happens to this process."""
    with (folder / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetrainingBusyError(
                f"another retraining of {folder.parent} is under way", remedy="wait for it, or cancel it"
            ) from None
        yield

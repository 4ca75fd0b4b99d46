"""train: learn from every dataset and serve the result without asking the gate; for the first model of a service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from cotenant.structured_log import start_logging
from predictor_service.errors import ModelError, TrainingDataError
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.model_registry import ModelRegistry, current_user
from predictor_service.registry.public_version import TEACHING_SETS, PackedVersion, read_public_version
from predictor_service.registry.staleness import learned_by_older_rules
from predictor_service.registry.version_store import VersionStore
from predictor_service.retraining.datasets import hash_datasets, read_datasets
from predictor_service.settings import SETTINGS, Settings

_PATH: Final = click.Path(path_type=Path)
_COMES_WITH_IT: Final = "comes with the program"
_log = logging.getLogger(__name__)
Tell = Callable[[str], None]


@click.command("train")
@SETTINGS.options("state_dir", "datasets", "seed")
def train_command(settings: Settings) -> None:
    """Train on every dataset and make the result the version to serve; prints its name.

    Where the data sets are those that come with the program, so do the models, and nothing is trained.
    """
    start_logging("predictor", settings.log_level)
    click.echo(make_first_version(settings, lambda line: _log.info("first_version", extra={"reason": line})))


def ensure_version(settings: Settings, tell: Tell) -> None:
    """Serves a first version where there is none, or only one of an older program, for callers without a service.

    A service learns anew by itself what was learned by older rules (`ModelUpkeep`).
    """
    name = VersionStore(settings.state_dir / "models").current()
    if name is None:
        make_first_version(settings, tell)
    elif _came_with_older_program(settings, name):
        make_first_version(settings, tell, "models of an older program")


def _came_with_older_program(settings: Settings, name: str) -> bool:
    registry = ModelRegistry(settings.state_dir / "models", current_user())
    try:
        if not learned_by_older_rules(registry.store.manifest(name)):
            return False
        return any(event.version == name and event.why == _COMES_WITH_IT for event in registry.history.events())
    finally:
        registry.close()


def make_first_version(settings: Settings, tell: Tell, why: str = "no model yet") -> str:
    """Serves a first version and returns its name: the one that comes with the program, or one that is trained.

    Args:
        settings: State folder, data sets and seed.
        tell: Receives what is done, one line each.
        why: What is told of the need for it.

    Raises:
        TrainingDataError: There is no data set, nothing can be learned, or its rows are of another unit.
    """
    packed = _read_packed(tell)
    found = serve_packed(settings, packed)
    if found is not None:
        tell(f"{why}: taking over the models that come with the program")
        return found
    tell(f"{why}: training once, some twenty seconds")
    return _train(settings, packed)


def serve_packed(settings: Settings, packed: PackedVersion | None) -> str | None:
    """Serves the version that comes with the program and returns its name; None where it was made from other data."""
    if packed is None or packed.manifest.seed != settings.seed:
        return None
    own = {name: sha256 for name, sha256 in packed.manifest.datasets.items() if name not in TEACHING_SETS}
    if own != hash_datasets(settings.datasets):
        return None
    return _serve(settings, packed.manifest, packed.files, _COMES_WITH_IT)


def _read_packed(tell: Tell) -> PackedVersion | None:
    try:
        return read_public_version()
    except ModelError as error:  # its own data sets still teach the stand-in
        tell(f"{error.message}; {error.remedy}")
        return None


def _train(settings: Settings, packed: PackedVersion | None) -> str:
    datasets = read_datasets(settings.datasets)
    # Imported here: the libraries that train take seconds to load. They never enter one that serves or has no data.
    from predictor_service.retraining.carried_devices import carry_over, models_of_package
    from predictor_service.retraining.first_rows import find_wrong_units
    from predictor_service.retraining.training import train_version

    trained = train_version(datasets, settings.seed)
    wrong = find_wrong_units(datasets, trained.held_out, {})
    if wrong:
        raise TrainingDataError("; ".join(map(str, wrong)), remedy="correct the unit of these rows")
    if packed is not None:
        trained = carry_over(trained, datasets, models_of_package(packed))
    return _serve(settings, trained.manifest, trained.files, "trained by command")


def _serve(settings: Settings, manifest: Manifest, files: Mapping[str, bytes], why: str) -> str:
    registry = ModelRegistry(settings.state_dir / "models", current_user())
    try:
        registry.add(manifest, files, why)
        registry.promote(manifest.version, why)
    finally:
        registry.close()
    return manifest.version

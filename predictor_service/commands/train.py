"""train: learn from every dataset and serve the result without asking the gate; for the first model of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cotenant.structured_log import start_logging
from predictor_service.registry.model_registry import ModelRegistry, current_user
from predictor_service.settings import SETTINGS, Settings

_PATH: Final = click.Path(path_type=Path)


@click.command("train")
@SETTINGS.options("state_dir", "datasets", "seed")
def train_command(settings: Settings) -> None:
    """Train on every dataset and make the result the version to serve; prints its name."""
    start_logging("predictor", settings.log_level)
    click.echo(train_once(settings))


def train_once(settings: Settings) -> str:
    """Trains, serves the result, and returns its name."""
    # Imported here: the libraries that train take seconds to load and never enter a process that serves.
    from predictor_service.retraining.datasets import read_datasets
    from predictor_service.retraining.training import train_version

    trained = train_version(read_datasets(settings.datasets), settings.seed)
    registry = ModelRegistry(settings.state_dir / "models", current_user())
    try:
        registry.add(trained.manifest, trained.files, "trained by command")
        registry.promote(trained.manifest.version, "trained by command")
    finally:
        registry.close()
    return trained.manifest.version

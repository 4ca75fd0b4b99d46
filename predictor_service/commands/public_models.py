"""train-public-models: make the models that come with the program from the data sets again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from predictor_service.errors import TrainingDataError
from predictor_service.registry.public_version import PUBLIC_MODELS, PackedVersion, pack_version
from predictor_service.settings import default_datasets_dir

_PATH: Final = click.Path(path_type=Path)
SEED: Final = 0


@click.command("train-public-models")
@click.option("--datasets", type=_PATH, default=None, help="Folder of data sets; default: those of the program.")
@click.option("--output", "-o", type=_PATH, default=PUBLIC_MODELS, help="File to write; default: the program's own.")
def train_public_models_command(datasets: Path | None, output: Path) -> None:
    """Train the stand-in's models and those of every device type that public sets measured; minutes of work."""
    # Imported here: nothing that serves reads sets or fits.
    from predictor_service.retraining.carried_devices import carry_over, models_of_package
    from predictor_service.retraining.datasets import read_datasets
    from predictor_service.retraining.public_rows import read_public_datasets
    from predictor_service.retraining.training import train_version

    root = datasets or default_datasets_dir()
    own = read_datasets(root)
    public = train_version(read_public_datasets(root), SEED, is_public=True)
    package = models_of_package(PackedVersion(manifest=public.manifest, files=public.files))
    version = carry_over(train_version(own, SEED), own, package)
    packed = pack_version(PackedVersion(manifest=version.manifest, files=version.files))
    try:
        output.write_bytes(packed)
    except OSError as error:
        raise TrainingDataError(f"{output}: {error}", remedy="name a file that can be written with -o") from error
    devices = len(version.manifest.targets)
    click.echo(f"{version.manifest.version}: {devices} device types, {len(packed) / 1e6:.1f} MB -> {output}")

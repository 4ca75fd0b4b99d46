"""train-cross-device: make the model of step times on all device types from the public sets again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from predictor_service.errors import TrainingDataError
from predictor_service.settings import default_datasets_dir

_PATH: Final = click.Path(path_type=Path)
_COMMITTED: Final = Path(__file__).parent.parent / "cross_device" / "step_model.json"
_FOLDS: Final = "_folds"


@click.command("train-cross-device")
@click.option("--datasets", type=_PATH, default=None, help="Folder of the public sets; default: those of the program.")
@click.option(
    "--output", "-o", type=_PATH, default=_COMMITTED, help="File to write, NAME.json; default: the program's own."
)
def train_cross_device_command(datasets: Path | None, output: Path) -> None:
    """Fit the step times of all device types to the public sets; prints how many rows and devices taught them.

    Next to the file comes NAME_folds.json: models that have not seen every fifth family, by which trainings judge it.
    """
    # Imported here: nothing that serves reads sets or fits.
    from threadpoolctl import threadpool_limits

    from predictor_service.learning.cross_device_fit import fit_step_folds, fit_step_model
    from predictor_service.learning.cross_device_rows import read_step_rows, rows_of_common_networks, thin_rows

    every = read_step_rows(datasets or default_datasets_dir() / "public")
    rows, networks = thin_rows(every), rows_of_common_networks(every)
    with threadpool_limits(1):  # small matrices: more threads only wait for each other
        model, folds = fit_step_model(rows, networks=networks), fit_step_folds(rows)
    try:
        output.write_text(model.to_json(), encoding="utf-8")
        lines = [fold.to_json() for fold in folds]
        output.with_name(f"{output.stem}{_FOLDS}.json").write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise TrainingDataError(f"{output}: {error}", remedy="name a file that can be written with -o") from error
    click.echo(f"{len(rows)} rows of {len(model.devices)} device types -> {output}")

"""datasets: public sets into our schema, and whether a folder follows it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from cotenant.profile_schema import LossCurveRow, MemoryTraceRow, PairRow, ProfileSchemaError, SoloRow, read_rows
from predictor_service.errors import TrainingDataError
from predictor_service.importers.catalogue import CONTRIBUTED, IMPORTERS, import_set
from predictor_service.importers.imported_set import write_set
from predictor_service.importers.labels_only import write_labels
from predictor_service.importers.set_cards import write_card
from predictor_service.importers.timm_features import FILE_NAME
from predictor_service.importers.timm_table import ChildTracer, build_table, check_installed, read_wanted, trace_model
from predictor_service.importers.zoo_features import describe_folder
from predictor_service.learning.profile_files import check_references, find_rows_file, read_sidecar
from predictor_service.retraining.batch_check import find_repeated_runs
from predictor_service.retraining.datasets import PUBLIC, Dataset
from predictor_service.settings import default_datasets_dir

_PATH: Final = click.Path(path_type=Path)
_FILES: Final = {
    "solo": SoloRow,
    "pairs": PairRow,
    "memory_traces": MemoryTraceRow,
    "loss_curves": LossCurveRow,
}


@click.group("datasets")
def datasets() -> None:
    """Import public measured sets, and check dataset folders."""


@datasets.command("import", epilog="Example:  cotenant datasets import gpumemnet PATH -o FOLDER")
@click.argument("name")
@click.argument("folder", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="Dataset folder to write; created where needed.")
@click.option(
    "--labels-only",
    is_flag=True,
    help="Compressed, figures of graphs joined when read, with licence and card: the form that is shipped.",
)
def import_command(name: str, folder: Path, output: Path, *, labels_only: bool) -> None:
    """Read the public set NAME from FOLDER and write it in our schema."""
    if labels_only and name == CONTRIBUTED:
        raise click.UsageError("contributed files are not shipped: leave --labels-only out")
    imported = import_set(name, folder)
    if labels_only:
        files = [*write_card(output, name, folder, imported), *write_labels(output, imported)]
    else:
        files = write_set(output, imported)
    status = Counter(row.status for row in imported.solo) + Counter(row.status for row in imported.pairs)
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(status.items()))
    click.echo(
        f"{len(imported.solo):,} rows alone, {len(imported.pairs):,} of pairs, {len(imported.curves):,} of loss curves "
        f"({counts or 'no status'})",
        err=True,
    )
    for path in files:
        click.echo(path)


@datasets.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def list_command(output: str) -> None:
    """List the public sets that can be imported, and the datasets that are installed."""
    public = [
        {"name": name, "measures": item.measures, "licence": item.licence} for name, item in sorted(IMPORTERS.items())
    ]
    root = default_datasets_dir()
    folders = [*root.iterdir(), *(root / PUBLIC).glob("*")] if root.is_dir() else []
    installed = sorted(str(path.relative_to(root)) for path in folders if path.is_dir() and path != root / PUBLIC)
    if output == "json":
        click.echo(json.dumps({"importers": public, "installed": installed}))
        return
    width = max(map(len, [*installed, *IMPORTERS])) + 2
    for item in public:
        click.echo(f"{item['name']:<{width}}{item['measures']} ({item['licence']})")
    for name in installed:
        click.echo(f"{name:<{width}}installed in {root}")


@datasets.command("features", epilog="Example:  cotenant datasets features --graphs graphs -o FOLDER")
@click.option(
    "--timm", "wanted", type=_PATH, help="NAME [SIDE] a line, or the folder of a public set that names models."
)
@click.option(
    "--graphs", type=_PATH, help="Folder of ARCHITECTURE.onnx files, as cotenant_profiler export writes them."
)
@click.option("-o", "--output", type=_PATH, required=True, help="Folder of the table.")
@click.option("--timeout-s", type=click.FloatRange(1, 3600), default=120, show_default=True, help="For one timm model.")
def features_command(wanted: Path | None, graphs: Path | None, output: Path, timeout_s: float) -> None:
    """Make a table of what models compute and keep: traced from timm (needs torch and timm, no GPU), or from graphs.

    A table of timm models keeps the rows that it has.
    """
    if (wanted is None) == (graphs is None):
        raise click.UsageError("give either --timm or --graphs")
    if graphs is not None:
        click.echo(f"{describe_folder(graphs, output):,} graphs described", err=True)
    if wanted is not None:
        check_installed()
        tracer = ChildTracer(timeout_s, trace_model)
        added, failed = build_table(read_wanted(wanted), output, tracer, lambda text: click.echo(text, err=True))
        click.echo(f"{added:,} models traced, {failed:,} failed", err=True)
    click.echo(output / FILE_NAME)


@datasets.command("check", epilog="Example:  cotenant datasets check FOLDER")
@click.argument("folder", type=_PATH)
def check_command(folder: Path) -> None:
    """Check every file of a dataset folder; all problems with their lines, exit status 2."""
    tables = {name: _read(folder, name) for name in _FILES}
    found = {name: rows for name, rows in tables.items() if rows is not None}
    if not found:
        raise TrainingDataError(f"{folder} has no {', '.join(_FILES)} (csv)", remedy="name a folder of a dataset")
    _check_pairs(folder, found)
    _check_runs(folder, found)
    check_references(found.get("solo", ()))
    read_sidecar(folder)
    for name, rows in found.items():
        click.echo(f"{name}: {len(rows):,} rows")


def _read(folder: Path, name: str) -> list[Any] | None:
    path = find_rows_file(folder, name)
    if path is None:
        return None
    try:
        return list(read_rows(path, _FILES[name]))
    except (ProfileSchemaError, OSError) as error:
        raise TrainingDataError(str(error), remedy="correct the rows that are named") from error


def _check_pairs(folder: Path, found: dict[str, list[Any]]) -> None:
    """Jobs of pairs must be known alone, on the same device and in the same campaign."""
    known = {(row.campaign, row.device, row.job_key) for row in found.get("solo", ())}
    for row in found.get("pairs", ()):
        for key in (row.victim_job_key, *row.other_job_keys):
            if (row.campaign, row.device, key) not in known:
                place = f"on {row.device} in campaign {row.campaign}"
                raise TrainingDataError(
                    f"{folder}: pair {row.run_id} names job {key[:12]}, which solo does not have {place}",
                    remedy="add its row, with status failed where it was never measured alone",
                )


def _check_runs(folder: Path, found: dict[str, list[Any]]) -> None:
    """A retraining refuses repeated runs."""
    rows = Dataset(name=folder.name, solo=tuple(found.get("solo", ())), pairs=tuple(found.get("pairs", ())))
    repeated = find_repeated_runs([rows])
    if repeated:
        remedy = "remove the copies, or give runs that were measured again a run_id of their own"
        raise TrainingDataError(f"{folder}: {'; '.join(repeated)}", remedy=remedy)

"""The table of timm features: which models, traced one after the other in a child process, resumable.

A child traces models until one exceeds its time or memory; then it is replaced and that model is listed as failed. Rows
are appended as they are found, so an interrupted run goes on where it ended.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import multiprocessing
import resource
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, Final, TypeAlias

from predictor_service.errors import TrainingDataError
from predictor_service.importers.published_table import read_columns
from predictor_service.importers.timm_features import FILE_NAME, KEY_COLUMNS

FAILURES_NAME: Final = "failures.csv"
_FAILURE_COLUMNS: Final = ("model", "side", "reason")
_CHILD_MEMORY_BYTES: Final = 12 << 30
_MODELS_PER_CHILD: Final = 100
_REASON_CHARACTERS: Final = 160
# Published tables that name timm models: file, column of the name, column of the image side where there is one.
_NAMING_TABLES: Final = (
    ("timm_memory.csv", "model", ""),
    ("train_rtx3090.csv", "model", "train_img_size"),
    ("infer_all_gpus.csv", "model", "infer_img_size"),
)


Row: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A row to make.

    Attributes:
        name: timm's name, without the tag of weights.
        side: Height and width of the image; 0 = the size that the model is published for.
    """

    name: str
    side: int = 0


TraceAll: TypeAlias = Callable[[Iterable[WantedModel]], Iterator[tuple[WantedModel, "Row | str"]]]


def read_wanted(path: Path) -> list[WantedModel]:
    """Reads which models are wanted.

    Args:
        path: A text file with `NAME` or `NAME SIDE` on each line, or the folder of a public set that names timm models.

    Raises:
        TrainingDataError: Neither can be read.
    """
    if path.is_dir():
        wanted = [WantedModel(row[0].split(".")[0], int(row[1])) for row in _named_by_set(path)]
    else:
        try:
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            wanted = [WantedModel(line[0].split(".")[0], int(line[1]) if len(line) > 1 else 0) for line in lines]
        except (OSError, ValueError, IndexError) as error:
            raise TrainingDataError(f"{path}: {error}", remedy="write NAME or NAME SIDE on each line") from error
    return list(dict.fromkeys(wanted))


def _named_by_set(folder: Path) -> Iterator[tuple[str, str]]:
    for table, name, side in _NAMING_TABLES:
        if any((folder / item).is_file() for item in (table, f"{table}.gz")):
            for row in read_columns(folder, table, (name, side) if side else (name,)):
                yield row.text(name), row.text(side) if side else "0"


def build_table(
    wanted: Sequence[WantedModel], folder: Path, trace_all: TraceAll, report: Callable[[str], None]
) -> tuple[int, int]:
    """Traces what the folder lacks and appends it.

    Args:
        wanted: Models in order of importance.
        folder: Gets features.csv and failures.csv; created where needed.
        trace_all: Traces models in order, e.g. `ChildTracer`.
        report: Called for every tenth model.

    Returns:
        Rows added, and models that failed.

    Raises:
        TrainingDataError: The folder holds another table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = _known(folder)
    added = failed = 0
    for item, result in trace_all(item for item in wanted if (item.name, item.side) not in done):
        if isinstance(result, str):
            failed += 1
            _append(folder / FAILURES_NAME, dict(zip(_FAILURE_COLUMNS, (item.name, item.side, result), strict=True)))
        else:
            added += 1
            _append(folder / FILE_NAME, result)
            done |= _answered_by(result)
        if (added + failed) % 10 == 0:
            report(f"{added} traced, {failed} failed, last {item.name}")
    return added, failed


def _answered_by(row: Mapping[str, object]) -> set[tuple[str, int]]:
    """Name and side that a row answers; a row at the default size answers the question without a side as well."""
    name, side = str(row["model"]), int(str(row["input_shape"]).split("x")[-1])
    return {(name, side), (name, 0)} if str(row["is_default"]) == "1" else {(name, side)}


def _known(folder: Path) -> set[tuple[str, int]]:
    known: set[tuple[str, int]] = set()
    if (folder / FILE_NAME).is_file():
        for row in read_columns(folder, FILE_NAME, KEY_COLUMNS):
            known |= _answered_by(row.cells)
    if (folder / FAILURES_NAME).is_file():
        failures = read_columns(folder, FAILURES_NAME, _FAILURE_COLUMNS)
        known |= {(row.text("model"), row.integer("side")) for row in failures}
    return known


def _append(path: Path, row: Mapping[str, object]) -> None:
    exists = path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if not exists:
            writer.writeheader()
        writer.writerow(row)


@dataclass(frozen=True, slots=True)
class ChildTracer:
    """Traces models one after the other in a child process, replaced when a model takes too long or too much memory.

    Attributes:
        timeout_s: Longest time for one model, seconds.
        trace: What the child does; importable by name.
    """

    timeout_s: float
    trace: Callable[[WantedModel], Row | str]

    def __call__(self, wanted: Iterable[WantedModel]) -> Iterator[tuple[WantedModel, Row | str]]:
        """Yields results in order; a text states why a model failed."""
        pool: Pool | None = None
        try:
            for item in wanted:
                pool = pool or _new_pool()
                try:
                    yield item, pool.apply_async(self.trace, (item,)).get(self.timeout_s)
                except multiprocessing.TimeoutError:
                    pool.terminate()
                    pool = None
                    yield item, f"not traced within {self.timeout_s:g} s, or the child died"
        finally:
            if pool is not None:
                pool.terminate()


def _new_pool() -> Pool:
    context = multiprocessing.get_context("spawn")
    return context.Pool(1, initializer=_limit_memory, maxtasksperchild=_MODELS_PER_CHILD)


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MEMORY_BYTES, hard))


def check_installed() -> None:
    """Makes sure that models can be traced here.

    Raises:
        TrainingDataError: torch or timm is not installed.
    """
    for package in ("torch", "timm"):
        if importlib.util.find_spec(package) is None:
            raise TrainingDataError(f"{package} is not installed here", remedy=f"pip install {package}")


def trace_model(item: WantedModel) -> Row | str:
    """Builds a model without weights and traces it; runs in the child.

    Returns:
        Its row, or why there is none.
    """
    # Imported here: only the child needs torch and timm, which take seconds to load.
    import torch

    from predictor_service.importers.step_tracing import trace_step

    timm: Any = importlib.import_module("timm")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        with torch.device("meta"):
            model = timm.create_model(item.name)
            default: tuple[int, ...] = tuple(model.default_cfg["input_size"])
            shape = (default[0], item.side, item.side) if item.side else default
            if shape != default:
                model = _create_for(timm, item.name, shape[-1])
        features = trace_step(model, shape)
    except Exception as error:  # timm raises anything for the models that it cannot build.
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:_REASON_CHARACTERS]
    key = (item.name, "x".join(map(str, shape)), int(shape == default))
    return {**dict(zip(KEY_COLUMNS, key, strict=True)), **{name: f"{value:.15g}" for name, value in features.items()}}


def _create_for(timm: Any, name: str, side: int) -> Any:  # noqa: ANN401 (timm is untyped)
    """Models whose parameters depend on the image take its side; the others take any."""
    try:
        return timm.create_model(name, img_size=side)
    except TypeError:
        return timm.create_model(name)

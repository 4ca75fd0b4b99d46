"""Measured profiles: the columns, units and rules of version 1, and their CSV form.

The single source for the writers of measurements (profiler, agent) and their readers (predictor, simulator).
Standard library only, because a GPU node writes profiles without any numeric package.

    solo.csv            SoloRow          one run of one job alone on a device
    pairs.csv           PairRow          one victim with its co-located jobs, against its solo time of the same campaign
    memory_traces.csv   MemoryTraceRow   allocated and reserved memory over time
    loss_curves.csv     LossCurveRow     loss over steps

Every column is a field of the row's class, in file order; its metadata carries unit, range and meaning. An empty cell
is a null and is refused where the column may not be null. Columns marked `measured` may be null only in a row whose
status is not "ok", because a job that ran out of memory has no step time. A solo row of status "ok" has measured
something, and has a step time where steps were timed: public sets often know memory or utilization only.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cotenant import profile_parquet, profile_text
from cotenant.profile_cells import Cell, Column, ColumnRule, column, columns, format_cell, parse_cell

__all__ = [
    "MODES",
    "SCHEMA_VERSION",
    "STATUSES",
    "Column",
    "ColumnRule",
    "LossCurveRow",
    "MemoryTraceRow",
    "PairRow",
    "Problem",
    "ProfileSchemaError",
    "SoloRow",
    "check_row",
    "columns",
    "format_row",
    "parse_row",
    "read_rows",
    "write_rows",
]

SCHEMA_VERSION = 1
STATUSES = ("ok", "out_of_memory", "failed", "rejected")
MODES = ("train", "infer")
MAX_CELL_CHARACTERS = 1_000_000
MAX_REPORTED_PROBLEMS = 20
# Slowdowns are rounded by writers; a larger gap means that the row mixes campaigns.
SLOWDOWN_TOLERANCE = 0.002
_MEASUREMENTS = ("step_ms_mean", "utilization_ratio", "sm_activity_ratio", "memory_peak_bytes")

Row = TypeVar("Row", "SoloRow", "PairRow", "MemoryTraceRow", "LossCurveRow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a file was refused."""

    line: int
    """Line in the file, from 1; the header is line 1; 0 when the row has no line."""
    column: str
    reason: str

    def __str__(self) -> str:
        place = f"line {self.line}, " if self.line else ""
        return f"{place}column {self.column}: {self.reason}"


class ProfileSchemaError(ValueError):
    """Rows that break the schema; carries every problem, and prints the first ones.

    Attributes:
        problems: All problems found, in file order.
    """

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [f"  {problem}" for problem in self.problems[:MAX_REPORTED_PROBLEMS]]
        hidden = len(self.problems) - len(shown)
        tail = [f"  and {hidden} more"] if hidden > 0 else []
        super().__init__(
            "\n".join([f"{source} does not follow profile schema version {SCHEMA_VERSION}:", *shown, *tail])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloRow:
    """One run of one job alone on its device."""

    schema_version: int = column("version of this schema", minimum=SCHEMA_VERSION, maximum=SCHEMA_VERSION)
    run_id: str = column("unique within the file")
    campaign: str = column("rows of one campaign were measured on one machine in one go")
    mode: str = column("what the job does", choices=MODES)
    device: str = column("device type, e.g. cpu-standin")
    host_memory_bytes: int | None = column("host memory offered to the job", unit="bytes", above=0)
    disk_read_bytes_per_s: float | None = column("disk read rate offered", unit="bytes/s", above=0)
    network_bytes_per_s: float | None = column("network rate offered", unit="bytes/s", above=0)
    driver: str = column("driver version, or none")
    framework: str = column("framework and version, e.g. torch-2.13.0")
    share_mode: str = column("how the device was shared, e.g. exclusive, time_slicing, mps")
    job_key: str = column("equal for equal graph and settings")
    graph_sha256: str | None = column("hash of the weight-stripped ONNX file")
    architecture: str = column("e.g. resnet50")
    family: str = column("e.g. resnet")
    batch: int = column("samples per optimizer step", unit="samples", minimum=1)
    input_shape: str | None = column("shape of one sample, e.g. 3x224x224")
    precision: str = column("fp32, tf32, bf16, fp16 or another name")
    optimizer: str = column("sgd, momentum, adam, adamw or another name; none when inferring")
    input_wait_ratio: float = column("share of a step spent waiting for input", minimum=0, maximum=1)
    gpus: int = column("devices used", minimum=1)
    nodes: int = column("machines used", minimum=1)
    workers: int | None = column("workers next to parameter servers", minimum=1)
    servers: int | None = column("parameter servers", minimum=0)
    sub_batch: int = column("samples per device and micro-step", unit="samples", minimum=1)
    sync_ms_mean: float | None = column("gradient exchange per step", unit="ms", minimum=0)
    step_ms_mean: float | None = column("one optimizer step", unit="ms", above=0)
    step_ms_p50: float | None = column("one optimizer step, median", unit="ms", above=0)
    step_ms_p95: float | None = column("one optimizer step, 95th percentile", unit="ms", above=0)
    steps: int = column("steps timed; 0 = not published", minimum=0)
    utilization_ratio: float | None = column("share of time with any kernel resident", minimum=0, maximum=1)
    sm_activity_ratio: float | None = column("share of SM time with a warp resident", minimum=0, maximum=1)
    dram_activity_ratio: float | None = column("share of peak memory traffic", minimum=0, maximum=1)
    memory_peak_bytes: int | None = column("peak of allocated device memory", unit="bytes", minimum=0)
    memory_reserved_bytes: int | None = column("peak held by the allocator", unit="bytes", minimum=0)
    memory_context_bytes: int | None = column("held by driver and libraries", unit="bytes", minimum=0)
    power_watts: float | None = column("mean power", unit="W", minimum=0)
    status: str = column("how the run ended", choices=STATUSES)
    quality_flags: tuple[str, ...] = column("reasons for doubt, joined by |", may_be_blank=True)
    features_json: str | None = column("public graph features of sets without graphs, a JSON object")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One victim job with its co-located jobs on one device."""

    run_id: str = column("unique per run; each victim of a run has its own row")
    campaign: str = column("campaign of this run and of the solo time")
    device: str = column("device type")
    share_mode: str = column("time_slicing, mps, mig, ...")
    victim_job_key: str = column("the job whose slowdown this row states")
    other_job_keys: tuple[str, ...] = column("sorted keys of the jobs co-located with it, joined by |")
    victim_step_ms_mean: float | None = column("step while shared", unit="ms", above=0, measured=True)
    victim_solo_step_ms_mean: float | None = column("step alone, same campaign", unit="ms", above=0, measured=True)
    slowdown_ratio: float | None = column("shared / alone - 1, keeps its sign", above=-1, measured=True)
    repeat: int = column("number of the repetition, from 0", minimum=0)
    status: str = column("how the run ended", choices=STATUSES)
    quality_flags: tuple[str, ...] = column("reasons for doubt, joined by |", may_be_blank=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTraceRow:
    """One sample of a job's device memory."""

    run_id: str = column("run of the solo file")
    job_key: str = column("job of the solo file")
    offset_ms: int = column("time since the run began", unit="ms", minimum=0)
    allocated_bytes: int = column("allocated", unit="bytes", minimum=0)
    reserved_bytes: int = column("held by the allocator", unit="bytes", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurveRow:
    """One point of a loss curve."""

    run: str = column("name of the training run")
    step: int = column("optimizer steps done", minimum=0)
    epoch: float | None = column("epochs done", minimum=0)
    split: str = column("train, validation, ...")
    loss: float = column("loss as the framework reported it")
    elapsed_ms: int | None = column("time since the run began", unit="ms", minimum=0)


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    """Reads a file whole and checks every row.

    Args:
        path: A CSV file with one header line, gzip where the name ends in .gz, or a Parquet file where it ends so.
        row_type: The class of its rows, e.g. `SoloRow`.

    Returns:
        The rows in file order. A column that may be null may also be absent, and is null then.

    Raises:
        ProfileSchemaError: Missing or unknown columns, or rows that break a rule; names all of them.
        OSError: The file cannot be read.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    records = _parquet_records if path.suffix == profile_parquet.SUFFIX else _csv_records
    for line, cells in records(path, row_type):
        row = _build(cells, row_type, line, problems)
        if row is not None:
            rows.append(row)
    if problems:
        raise ProfileSchemaError(str(path), problems)
    return rows


def parse_row(cells: Mapping[str, str], row_type: type[Row], source: str = "row") -> Row:
    """Builds one row from text cells by column name.

    Raises:
        ProfileSchemaError: The row breaks the schema; names every problem.
    """
    problems = _header_problems(list(cells), row_type)
    row = None if problems else _build(cells, row_type, 0, problems)
    if row is None:
        raise ProfileSchemaError(source, problems)
    return row


def check_row(row: Row, source: str = "row") -> None:
    """Checks a row that was built in memory by the same rules as one that was read.

    Raises:
        ProfileSchemaError: The row breaks the schema; names every problem.
    """
    parse_row(format_row(row), type(row), source)


def format_row(row: SoloRow | PairRow | MemoryTraceRow | LossCurveRow) -> dict[str, str]:
    """Returns the text cells of a row by column name; null is the empty text."""
    return {field.name: format_cell(getattr(row, field.name)) for field in dataclasses.fields(row)}


def write_rows(path: Path, rows: Iterable[Row], row_type: type[Row]) -> None:
    """Writes a CSV file, or a gzip or Parquet file where the name ends so, atomically after checking every row.

    Args:
        path: The file to create or replace; its folder must exist.
        rows: Rows of one class.
        row_type: Their class; needed because a file without rows still has a header.

    Raises:
        ProfileSchemaError: A row breaks the schema; nothing is written.
    """
    checked = []
    for number, row in enumerate(rows):
        check_row(row, f"{path.name}, row {number}")
        checked.append(row)
    partial = path.with_name(f".{path.name}.partial")
    if path.suffix == profile_parquet.SUFFIX:
        profile_parquet.write_records(partial, [_values(row) for row in checked], row_type)
    else:
        with profile_text.open_to_write(partial, is_packed=path.suffix == profile_text.SUFFIX) as file:
            writer = csv.DictWriter(file, [item.name for item in columns(row_type)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(format_row(row) for row in checked)
    partial.replace(path)


def _values(row: object) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}  # type: ignore[arg-type]


def _parquet_records(path: Path, row_type: type[Any]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        problems = _header_problems(profile_parquet.read_header(path), row_type)
        if problems:
            raise ProfileSchemaError(str(path), problems)
        yield from profile_parquet.read_records(path, row_type)
    except profile_parquet.ParquetError as error:
        raise ProfileSchemaError(str(path), [Problem(line=0, column="(file)", reason=str(error))]) from error


def _csv_records(path: Path, row_type: type[Any]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with profile_text.open_to_read(path) as file:
            yield from _records(file, row_type, str(path))
    except profile_text.TextError as error:
        raise ProfileSchemaError(str(path), [Problem(line=0, column="(file)", reason=str(error))]) from error


def _records(file: Iterable[str], row_type: type[Any], source: str) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    reader = csv.reader(file, strict=True)
    try:
        header = next(reader, [])
        problems = _header_problems(header, row_type)
        if problems:
            raise ProfileSchemaError(source, problems)
        for cells in reader:
            if len(cells) != len(header):
                reason = f"{len(cells)} cells where the header has {len(header)}"
                raise ProfileSchemaError(source, [Problem(line=reader.line_num, column="(row)", reason=reason)])
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise ProfileSchemaError(source, [Problem(line=reader.line_num, column="(row)", reason=str(error))]) from error


def _header_problems(names: list[str], row_type: type[Any]) -> list[Problem]:
    known = {item.name: item for item in columns(row_type)}
    missing = [
        Problem(line=1, column=name, reason="is missing")
        for name, item in known.items()
        if name not in names and not item.nullable
    ]
    unknown = [
        Problem(line=1, column=name, reason=f"is not a column of {row_type.__name__}")
        for name in names
        if name not in known
    ]
    twice = [
        Problem(line=1, column=name, reason="appears twice") for name in dict.fromkeys(names) if names.count(name) > 1
    ]
    return missing + unknown + twice


def _build(cells: Mapping[str, str], row_type: type[Row], line: int, problems: list[Problem]) -> Row | None:
    status_ok = cells.get("status", "ok") == "ok"
    values: dict[str, Cell] = {}
    failed = len(problems)
    for item in columns(row_type):
        try:
            values[item.name] = parse_cell(cells.get(item.name, ""), item, status_ok)
        except ValueError as error:
            problems.append(Problem(line=line, column=item.name, reason=str(error)))
    if len(problems) == failed:
        for name, reason in _conflicts(values, row_type):
            problems.append(Problem(line=line, column=name, reason=reason))
    return row_type(**values) if len(problems) == failed else None  # type: ignore[arg-type]


def _conflicts(values: Mapping[str, Any], row_type: type[Any]) -> Iterator[tuple[str, str]]:
    if row_type is SoloRow:
        yield from _solo_conflicts(values)
    if row_type is PairRow:
        yield from _pair_conflicts(values)


def _solo_conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if values["sub_batch"] > values["batch"]:
        yield "sub_batch", f"{values['sub_batch']} is more than the batch of {values['batch']}"
    if values["nodes"] > values["gpus"]:
        yield "nodes", f"{values['nodes']} machines for {values['gpus']} devices"
    if values["status"] == "ok":
        yield from _missing_measurements(values)
    p50, p95 = values["step_ms_p50"], values["step_ms_p95"]
    if p50 is not None and p95 is not None and p50 > p95:
        yield "step_ms_p50", f"{p50:g} is above step_ms_p95 of {p95:g}"


def _missing_measurements(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if values["step_ms_mean"] is None and values["steps"] > 0:
        yield "step_ms_mean", f"is empty although status is ok and {values['steps']} steps were timed"
    if all(values[name] is None for name in _MEASUREMENTS):
        yield "status", f"is ok although none of {', '.join(_MEASUREMENTS)} was measured"


def _pair_conflicts(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    others = list(values["other_job_keys"])
    if others != sorted(others):
        yield "other_job_keys", "is not sorted"
    shared, alone, slowdown = (
        values["victim_step_ms_mean"],
        values["victim_solo_step_ms_mean"],
        values["slowdown_ratio"],
    )
    if None in (shared, alone, slowdown):
        return
    computed = shared / alone - 1
    if abs(computed - slowdown) > SLOWDOWN_TOLERANCE * (1 + abs(computed)):
        yield "slowdown_ratio", f"{slowdown:g} is not victim_step_ms_mean / victim_solo_step_ms_mean - 1 = {computed:g}"

"""convergence: when does training end, and how fast would it be on other resources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from cotenant import quantities
from cotenant.cli.formats import emit_message
from cotenant.cli.number_table import NumberTable, read_numbers
from cotenant.cli.session import Session, show, with_session
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.client import enum_name
from cotenant.client_errors import InputError
from cotenant.command_groups import ListedGroup
from cotenant.v1 import prediction_pb2

PROGRESS_COLUMNS = ("progress", "step", "epoch")
VALUE_COLUMNS = ("value", "loss", "accuracy")
SPEED_COLUMNS = ("workers", "servers", "batch_size", "steps_per_s")
_RESOURCES = re.compile(r"(\d{1,9})(?:x(\d{1,9}))?(?:@(\d{1,15}))?")
_CURVE_COLUMNS = (Column(title="SHAPE"), Column(title="ERROR", right=True), Column(title="ENDS AT EPOCH", right=True))
_ASKED_COLUMNS = (
    Column(title="WORKERS", right=True),
    Column(title="SERVERS", right=True),
    Column(title="BATCH", right=True),
    Column(title="STEPS/S", right=True),
    Column(title="REMAINING", right=True),
)
_FILE = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.group(
    cls=ListedGroup,
    epilog="\b\nExamples:\n  cotenant convergence loss curve.csv --threshold 0.01 --epoch-length 390\n"
    "  cotenant convergence speed runs.csv --synchrony all_reduce --ask 8",
)
def convergence() -> None:
    """Predict when training ends (loss) and how fast it is elsewhere (speed), from what was measured."""


@convergence.command(epilog="Example:  cotenant convergence loss curve.csv --target 0.4")
@click.argument("curve", type=_FILE)
@click.option("--threshold", type=float, help="Ends when an epoch lowers the loss by less than this share.")
@click.option("--target", type=float, help="Ends at this loss or accuracy.")
@click.option("--metric", type=click.Choice(["loss", "accuracy"]), help="[default: the column's name, else loss]")
@click.option("--epoch-length", type=float, default=1.0, show_default=True, help="Progress that makes one epoch.")
@click.option("--rate-drop", "rate_drops", type=float, multiple=True, help="Where the learning rate was lowered.")
@click.option(
    "--patience",
    type=click.IntRange(1, 1_000_000),
    default=3,
    show_default=True,
    help="Epochs in a row below the threshold.",
)
@click.option("--prior", type=_FILE, help="The curve of an earlier job of the same kind.")
@click.option("--confidence", type=float, default=0.9, show_default=True, help="Coverage that the interval aims at.")
@with_session
def loss(
    session: Session,
    /,
    *,
    curve: Path,
    threshold: float | None,
    target: float | None,
    metric: str | None,
    epoch_length: float,
    rate_drops: tuple[float, ...],
    patience: int,
    prior: Path | None,
    confidence: float,
) -> None:
    """Predict when the training behind CURVE ends.

    CURVE is a CSV file (- = standard input) with a column progress, step or epoch and a column value, loss or accuracy.
    """
    if (threshold is None) == (target is None):
        raise InputError("no rule for the end of training is given", remedy="give one of --threshold and --target")
    points, column = _read_curve(curve)
    request = prediction_pb2.FitLossCurveRequest(
        points=points,
        metric=prediction_pb2.CurveMetric.Value(
            enum_name(prediction_pb2.CurveMetric.keys(), "CURVE_METRIC_", metric or _metric_of(column))
        ),
        epoch_length=epoch_length,
        rate_drops=rate_drops,
        patience=patience,
        prior_points=_read_curve(prior)[0] if prior else (),
        confidence=confidence,
    )
    if threshold is not None:
        request.convergence_threshold = threshold
    if target is not None:
        request.target_value = target
    answer = session.predictor().fit_loss_curve(request)
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[curve.name for curve in answer.curves])
        return
    show(render_labelled(end_lines(answer), session.width))
    if answer.curves:
        show("")
        show(render_table(_CURVE_COLUMNS, curve_rows(answer), session.width))


@convergence.command(epilog="Example:  cotenant convergence speed runs.csv --synchrony synchronous")
@click.argument("runs", type=_FILE)
@click.option("--synchrony", required=True, help="asynchronous, synchronous or all_reduce.")
@click.option("--ask", "asked", multiple=True, metavar="WORKERS[xSERVERS][@BATCH]", help="Predict its speed.")
@click.option("--steps-remaining", type=float, default=0.0, help="Also predict how long these steps take.")
@with_session
def speed(session: Session, /, *, runs: Path, synchrony: str, asked: tuple[str, ...], steps_remaining: float) -> None:
    """Predict speeds from the short runs in RUNS.

    RUNS is a CSV file (- = standard input) with the columns workers, steps_per_s and, where they are not 1, servers and
    batch_size.
    """
    request = prediction_pb2.FitSpeedModelRequest(
        synchrony=prediction_pb2.TrainingSynchrony.Value(
            enum_name(prediction_pb2.TrainingSynchrony.keys(), "TRAINING_SYNCHRONY_", synchrony)
        ),
        samples=_read_samples(read_numbers(runs, SPEED_COLUMNS)),
        asked=[parse_resources(text) for text in asked],
        steps_remaining=steps_remaining,
    )
    answer = session.predictor().fit_speed_model(request)
    if not session.output.is_for_people:
        emit_message(answer, session.output)
        return
    show(render_labelled(fit_lines(answer, len(request.samples)), session.width))
    if answer.predictions:
        show("")
        show(render_table(_ASKED_COLUMNS, speed_rows(answer), session.width))


def parse_resources(text: str) -> prediction_pb2.TrainingResources:
    """Reads WORKERS[xSERVERS][@BATCH], e.g. 8x4@256.

    Raises:
        InputError: Not of that form.
    """
    match = _RESOURCES.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not WORKERS[xSERVERS][@BATCH]", remedy="e.g. --ask 8, --ask 8x4, --ask 8x4@256")
    workers, servers, batch_size = (int(group or 0) for group in match.groups())
    return prediction_pb2.TrainingResources(workers=workers, servers=servers, global_batch_size=batch_size)


def end_lines(answer: prediction_pb2.FitLossCurveResponse) -> list[tuple[str, str]]:
    """Returns when training ends, as labelled lines."""
    lines = []
    if answer.HasField("epochs_total"):
        promised = quantities.format_percent(answer.confidence)
        interval = f" ({answer.lower:.1f} .. {answer.upper:.1f}, {promised} nominal)"
        lines.append(("ends at epoch", f"{answer.epochs_total:.1f}" + ("" if answer.reached else interval)))
    else:
        lines.append(("ends at epoch", "not foreseeable"))
    if answer.HasField("loose_epochs_total"):
        lines.append(("3 x the threshold", f"epoch {answer.loose_epochs_total:.1f}"))
    if answer.HasField("planned_remaining_epochs"):
        lines.append(("plan with", f"{answer.planned_remaining_epochs:.1f} epochs from now on"))
    lines.append(("reached", "yes" if answer.reached else "no"))
    if not answer.reached:
        lines.append(("reliable", "yes: the shapes agree" if answer.reliable else "NO: plan with something else"))
    return lines + [("warning", f"{warning.code}: {warning.message}") for warning in answer.warnings]


def curve_rows(answer: prediction_pb2.FitLossCurveResponse) -> list[Row]:
    """Returns one row per shape that was fitted."""
    return [
        Row(
            cells=(
                curve.name,
                f"{curve.error_ratio * 100:.2f} %",
                f"{curve.epochs_total:.1f}" if curve.HasField("epochs_total") else "never",
            )
        )
        for curve in answer.curves
    ]


def fit_lines(answer: prediction_pb2.FitSpeedModelResponse, samples: int) -> list[tuple[str, str]]:
    """Returns how well the runs were fitted, as labelled lines."""
    lines = [("fitted", f"{samples} runs within {answer.error_ratio * 100:.1f} % on average")]
    if answer.HasField("left_out_error_ratio"):
        lines.append(("left out", f"each run predicted by the others within {answer.left_out_error_ratio * 100:.1f} %"))
    return [*lines, ("coefficients", ", ".join(f"{value:.4g} s" for value in answer.coefficients))]


def speed_rows(answer: prediction_pb2.FitSpeedModelResponse) -> list[Row]:
    """Returns one row per speed that was asked for."""
    return [
        Row(
            cells=(
                str(item.resources.workers),
                str(item.resources.servers or 1),
                str(item.resources.global_batch_size or 1),
                f"{item.steps_per_s:.4g}",
                quantities.format_duration(item.remaining_ms) if item.HasField("remaining_ms") else "-",
            )
        )
        for item in answer.predictions
    ]


def _read_curve(path: Path) -> tuple[list[prediction_pb2.CurvePoint], str]:
    """Points of a curve, and the name of the column of its values."""
    table = read_numbers(path, (*PROGRESS_COLUMNS, *VALUE_COLUMNS))
    _, progress = table.column(*PROGRESS_COLUMNS)
    name, values = table.column(*VALUE_COLUMNS)
    points = [
        prediction_pb2.CurvePoint(progress=place, value=value) for place, value in zip(progress, values, strict=True)
    ]
    return points, name


def _metric_of(column: str) -> str:
    return "accuracy" if column == "accuracy" else "loss"


def _read_samples(table: NumberTable) -> list[prediction_pb2.SpeedSample]:
    """Runs of a table; what must be whole is rounded, so that 8.0 is 8."""
    _, workers = table.column("workers")
    _, speeds = table.column("steps_per_s")
    ones: Sequence[float] = [1.0] * len(workers)
    servers, batches = (table.columns.get(name, ones) for name in ("servers", "batch_size"))
    try:
        return [
            prediction_pb2.SpeedSample(
                resources=prediction_pb2.TrainingResources(
                    workers=round(worker_count), servers=round(server_count), global_batch_size=round(batch)
                ),
                steps_per_s=steps_per_s,
            )
            for worker_count, server_count, batch, steps_per_s in zip(workers, servers, batches, speeds, strict=True)
        ]
    except ValueError as error:
        raise InputError(f"{table.source}: {error}", remedy="workers, servers and batch_size are counts") from error

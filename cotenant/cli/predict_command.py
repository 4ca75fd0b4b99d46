"""predict: will it fit, how long is a step, which batch is the largest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click
from google.protobuf.json_format import Parse, ParseError

from cotenant.calibration_files import newest_calibration
from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.formats import emit_message
from cotenant.cli.graph_input import load_graph
from cotenant.cli.prediction_views import (
    micro_batch_columns,
    micro_batch_rows,
    prediction_lines,
    quantity_columns,
    quantity_rows,
)
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.cli.settings import point_at_state, state_folder
from cotenant.cli.tables import render_labelled, render_table
from cotenant.client import is_serving, job_settings, open_channel
from cotenant.client_errors import InputError, ProgramError
from cotenant.device_calibration import DeviceCalibration, read_calibration_file
from cotenant.device_calibration_message import calibration_message
from cotenant.programs import run_captured
from cotenant.quantities import parse_bytes
from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2, resources_pb2

# A default address is only a guess: without a configured one, offline prediction starts soon.
GUESS_TIMEOUT_S = 0.5
OFFLINE_TIMEOUT_S = 600.0


@click.command(
    epilog="\b\nExamples:\n  cotenant predict model.onnx --batch-size 64\n"
    "  cotenant predict model.onnx --batch-size 64 --device 'NVIDIA H200' -o json"
)
@click.argument("graph", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--batch-size", type=click.IntRange(1, 1_000_000), required=True, help="Samples per optimizer step.")
@click.option("--device", help="Device type, e.g. h200 or 'rtx 4090'.  [default: the setting `device`]")
@click.option(
    "--device-memory", metavar="SIZE", help="E.g. 40GiB, where the device type's size is unknown, or not the usual."
)
@click.option("--optimizer", default="sgd", show_default=True, help="sgd, momentum, adam or adamw.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32, bf16 or fp16.")
@click.option("--mode", default="train", show_default=True, help="train or infer.")
@click.option("--input-wait-ratio", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option("--bind", "bindings", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dimension.")
@click.option(
    "--micro-batch-size",
    "micro_batch_sizes",
    multiple=True,
    type=click.IntRange(1, 1_000_000),
    help="Ask for it as well.",
)
@click.option(
    "--calibration",
    "calibration_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What `cotenant calibrate` measured of the device.  [default: that of this machine, where there is one]",
)
@click.option("--offline", is_flag=True, help="Without a running predictor (starts slower).")
@with_session
def predict(
    session: Session,
    /,
    *,
    graph: Path,
    batch_size: int,
    device: str | None,
    device_memory: str | None,
    optimizer: str,
    precision: str,
    mode: str,
    input_wait_ratio: float,
    bindings: tuple[str, ...],
    micro_batch_sizes: tuple[int, ...],
    calibration_file: Path | None,
    offline: bool,
) -> None:
    """Predict what training GRAPH (an ONNX file) needs; exit 4 when it will not fit, or that is unknown.

    Weights are stripped before anything leaves this process. Asks the predictor, or runs it here when none was
    configured and none is reachable.
    """
    settings = job_settings(
        batch_size=batch_size,
        precision=precision,
        optimizer=optimizer,
        mode=mode,
        input_wait_ratio=input_wait_ratio,
        dimension_bindings=parse_bindings(bindings),
    )
    request = prediction_pb2.PredictJobRequest(
        settings=settings,
        device=device or session.settings.device,
        device_memory_bytes=parse_bytes(device_memory) if device_memory else 0,
        micro_batch_sizes=micro_batch_sizes,
        find_largest_batch_size=True,
    )
    calibrated = _find_calibration(session, calibration_file, request.device)
    if offline or _is_unconfigured(session):
        answer = _predict_offline(graph, request, calibrated[0] if calibrated else None)
    else:
        request.onnx_graph = load_graph(graph)
        if calibrated is not None:
            request.calibration.CopyFrom(calibration_message(calibrated[1]))
        answer = session.predictor().predict_job(request)
    show_prediction(session, answer, answer.device or request.device)
    if not answer.fits:
        raise click.exceptions.Exit(ExitCode.NOT_FEASIBLE)


def parse_bindings(bindings: Sequence[str]) -> dict[str, int]:
    """Reads NAME=SIZE pairs.

    Raises:
        InputError: Not of that form.
    """
    sizes = {}
    for binding in bindings:
        name, _, size = binding.partition("=")
        if not name or not re.fullmatch("[0-9]{1,18}", size):
            raise InputError(f"{binding!r} is not NAME=SIZE", remedy="e.g. --bind sequence=128")
        sizes[name] = int(size)
    return sizes


def show_prediction(session: Session, answer: prediction_pb2.PredictJobResponse, device: str) -> None:
    """Writes a prediction in the session's format."""
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[answer.prediction_id])
        return
    show(render_table(quantity_columns(answer), quantity_rows(answer), session.width))
    if answer.micro_batches:
        show("")
        show(render_table(micro_batch_columns(answer), micro_batch_rows(answer), session.width))
    show("")
    show(render_labelled(prediction_lines(answer, device), session.width))


def _find_calibration(session: Session, file: Path | None, device: str) -> tuple[Path, DeviceCalibration] | None:
    """Returns the calibration that was named, else the newest that this machine has of the device type."""
    if file is not None:
        return file, read_calibration_file(file, now_ms())
    return newest_calibration(state_folder(session.settings), device, now_ms())


def _is_unconfigured(session: Session) -> bool:
    if not session.resolved.is_default("predictor"):
        return False
    settings = session.settings
    channel = open_channel(settings.channel_options(settings.predictor))
    if is_serving(channel, timeout_s=GUESS_TIMEOUT_S):
        return False
    tell(f"no predictor at {settings.predictor}; predicting offline", style="dim")
    return True


def _predict_offline(
    graph: Path, request: prediction_pb2.PredictJobRequest, calibration_file: Path | None
) -> prediction_pb2.PredictJobResponse:
    point_at_state()
    flags = _offline_flags(request)
    if calibration_file is not None:
        flags += ["--calibration", str(calibration_file)]
    done = run_captured("predict", [str(graph), *flags], timeout_s=OFFLINE_TIMEOUT_S, is_heard=True)
    if done.returncode not in (ExitCode.OK, ExitCode.NOT_FEASIBLE):
        raise click.exceptions.Exit(done.returncode)
    try:
        return Parse(done.stdout, prediction_pb2.PredictJobResponse(), ignore_unknown_fields=True)
    except ParseError as error:
        raise ProgramError(f"the offline predictor wrote no prediction: {error}") from error


def _offline_flags(request: prediction_pb2.PredictJobRequest) -> list[str]:
    settings = request.settings
    flags = ["--device", request.device, "--batch-size", str(settings.global_batch_size), "-o", "json"]
    flags += ["--optimizer", _short(resources_pb2.Optimizer.Name(settings.optimizer), "OPTIMIZER_")]
    flags += ["--precision", _short(resources_pb2.Precision.Name(settings.precision), "PRECISION_")]
    flags += ["--input-wait-ratio", str(settings.input_wait_ratio)]
    for name, size in settings.dimension_bindings.items():
        flags += ["--bind", f"{name}={size}"]
    if settings.mode == resources_pb2.RUN_MODE_INFER:
        flags += ["--mode", "infer"]
    if request.device_memory_bytes:
        flags += ["--device-memory-bytes", str(request.device_memory_bytes)]
    for micro_batch_size in request.micro_batch_sizes:
        flags += ["--micro-batch-size", str(micro_batch_size)]
    return flags


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()

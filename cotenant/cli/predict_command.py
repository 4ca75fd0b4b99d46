"""predict: will it fit, how long is a step, which batch is the largest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import Parse, ParseError

from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.formats import emit_message
from cotenant.cli.graph_input import AskedJob, GraphFile, WithCommand, asked_jobs, load_graph
from cotenant.cli.list_options import join_numbers, join_texts
from cotenant.cli.predict_checks import check_before_capture
from cotenant.cli.predict_questions import (
    WAYS,
    NumberList,
    check_combination,
    device_memory_bytes,
    each_questions,
    find_calibration,
    is_unconfigured,
    name_at_hand,
    setting_flags,
    tell_passed_over,
    together_questions,
)
from cotenant.cli.predict_several import predict_each, predict_together
from cotenant.cli.prediction_views import (
    micro_batch_columns,
    micro_batch_rows,
    prediction_lines,
    quantity_columns,
    quantity_rows,
)
from cotenant.cli.session import Session, show, tell_error, with_session
from cotenant.cli.setting_options import flags_of_settings, with_setting_options
from cotenant.cli.settings import point_at_state
from cotenant.cli.tables import render_labelled, render_table
from cotenant.client_errors import InputError, ProgramError
from cotenant.prediction_questions import OFFLINE_TIMEOUT_S, add_calibration, naming_graph
from cotenant.prediction_verdict import may_run
from cotenant.programs import run_captured
from cotenant.v1 import prediction_pb2, resources_pb2

_EPILOG = """\b
Examples:
  cotenant predict model.onnx --batch-size 64
  cotenant predict model.onnx --batch-size 64 --device 'NVIDIA H200' -o json
  cotenant predict model.onnx --batch-size 16,32,64 --device a100,l4
  cotenant predict model.onnx --device a100 --max-batch
  cotenant predict first.onnx second.onnx --batch-size 64
  cotenant predict -- python train.py
"""


@click.command(cls=WithCommand, epilog=_EPILOG)
@click.argument(
    "files",
    nargs=-1,
    metavar="GRAPH... [-- COMMAND...]",
    type=GraphFile(),
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=NumberList(),
    multiple=True,
    callback=join_numbers,
    help="Samples per optimizer step; several: 16,32,64.",
)
@click.option(
    "--device",
    multiple=True,
    callback=join_texts,
    help="Device type, e.g. h200 or 'rtx 4090'; several: a100,l4.  [default: setting `device`]",
)
@click.option(
    "--device-memory", metavar="SIZE", help="E.g. 40GiB, where the device type's size is unknown, or not the usual."
)
@click.option("--optimizer", help="sgd, momentum, adam or adamw.  [default: sgd]")
@click.option("--precision", help="fp32, tf32, bf16 or fp16.  [default: fp32]")
@click.option("--mode", help="train or infer.  [default: train]")
@with_setting_options
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
@click.option(
    "--sharing",
    type=click.Choice(list(WAYS)),
    help="How several GRAPHs would share the device: of what was measured of pairs, only that counts.  [default: all]",
)
@click.option("--max-batch", is_flag=True, help="Print the largest batch that fits, and nothing else.")
@click.option("--offline", is_flag=True, help="Without a running predictor (starts slower).")
@click.option("--yes", is_flag=True, help="Run COMMAND where it may leave files behind as well.")
@with_session
def predict(session: Session, /, *, files: tuple[Path, ...], yes: bool, **flags: Any) -> None:  # noqa: ANN401 (values of flags)
    """Predict what training GRAPH (an ONNX file) needs; exit 4 when it does not fit, or that is unknown.

    Weights are stripped before anything leaves this process. Asks the predictor, or runs it here when none was
    configured and none is reachable. Several GRAPHs, or job files, are asked about together on one device: how much
    they slow each other down, and whether their memory fits. A COMMAND is captured first (`cotenant capture`).
    """
    names = _asked_device(session, flags["device"]).split(",")
    devices = [name_at_hand(session, each.strip(), flags) for each in names]
    tell_passed_over(session, flags)
    batch_sizes = flags["batch_sizes"] or [None]

    def check(jobs: int, *, is_captured: bool) -> None:
        check_combination(jobs, devices, flags)
        if is_captured:
            check_before_capture(session, devices, batch_sizes, flags)

    with asked_jobs(files, is_allowed=yes, check=check) as named:
        is_readable = [len(named) == 1 or _is_readable(job) for job in named]
        jobs = list(compress(named, is_readable))
        if not jobs:
            raise click.exceptions.Exit(ExitCode.USAGE)
        if 1 < len(batch_sizes) == len(named):
            flags["batch_sizes"] = batch_sizes = list(compress(batch_sizes, is_readable))
        if len(jobs) > 1:
            fits = predict_together(session, together_questions(session, jobs, devices, flags), flags["offline"])
        elif flags["max_batch"] or len(devices) > 1 or len(batch_sizes) > 1:
            fits = predict_each(session, each_questions(session, jobs[0], devices, flags), flags)
        else:
            fits = _predict_one(session, jobs[0], devices[0], batch_sizes[0], flags)
    if len(jobs) < len(named):
        raise click.exceptions.Exit(ExitCode.USAGE)
    if not fits:
        raise click.exceptions.Exit(ExitCode.NOT_FEASIBLE)


def _is_readable(job: AskedJob) -> bool:
    """Tells what is wrong with one of several graphs; the others are asked about without it."""
    try:
        load_graph(job.graph)
    except InputError as error:
        tell_error(error)
        return False
    return True


def _asked_device(session: Session, given: str | None) -> str:
    return session.settings.device if given is None else given


def _predict_one(
    session: Session, job: AskedJob, device: str, batch_size: int | None, flags: Mapping[str, Any]
) -> bool:
    request = prediction_pb2.PredictJobRequest(
        settings=job.settings(setting_flags(flags), batch_size),
        device=device,
        device_memory_bytes=device_memory_bytes(flags),
        micro_batch_sizes=flags["micro_batch_sizes"],
        find_largest_batch_size=True,
    )
    calibrated = find_calibration(session, flags["calibration_file"], request.device)
    if flags["offline"] or is_unconfigured(session):
        answer = _predict_offline(job.graph, request, calibrated[0] if calibrated else None)
    else:
        request.onnx_graph = load_graph(job.graph)
        add_calibration(request, calibrated[1] if calibrated else None)
        with naming_graph(job.graph):
            answer = session.predictor().predict_job(request)
    _show_prediction(session, answer, request)
    return may_run(answer)


def _show_prediction(
    session: Session, answer: prediction_pb2.PredictJobResponse, request: prediction_pb2.PredictJobRequest
) -> None:
    """Writes a prediction in the session's format."""
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[answer.prediction_id])
        return
    show(render_table(quantity_columns(answer), quantity_rows(answer), session.width))
    if answer.micro_batches:
        show("")
        show(render_table(micro_batch_columns(answer), micro_batch_rows(answer), session.width))
    show("")
    lines = prediction_lines(answer, answer.device or request.device, request.settings)
    show(render_labelled(lines, session.width))


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
    flags += flags_of_settings(settings)
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

"""The command line: every verb of the program. Data on stdout, everything else on stderr."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from cotenant.client_errors import InputError
from cotenant.command_run import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE, HELP, run_command
from cotenant.device_calibration import DeviceCalibration, read_calibration_file
from cotenant.job_settings import MODES, OPTIMIZERS, PRECISIONS, JobSettings
from cotenant.memory_verdict import MemoryVerdict
from cotenant.quantities import parse_bytes
from cotenant.structured_log import start_logging
from cotenant.system_clock import now_ms
from predictor_service.commands.cross_device import train_cross_device_command
from predictor_service.commands.datasets import datasets
from predictor_service.commands.evaluate import evaluate_command
from predictor_service.commands.models import models
from predictor_service.commands.predict import (
    answer_as_json,
    answer_as_table,
    naming_file,
    open_predictor,
    read_graph_file,
    verdict_of,
)
from predictor_service.commands.predict_many import predict_many_command
from predictor_service.commands.profiles import profiles
from predictor_service.commands.public_models import train_public_models_command
from predictor_service.commands.retrain import retrain_command
from predictor_service.commands.serve import serve
from predictor_service.commands.train import ensure_version, train_command
from predictor_service.errors import (
    CallerError,
    PredictorError,
    UnknownGraphError,
    UnknownRetrainingError,
    UnknownVersionError,
)
from predictor_service.features.device_names import resolve_device
from predictor_service.features.job_settings import check_settings
from predictor_service.inference.records import JobQuestion
from predictor_service.settings import SETTINGS, Settings

EXIT_DOES_NOT_FIT: Final = 4
_EXIT_CODES: Final = (
    (UnknownVersionError, EXIT_NOT_FOUND),
    (UnknownGraphError, EXIT_NOT_FOUND),
    (UnknownRetrainingError, EXIT_NOT_FOUND),
    (CallerError, EXIT_USAGE),
    (InputError, EXIT_USAGE),
    (PredictorError, EXIT_ERROR),
)

_PATH: Final = click.Path(path_type=Path)


@click.group(context_settings=HELP)
def program() -> None:
    """Predict utilization, memory, step time and slowdown of training jobs before they run."""


program.add_command(datasets)
program.add_command(evaluate_command)
program.add_command(models)
program.add_command(predict_many_command)
program.add_command(profiles)
program.add_command(retrain_command)
program.add_command(train_command)
program.add_command(train_cross_device_command)
program.add_command(train_public_models_command)


@program.command("serve")
@SETTINGS.options()
def serve_command(settings: Settings) -> None:
    """Answer over gRPC until SIGTERM. Trains first when there is no model."""
    serve(settings)


@program.command("predict")
@click.argument("graph", type=_PATH)
@click.option("--device", required=True, help="Device type, e.g. cpu-standin, h200 or 'NVIDIA H200'.")
@click.option("--batch-size", type=int, required=True, help="Samples per optimizer step.")
@click.option("--mode", type=click.Choice(MODES), default="train", show_default=True)
@click.option("--precision", type=click.Choice(["unspecified", *PRECISIONS]), default="fp32", show_default=True)
@click.option("--optimizer", type=click.Choice(["unspecified", *OPTIMIZERS]), default="sgd", show_default=True)
@click.option("--input-wait-ratio", type=float, default=0.0, show_default=True)
@click.option("--input-wait-ms", type=float, default=0.0, show_default=True)
@click.option("--channels-last", is_flag=True, help="Images lie in memory with their channels last.")
@click.option("--activation-checkpointing", is_flag=True, help="Activations are computed again, not kept.")
@click.option("--ddp-bucket-bytes", type=int, help="Of DistributedDataParallel, where the job runs under it.")
@click.option("--sharded-ranks", type=int, default=0, help="GPUs among which fully_shard divides what is held.")
@click.option("--gathered-ratio", type=float, default=0.0, help="Share of that which a GPU holds whole at once.")
@click.option("--bind", "bindings", multiple=True, help="NAME=SIZE of a symbolic dimension.")
@click.option(
    "--device-memory-bytes",
    "--device-memory",
    "device_memory_bytes",
    default="0",
    callback=lambda context, option, text: _size_bytes(text),
    help="Where the device type's size is unknown, or not the usual; e.g. 40GiB.",
)
@click.option("--micro-batch-size", "micro_batch_sizes", type=int, multiple=True)
@click.option("--explain", is_flag=True)
@click.option("--calibration", "calibration_file", type=_PATH, help="What `cotenant calibrate` measured of the device.")
@click.option("--offline", is_flag=True, help="Accepted for symmetry: this command never asks a server.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@SETTINGS.options("state_dir")
@click.pass_context
def predict_command(context: click.Context, /, graph: Path, output: str, settings: Settings, **flags: Any) -> None:  # noqa: ANN401 (as above)
    """Predict one job from its ONNX file, without a server. Exit status 4: it will not fit."""
    start_logging("predictor", "error")
    question = JobQuestion(
        settings=check_settings(
            JobSettings(
                global_batch_size=flags["batch_size"],
                mode=flags["mode"],
                precision=flags["precision"].replace("unspecified", "fp32"),
                optimizer=flags["optimizer"].replace("unspecified", "sgd"),
                input_wait_ratio=flags["input_wait_ratio"],
                dimension_bindings=dict(_binding(text) for text in flags["bindings"]),
                channels_last=flags["channels_last"],
                activation_checkpointing=flags["activation_checkpointing"],
                ddp_bucket_bytes=flags["ddp_bucket_bytes"],
                input_wait_ms=flags["input_wait_ms"],
                sharded_ranks=flags["sharded_ranks"],
                gathered_ratio=flags["gathered_ratio"],
            )
        ),
        device=flags["device"],
        onnx_graph=read_graph_file(graph),
        device_memory_bytes=flags["device_memory_bytes"],
        micro_batch_sizes=flags["micro_batch_sizes"],
        explain=flags["explain"],
        find_largest_batch=True,
        calibration=_calibration(flags["calibration_file"]),
    )
    # Before a training that would take its time for nothing.
    resolve_device(question.device, max(question.device_memory_bytes, 0))
    ensure_version(settings, lambda line: click.echo(line, err=True))
    with naming_file(graph):
        answer = open_predictor(settings.state_dir).predict_job(question)
    click.echo(answer_as_json(answer) if output == "json" else answer_as_table(answer))
    context.exit(0 if verdict_of(answer) in {MemoryVerdict.FITS, MemoryVerdict.MAY_NOT_FIT} else EXIT_DOES_NOT_FIT)


def _calibration(file: Path | None) -> DeviceCalibration | None:
    return None if file is None else read_calibration_file(file, now_ms())


def _size_bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except InputError as error:
        raise click.BadParameter(f"{error.message}; {error.remedy}") from error


def _binding(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name or not re.fullmatch("[0-9]{1,18}", size):
        raise click.BadParameter(f"{text!r} is not NAME=SIZE")
    return name, int(size)


def main() -> int:
    """Runs the program; returns its exit status."""
    return run_command(program, exit_codes=_EXIT_CODES)

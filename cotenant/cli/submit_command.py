"""submit: hand a job in, from a file, from flags, or from both (flags win)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant import system_clock
from cotenant.capture.captured_job import CapturedJob
from cotenant.cli.active_environment import foreign_python_note
from cotenant.cli.array_tasks import ArrayTasks
from cotenant.cli.batch_lines import background_note, batch_lines_note, no_program_note
from cotenant.cli.formats import OutputFormat, emit_data, emit_message, message_to_dict
from cotenant.cli.graph_input import load_graph
from cotenant.cli.job_views import AWAITING_PREDICTION, coded_reason, describe_job
from cotenant.cli.job_waiting import wait_for_job
from cotenant.cli.predict_questions import parse_bindings
from cotenant.cli.prediction_views import prediction_lines, quantity_columns, quantity_rows
from cotenant.cli.queue_options import ARRAY_FLAGS, QUEUE_FLAGS, find_parents, queue_content
from cotenant.cli.queue_views import queue_notes
from cotenant.cli.replica_options import REPLICA_FLAGS, replica_content, state_blocks
from cotenant.cli.script_imports import FILES_MAX
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.cli.setting_options import SETTING_NAMES, SETTING_OPTIONS, overlay_settings
from cotenant.cli.submit_array import commands_of_scripts, content_of_first, plan_array, submit_array, with_index
from cotenant.cli.submit_capture import (
    capture_for_submit,
    takes_whole_batch,
    tell_not_captured,
    with_captured,
    without_foreign_steps,
)
from cotenant.cli.tables import render_labelled, render_table
from cotenant.client_errors import InputError, UnavailableError
from cotenant.job_file import parse_job, read_content
from cotenant.option_types import FiniteRange
from cotenant.prediction_questions import naming_graph
from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2

_HELP = """Hand a job in: from JOB_FILE, from flags with the command behind `--`, or both (flags win).

The graph's weights are stripped before it leaves this machine. Without a graph nothing is predicted and the
job runs on GPUs of its own. The graph of `python SCRIPT` that imports torch is read off two steps of it on the
CPU first, where that leaves nothing behind (`cotenant capture`).

\b
Job file:
  name: resnet-small
  command: [python, train.py, --sub-batch, "{sub_batch}"]
  graph: resnet.onnx          # relative to the file, as is working_directory
  settings: {batch_size: 64, optimizer: adam, input_wait_ms: 12}
  steps: 2000
  share: safe                 # never | safe | any
  max_slowdown: 0.2           # a step may take 20 % longer
  progress_regex: 'step (?P<step>\\d+)'   # for scripts that only print
"""
_EPILOG = """\b
Examples:
  cotenant submit job.yaml --wait
  cotenant submit -- python train.py --lr 0.1
  cotenant submit job.yaml --dry-run
  cotenant submit --steps 500 --batch-size 64 --graph mlp.onnx -- python train.py
  cotenant submit --steps 500 --ranks 2 -- python train_ddp.py
  cotenant submit --steps 500 --ranks 2 --servers 1 -- python train_with_servers.py
"""
Command = TypeVar("Command", bound=Callable[..., Any])

_FLAGS = (
    click.option("--name", help="Name of the job."),
    click.option("--graph", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="ONNX file."),
    click.option("--batch-size", type=click.IntRange(1, 1_000_000), help="Samples per optimizer step."),
    click.option("--optimizer", help="sgd, momentum, adam or adamw."),
    click.option("--precision", help="fp32, tf32, bf16 or fp16."),
    *SETTING_OPTIONS,
    click.option("--bind", "bindings", multiple=True, metavar="NAME=SIZE", help="A symbolic dimension."),
    click.option("--steps", type=click.IntRange(min=1), help="Optimizer steps of the whole job."),
    click.option(
        "--accumulation",
        type=click.IntRange(1, 1_000_000),
        help="Batches that the script takes for one step.  [default: as captured]",
    ),
    click.option(
        "--target-loss",
        type=FiniteRange(min=0, min_open=True),
        help="Training ends at this loss; --steps is then the most, or --time-limit bounds it.",
    ),
    click.option("--gpus", metavar="N|N..M", help="GPUs; 2..4 = as an elastic policy likes.  [default: 1]"),
    click.option("--ranks", type=click.IntRange(min=1), help="One process per GPU, with the variables of torchrun."),
    click.option("--across-nodes", is_flag=True, default=None, help="The ranks may be on several nodes."),
    *REPLICA_FLAGS,
    click.option("--share", type=click.Choice(["never", "safe", "any"]), help="Sharing consent.  [default: safe]"),
    click.option("--progress-regex", metavar="REGEX", help="Finds (?P<step>...) in log lines."),
    click.option("--max-slowdown", type=click.FloatRange(min=0), metavar="RATIO", help="0.2 = 20 % slower."),
    click.option("--memory", metavar="SIZE", help="Device memory to reserve.  [default: predicted bound]"),
    click.option(
        "--collect-profiles/--no-collect-profiles", default=None, help="Keep what is measured of it. [default: yes]"
    ),
    click.option("--no-trial", is_flag=True, default=None, help="Never share a GPU on trial."),
    click.option("--no-prepare", is_flag=True, default=None, help="Start its next attempt after the present one only."),
    click.option(
        "--cuts-batch/--whole-batch",
        default=None,
        help="Whether its program can make a step in several passes.  [default: as its script's text says]",
    ),
    click.option(
        "--releases-memory", is_flag=True, default=None, help="It gives device memory back between its peaks."
    ),
    click.option("--migration-cost", metavar="TIME", help="What a move costs it, e.g. 40s.  [default: measured]"),
    click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Environment variable."),
    click.option("--workdir", "working_directory", help="Where the command runs.  [default: here]"),
    *QUEUE_FLAGS,
)


def _with_flags(command: Command) -> Command:
    for flag in reversed((*_FLAGS, *ARRAY_FLAGS)):
        command = flag(command)
    return command


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("job_file_and_command", nargs=-1, metavar="[JOB_FILE] [-- COMMAND...]")
@_with_flags
@click.option("--dry-run", is_flag=True, help="Check and predict, submit nothing; exit 4 = fits nowhere, or refused.")
@click.option("--force", is_flag=True, help="Submit what no connected node can run or no device can hold.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit 7 = failed, 8 = cancelled.")
@click.option(
    "--capture/--no-capture",
    default=None,
    help="Read the graph off the script.  [default: yes, where it imports torch and leaves nothing behind]",
)
@click.option("--request-id", default="", help="Reuse it to repeat a submission safely.")
@with_session
def submit(
    session: Session,
    /,
    *,
    job_file_and_command: tuple[str, ...],
    dry_run: bool,
    force: bool,
    wait: bool,
    request_id: str,
    capture: bool | None,
    **flags: object,
) -> None:
    """Hand a job in."""
    content, folder = read_content_of(job_file_and_command, flags)
    array = plan_array(flags, parse_job(content, folder=folder).spec, wait=wait)
    captured = _capture(session, content, folder, array, wanted=capture, force=force)
    if captured is not None:
        content = with_captured(content, captured)
    job_file = parse_job(content, folder=folder)
    spec = job_file.spec
    _find_out_about_passes(spec, content, array)
    _tell_command(spec)
    graph = captured.graph if captured else load_graph(job_file.graph) if job_file.graph else b""
    if graph:
        with naming_graph(job_file.graph) if job_file.graph else nullcontext():
            spec.graph_sha256 = _upload(session, graph, spec.settings)
        state_blocks(spec, graph)
    client = session.scheduler()
    find_parents(client, spec)
    if array is not None:
        submit_array(session, spec, array, request_id=request_id, dry_run=dry_run, force=force)
        return
    answer = client.submit(spec, request_id=request_id, validate_only=dry_run, force=force)
    _tell_warnings(answer.warnings)
    job = answer.job
    for note in queue_notes(job, system_clock.now_ms()):
        tell(f"warning: {note}", style="yellow")
    if dry_run:
        _show_dry_run(session, answer)
        return
    if not session.output.is_for_people:
        if not wait:
            _emit_job(session, answer)
    else:
        show(f"{job.job_id}  {job.spec.name}  submitted")
        if job.reason.code not in ("", AWAITING_PREDICTION):
            tell(coded_reason(job.reason), style="dim")
    if wait:
        raise click.exceptions.Exit(wait_for_job(session, client, job.job_id))


def _capture(
    session: Session,
    content: dict[str, Any],
    folder: Path,
    array: ArrayTasks | None,
    *,
    wanted: bool | None,
    force: bool,
) -> CapturedJob | None:
    """Reads the graph off the script; off that of the first task where the others differ by their index only."""
    if array is not None:
        first = content_of_first(content, array)
        if wanted is None and array.tasks[0].values:  # a row of a sweep may have another batch or another network
            tell_not_captured(first, folder)
            return None
        content = first

    def check() -> None:
        client, spec = session.scheduler(), parse_job(content, folder=folder).spec
        find_parents(client, spec)
        client.submit(spec, validate_only=True, force=force)

    seen = content if array is None else with_index(content, array)
    captured = capture_for_submit(session, seen, folder, wanted=wanted, check=check)
    if captured is not None and array is not None:
        if array.tasks[0].values:
            captured = replace(captured, planned_steps=0)
        tell("  note: read off the first task; all tasks are predicted as it (--no-capture: none is)", style="yellow")
    return captured


def read_content_of(arguments: tuple[str, ...], flags: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """Merges job file, flags and command; returns the keys of a job file, and the folder that its paths start from.

    Args:
        arguments: A job file, or the words of a command, or the file and then the words.
        flags: Values of the flags; None or empty = not given.

    Raises:
        InputError: Neither file nor command.
    """
    is_file = bool(arguments) and arguments[0].endswith((".yaml", ".yml"))
    command = list(arguments[1:] if is_file else arguments)
    if not is_file and not command:
        raise InputError("nothing to run", remedy="name a job file or put the command behind --")
    _refuse_bare_script(command, flags.get("working_directory"))
    content = _flags_as_content(flags) | ({"command": command} if command else {})
    if not is_file:
        return content, Path.cwd()
    path = Path(arguments[0])
    known = read_content(path)
    return without_foreign_steps(known, content, _overlay(known, content), path), path.resolve().parent


def _refuse_bare_script(command: Sequence[str], directory: str | None) -> None:
    """A Python file's bare name is looked for as a program, which is hardly ever meant."""
    name = command[0] if command else ""
    is_meant = "/" in name or not name.endswith(".py") or not (Path(directory or ".") / name).is_file()
    if is_meant or shutil.which(name):
        return
    remedy = f"put its Python in front: cotenant submit -- python {name}; ./{name} where it starts by itself"
    raise InputError(f"{name} is a script, and no program of that name is found", remedy=remedy)


def _overlay(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**base, **changes}
    for group, overlay in (("settings", overlay_settings), ("environment", dict.__or__)):
        if isinstance(base.get(group), dict) and group in changes:
            merged[group] = overlay(base[group], changes[group])
    return merged


def _flags_as_content(flags: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: flags[name] for name in _SETTING_FLAGS if flags.get(name) is not None}
    if flags.get("bindings"):
        settings["dimension_bindings"] = parse_bindings(flags["bindings"])
    content = {name: flags[name] for name in _SPEC_FLAGS if flags.get(name) is not None}
    # Flags are relative to where the user stands, a job file's paths to the file.
    content |= queue_content(flags) | replica_content(flags)
    content |= {name: str(Path(content[name]).resolve()) for name in _PATH_FLAGS if name in content}
    if flags.get("environment"):
        content["environment"] = dict(_pair(text) for text in flags["environment"])
    return content | ({"settings": settings} if settings else {})


_SETTING_FLAGS = ("batch_size", "optimizer", "precision", *SETTING_NAMES)
_SPEC_FLAGS = (
    "name", "graph", "steps", "accumulation", "target_loss", "gpus", "ranks", "share", "max_slowdown", "memory",
    "progress_regex", "collect_profiles", "no_trial", "no_prepare", "cuts_batch", "releases_memory", "migration_cost",
    "across_nodes", "working_directory",
)  # fmt: skip
_PATH_FLAGS = ("graph", "working_directory")


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise InputError(f"{text!r} is not NAME=VALUE", remedy="e.g. --env OMP_NUM_THREADS=1")
    return name, value


def _upload(session: Session, graph: bytes, settings: resources_pb2.JobSettings) -> str:
    """Hands in a graph; of its batch nothing is told that the settings say otherwise: it alone does not show it."""
    try:
        answer = session.predictor().upload_graph(graph)
    except UnavailableError as error:
        error.remedy += "; without a graph the job would run on GPUs of its own"
        raise
    is_stated = "batch" in settings.dimension_bindings
    _tell_warnings(each for each in answer.warnings if not (is_stated and each.code == "FIXED_BATCH"))
    return answer.graph_sha256


def _find_out_about_passes(spec: scheduling_pb2.JobSpec, content: Mapping[str, Any], array: ArrayTasks | None) -> None:
    """Of a sweep that names its script in a column, all scripts have to cut their batches: the tasks are one job."""
    if "cuts_batch" not in content:
        commands = [list(spec.command)] if array is None else commands_of_scripts(list(spec.command), array)
        is_looked_at = len(commands) <= FILES_MAX
        directory = Path(spec.working_directory)
        spec.takes_whole_batch = not is_looked_at or any(takes_whole_batch(each, directory) for each in commands)


def _tell_command(spec: scheduling_pb2.JobSpec) -> None:
    notes = (
        foreign_python_note(spec.command, spec.environment),
        batch_lines_note(spec.command, Path(spec.working_directory)),
        background_note(spec.command),
        no_program_note(spec.command, Path(spec.working_directory)),
    )
    for note in filter(None, notes):
        tell(f"warning: {note}", style="yellow")


def _tell_warnings(warnings: Iterable[resources_pb2.Warning]) -> None:
    for warning in warnings:
        tell(f"warning: {warning.code}: {warning.message}", style="yellow")


def _emit_job(session: Session, answer: scheduling_pb2.SubmitJobResponse) -> None:
    """Writes the job as data, with the warnings as one more field of it."""
    if session.output is OutputFormat.NAME:
        emit_message(answer.job, session.output, names=[answer.job.job_id])
        return
    emit_data(message_to_dict(answer.job) | {"warnings": _as_data(answer.warnings)}, session.output)


def _as_data(warnings: Iterable[resources_pb2.Warning]) -> list[dict[str, Any]]:
    return [message_to_dict(warning) for warning in warnings]


def _show_dry_run(session: Session, answer: scheduling_pb2.SubmitJobResponse) -> None:
    job = answer.job
    devices = _devices(session).items() if job.spec.graph_sha256 else ()
    predictions = {device: _predict(session, job, device, memory_bytes) for device, memory_bytes in devices}
    if not session.output.is_for_people:
        named = {device: message_to_dict(prediction) for device, prediction in predictions.items()}
        content = {"job": message_to_dict(job), "predictions": named, "warnings": _as_data(answer.warnings)}
        emit_data(content, session.output)
        return
    for device, prediction in predictions.items():
        show(f"on {device}:")
        show(render_table(quantity_columns(prediction), quantity_rows(prediction), session.width))
        show(render_labelled(prediction_lines(prediction, device, job.spec.settings), session.width))
        show("")
    show(render_labelled([line for line in describe_job(job, ()) if line[0] in ("reason", "command")], session.width))
    tell("dry run: the job would be accepted; nothing was submitted")


def _devices(session: Session) -> dict[str, int]:
    """Returns the cluster's device types with the memory that their nodes report."""
    gpus = sorted((gpu.device, gpu.memory_bytes) for node in session.scheduler().list_nodes() for gpu in node.gpus)
    return dict(gpus) or {session.settings.device: 0}


def _predict(
    session: Session, job: scheduling_pb2.Job, device: str, memory_bytes: int
) -> prediction_pb2.PredictJobResponse:
    request = prediction_pb2.PredictJobRequest(
        graph_sha256=job.spec.graph_sha256,
        settings=job.spec.settings,
        device=device,
        device_memory_bytes=memory_bytes,
        find_largest_batch_size=True,
    )
    return session.predictor().predict_job(request)

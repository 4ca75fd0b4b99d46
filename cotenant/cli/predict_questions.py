"""The questions that `predict` asks, made of jobs and flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cotenant.calibration_files import (
    UNREADABLE_REMEDY,
    device_at_hand,
    newest_calibration,
    unreadable_calibrations,
)
from cotenant.cli.graph_input import AskedJob, with_batch
from cotenant.cli.session import Session, tell
from cotenant.cli.setting_options import SETTING_NAMES
from cotenant.cli.settings import state_folder
from cotenant.client import is_serving, open_channel
from cotenant.client_errors import InputError
from cotenant.device_calibration import DeviceCalibration, read_calibration_file
from cotenant.device_sharing import DeviceSharing
from cotenant.option_types import Kind
from cotenant.prediction_questions import Question, Questions, add_calibration, hash_of
from cotenant.quantities import parse_bytes
from cotenant.system_clock import now_ms
from cotenant.v1 import prediction_pb2, resources_pb2

# A default address is only a guess: without a configured one, offline prediction starts soon.
GUESS_TIMEOUT_S = 0.5
CELLS_MAX = 100
WAYS = {way.label.replace("_", "-"): way for way in DeviceSharing if way}
"""How jobs may share a device, by what is typed."""
_SETTING_FLAGS = ("optimizer", "precision", "mode", *SETTING_NAMES)


class NumberList(Kind):
    """Whole numbers from 1 to 1,000,000, separated by commas."""

    name = "integer[,integer...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:  # noqa: ANN401
        """Reads the numbers; each is reported as a single one would be."""
        if isinstance(value, list):
            return value
        one = click.IntRange(1, 1_000_000)
        return [one.convert(part.strip(), param, ctx) for part in value.split(",")]


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


def setting_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that are settings of a job; None = not given."""
    return {name: flags[name] for name in _SETTING_FLAGS} | {
        "dimension_bindings": parse_bindings(flags["bindings"]) or None
    }


def check_combination(jobs: int, devices: Sequence[str], flags: Mapping[str, Any]) -> None:
    """Looks whether flags go together with so many jobs and devices.

    Raises:
        InputError: Several jobs on more than one device, or with neither one batch for all nor one for each; too many
            questions about one job, or a flag that only one question, or only several jobs can have.
    """
    batches, is_for_one = len(flags["batch_sizes"] or [None]), bool(flags["micro_batch_sizes"])
    if jobs > 1:
        if len(devices) != 1 or flags["max_batch"] or is_for_one:
            raise InputError(
                "several jobs are asked about together, on one device",
                remedy="give one --device, without --max-batch and --micro-batch-size",
            )
        if batches not in (1, jobs):
            raise InputError(
                f"{batches} batch sizes for {jobs} jobs", remedy="give one --batch-size for all, or one each"
            )
        return
    if flags["sharing"]:
        raise InputError("one job shares a device with no other", remedy="name several graphs, or leave --sharing out")
    questions = (1 if flags["max_batch"] else batches) * len(devices)
    if questions > CELLS_MAX:
        raise InputError(f"{questions} combinations", remedy=f"ask about {CELLS_MAX} at most")
    if is_for_one and (flags["max_batch"] or questions > 1):
        raise InputError(
            "--micro-batch-size goes with one batch and one device", remedy="leave it out, or ask one by one"
        )


def each_questions(session: Session, job: AskedJob, devices: Sequence[str], flags: Mapping[str, Any]) -> Questions:
    """Returns one question for every batch on every device; `check_combination` has passed."""
    batch_sizes = flags["batch_sizes"] or [1 if flags["max_batch"] and "batch_size" not in job.known else None]
    if flags["max_batch"]:
        batch_sizes = batch_sizes[:1]
    sha256 = hash_of(job.graph)
    settings = job.settings(setting_flags(flags), batch_sizes[0])
    requests = []
    for device in devices:
        for batch_size in batch_sizes:  # a wait is that of the first
            request = prediction_pb2.PredictJobRequest(
                graph_sha256=sha256,
                settings=settings if batch_size is None else with_batch(settings, batch_size),
                device=device,
                device_memory_bytes=device_memory_bytes(flags),
                find_largest_batch_size=True,
            )
            _calibrate(session, request, flags)
            requests.append(request)
    return Questions(graphs=[job.graph], jobs=requests)


def together_questions(
    session: Session, jobs: Sequence[AskedJob], devices: Sequence[str], flags: Mapping[str, Any]
) -> Questions:
    """Returns the questions about jobs that share one device; `check_combination` has passed."""
    batch_sizes = flags["batch_sizes"] or [None]
    sizes = batch_sizes * len(jobs) if len(batch_sizes) == 1 else batch_sizes
    references = [
        prediction_pb2.JobRef(
            job_id=f"{number}. {job.name}",
            graph_sha256=hash_of(job.graph),
            settings=job.settings(setting_flags(flags), size),
        )
        for number, (job, size) in enumerate(zip(jobs, sizes, strict=True), start=1)
    ]
    place: dict[str, Any] = {"device": devices[0], "device_memory_bytes": device_memory_bytes(flags)}
    pairs = prediction_pb2.PredictPairsRequest(jobs=references, **place)
    if flags["sharing"]:
        pairs.sharing = resources_pb2.DeviceSharing.ValueType(WAYS[flags["sharing"]])
    risk = prediction_pb2.PredictMemoryRiskRequest(jobs=references, **place)
    singles = [
        prediction_pb2.PredictJobRequest(graph_sha256=each.graph_sha256, settings=each.settings, **place)
        for each in references
    ]
    asked: list[Question] = [pairs, risk, *singles]
    for request in asked:
        _calibrate(session, request, flags)
    return Questions(graphs=list(dict.fromkeys(job.graph for job in jobs)), jobs=singles, pairs=pairs, risk=risk)


def device_memory_bytes(flags: Mapping[str, Any]) -> int:
    """Returns the memory that the device is said to have; 0 = as its type has.

    Raises:
        InputError: It is no size.
    """
    return 0 if flags["device_memory"] is None else parse_bytes(flags["device_memory"])


def _calibrate(session: Session, request: Question, flags: Mapping[str, Any]) -> None:
    found = find_calibration(session, flags["calibration_file"], request.device)
    add_calibration(request, found[1] if found else None)


def tell_passed_over(session: Session, flags: Mapping[str, Any]) -> None:
    """Says of the first calibration of this machine that cannot be read that it counts for nothing."""
    if flags["calibration_file"] is not None:
        return
    errors = unreadable_calibrations(state_folder(session.settings), now_ms())
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        tell(f"note: a calibration is passed over: {errors[0].message}{more}", style="yellow")
        tell(f"  remedy: {UNREADABLE_REMEDY}", style="yellow")


def find_calibration(session: Session, file: Path | None, device: str) -> tuple[Path, DeviceCalibration] | None:
    """Returns the calibration that was named, else the newest that this machine has of the device type."""
    if file is not None:
        return file, read_calibration_file(file, now_ms())
    return newest_calibration(state_folder(session.settings), device, now_ms())


def name_at_hand(session: Session, name: str, flags: Mapping[str, Any]) -> str:
    """Returns the full name of the device of this machine that is meant; who states more means what is stated."""
    if flags["calibration_file"] is not None or flags["device_memory"] is not None:
        return name
    return device_at_hand(state_folder(session.settings), name, now_ms())


def is_unconfigured(session: Session, *, says_so: bool = True) -> bool:
    """Tells whether no predictor was named and none answers where one would be."""
    if not session.resolved.is_default("predictor"):
        return False
    settings = session.settings
    channel = open_channel(settings.channel_options(settings.predictor))
    if is_serving(channel, timeout_s=GUESS_TIMEOUT_S):
        return False
    if says_so:
        tell(f"no predictor at {settings.predictor}; predicting offline", style="dim")
    return True

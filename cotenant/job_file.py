"""A job as a YAML file.

    name: resnet-small              # leave out = that of the script
    command: [python, train.py, --batch-size, "64", --sub-batch, "{sub_batch}"]
    working_directory: .            # relative to this file
    graph: graphs/resnet.onnx       # relative to this file; leave out = nothing is predicted, the job runs alone
    settings: {batch_size: 64, optimizer: adam, input_wait_ms: 12}
    steps: 2000
    accumulation: 4                 # batches that the script takes for one step; leave out = one, or as captured
    ranks: 2                        # one process per GPU, each with the variables of torchrun
    share: safe                     # never | safe | any
    max_slowdown: 0.2               # 0.2 = a step may take 20 % longer
    collect_profiles: true          # false = nothing that is measured of this job is kept
    across_nodes: false             # true = the ranks may be on several nodes, which share or send checkpoints
    no_trial: false                 # true = it never shares a GPU on trial
    no_prepare: false               # true = when it is moved its next attempt begins after the present one
    cuts_batch: true                # false = it is never started in passes; leave out = as its script's text says
    releases_memory: false          # true = it gives device memory back between its peaks (docs/training_scripts.md)
    migration_cost: 40s             # what a move to other GPUs costs it; leave out = as measured of moves

Keys about the queue (priority, after, time_limit ...) are in `cotenant/job_file_queue.py`, those about parameter
servers and ranks that are too slow in `cotenant/job_file_replicas.py`.
Unknown keys are refused with the nearest valid one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cotenant.client import enum_name, job_settings
from cotenant.client_errors import InputError
from cotenant.job_file_queue import QUEUE_READERS, read_gpu_range, read_truth
from cotenant.job_file_replicas import REPLICA_READERS, check_replicas
from cotenant.job_name import name_of
from cotenant.nearest_name import did_you_mean
from cotenant.profile_text import TextError, read_text
from cotenant.quantities import parse_bytes, parse_duration_ms
from cotenant.rank_launchers import spans_nodes
from cotenant.v1 import resources_pb2, scheduling_pb2

FILE_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """The contents of a job file.

    Attributes:
        spec: The job without its graph's hash.
        graph: Graph file, absolute; None = no graph.
    """

    spec: scheduling_pb2.JobSpec
    graph: Path | None


def read_content(path: Path) -> dict[str, Any]:
    """Reads a job file without looking at its keys.

    Raises:
        InputError: Not readable, too large or not a YAML mapping.
    """
    try:
        content = yaml.safe_load(read_text(path, bytes_max=FILE_LIMIT_BYTES))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
    except TextError as error:
        raise InputError(f"{path} {error}", remedy="is it a job file?") from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deep", remedy="is it a job file?") from error
    except (yaml.YAMLError, ValueError) as error:  # the latter: a date or number that cannot be
        raise InputError(f"{path} is not YAML: {error}", remedy="see `cotenant submit --help`") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a mapping of keys to values", remedy="see `cotenant submit --help`")
    return content


def read_job_file(path: Path) -> JobFile:
    """Reads and checks a job file.

    Raises:
        InputError: Not readable, not YAML, an unknown key or a value of the wrong kind.
    """
    return parse_job(read_content(path), folder=path.resolve().parent)


def parse_job(content: Mapping[str, Any], *, folder: Path) -> JobFile:
    """Builds a job from the mapping that a job file holds.

    Args:
        content: Keys as in the module's docstring.
        folder: What relative paths start from.

    Raises:
        InputError: An unknown key or a value of the wrong kind.
    """
    _check_keys(content, _READERS, "key")
    spec = scheduling_pb2.JobSpec()
    for key, value in content.items():
        try:
            _READERS[key](spec, value)
        except (ValueError, OverflowError) as error:  # what no field of a message can hold
            raise InputError(f"{key} cannot be {_shorten(value)}", remedy="write what a machine can have") from error
    if not spec.command:
        raise InputError("command is missing", remedy="e.g. command: [python, train.py]")
    if spec.across_nodes and not spec.ranks and not spans_nodes(spec.command):
        remedy = "add --ranks N (ranks: N), or let torchrun be the command"
        raise InputError("across_nodes needs ranks: one process is on one node", remedy=remedy)
    check_replicas(spec)
    if spec.ranks and not spec.gpus:
        spec.gpus = spec.ranks
    if not spec.name:
        spec.name = name_of(spec.command)
    spec.working_directory = str((folder / (spec.working_directory or ".")).resolve())
    graph = content.get("graph")
    return JobFile(spec=spec, graph=(folder / str(graph)).resolve() if graph else None)


def share_mode(text: str) -> resources_pb2.ShareMode.ValueType:
    """Returns the share mode for never, safe or any.

    Raises:
        InputError: Another word.
    """
    return resources_pb2.ShareMode.Value(enum_name(resources_pb2.ShareMode.keys(), "SHARE_MODE_", text))


Reader = Callable[[scheduling_pb2.JobSpec, object], None]


def _text(field: str) -> Reader:
    return lambda spec, value: setattr(spec, field, str(value))


def _whole(field: str, key: str) -> Reader:
    return lambda spec, value: setattr(spec, field, _whole_number(key, value))


def _read_steps(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.steps_total = _whole_number("steps", value)
    if spec.steps_total < 1:  # in the message 0 would be read as "unknown"
        raise InputError(f"steps must be at least 1, not {value}", remedy="leave it out if you do not know")


def _read_target_loss(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.target_loss = _real_number("target_loss", value)
    if not 0 < spec.target_loss < math.inf:  # in the message 0 stands for none
        raise InputError(f"target_loss must be above 0, not {value}", remedy="leave it out to end by steps")


def _read_accumulation(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.batches_per_step = _whole_number("accumulation", value)
    if spec.batches_per_step < 1:  # in the message 0 stands for "not known"
        raise InputError(f"accumulation must be at least 1, not {value}", remedy="leave it out if you do not know")


def _read_gpus(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if isinstance(value, str) and not value.strip().isdecimal():
        spec.allowed_gpus[:] = read_gpu_range(value)
        spec.gpus = spec.allowed_gpus[0]
        return
    value = int(value) if isinstance(value, str) else value
    spec.gpus = _whole_number("gpus", value)
    if spec.gpus < 1:  # in the message 0 would be read as "not given"
        raise InputError(f"gpus must be at least 1, not {value}", remedy="leave it out for one GPU")


def _read_ranks(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.ranks = _whole_number("ranks", value)
    if spec.ranks < 1:  # in the message 0 stands for one process
        raise InputError(f"ranks must be at least 1, not {value}", remedy="leave it out for one process")


def _number(field: str, key: str) -> Reader:
    return lambda spec, value: setattr(spec, field, _real_number(key, value))


def _size(field: str) -> Reader:
    return lambda spec, value: setattr(spec, field, parse_bytes(str(value)))


def _read_command(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(part, str | int | float) for part in value):
        raise InputError("command must be a list of words", remedy='e.g. [python, train.py, --steps, "100"]')
    spec.command.extend(str(part) for part in value)


def _read_environment(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if not isinstance(value, dict):
        raise InputError("environment must be a mapping", remedy="e.g. environment: {OMP_NUM_THREADS: 1}")
    spec.environment.update({str(name): str(text) for name, text in value.items()})


def _read_allowed_gpus(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if not isinstance(value, list):
        raise InputError("allowed_gpus must be a list", remedy="e.g. allowed_gpus: [1, 2, 4]")
    spec.allowed_gpus.extend(_whole_number("allowed_gpus", count) for count in value)


def check_settings(value: object) -> None:
    """Look at the settings of a job file.

    Raises:
        InputError: One is unknown, of another type or outside its range.
    """
    _read_settings(scheduling_pb2.JobSpec(), value)


def _read_settings(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if not isinstance(value, dict):
        raise InputError("settings must be a mapping", remedy="e.g. settings: {batch_size: 64}")
    _check_keys(value, _SETTINGS, "setting")
    bucket_bytes = value.get("ddp_bucket_bytes")
    spec.settings.CopyFrom(
        job_settings(
            batch_size=_whole_number("batch_size", value.get("batch_size", 0)),
            precision=str(value.get("precision", "fp32")),
            optimizer=str(value.get("optimizer", "sgd")),
            mode=str(value.get("mode", "train")),
            input_wait_ratio=_real_number("input_wait_ratio", value.get("input_wait_ratio", 0.0)),
            dimension_bindings=_read_bindings(value.get("dimension_bindings") or {}),
            channels_last=_switch("channels_last", value.get("channels_last", False)),
            activation_checkpointing=_switch("activation_checkpointing", value.get("activation_checkpointing", False)),
            ddp_bucket_bytes=None if bucket_bytes is None else _whole_number("ddp_bucket_bytes", bucket_bytes),
            input_wait_ms=_real_number("input_wait_ms", value.get("input_wait_ms", 0.0)),
            sharded_ranks=_whole_number("sharded_ranks", value.get("sharded_ranks", 0)),
            gathered_ratio=_real_number("gathered_ratio", value.get("gathered_ratio", 0.0)),
        )
    )


_SETTINGS = (
    "batch_size", "precision", "optimizer", "mode", "input_wait_ratio", "input_wait_ms", "dimension_bindings",
    "channels_last", "activation_checkpointing", "ddp_bucket_bytes", "sharded_ranks",
    "gathered_ratio",
)  # fmt: skip


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false", remedy=f"e.g. {name}: true")
    return value


def _read_bindings(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise InputError("dimension_bindings must be a mapping", remedy="e.g. dimension_bindings: {sequence: 128}")
    return {str(name): _whole_number(f"dimension_bindings.{name}", size) for name, size in value.items()}


_READERS: Mapping[str, Reader] = {
    "name": _text("name"),
    "tenant": _text("tenant"),
    "command": _read_command,
    "working_directory": _text("working_directory"),
    "environment": _read_environment,
    "graph": lambda spec, value: None,  # read apart from the spec: it is a file here and a hash there
    "settings": _read_settings,
    "gpus": _read_gpus,
    "ranks": _read_ranks,
    "collective_timeout_ms": _whole("collective_timeout_ms", "collective_timeout_ms"),
    "allowed_gpus": _read_allowed_gpus,
    "steps": _read_steps,
    "target_loss": _read_target_loss,
    "accumulation": _read_accumulation,
    "share": lambda spec, value: setattr(spec, "share", share_mode(str(value))),
    "max_slowdown": _number("max_slowdown_ratio", "max_slowdown"),
    "cpu_cores": _number("cpu_cores", "cpu_cores"),
    "host_memory": _size("host_memory_bytes"),
    "memory": _size("memory_bytes"),
    "checkpoint_ms": _whole("checkpoint_ms", "checkpoint_ms"),
    "progress_regex": _text("progress_regex"),
    "restart_limit": _whole("restart_limit", "restart_limit"),
    "collect_profiles": lambda spec, value: setattr(spec, "no_profiles", not read_truth("collect_profiles", value)),
    "no_trial": lambda spec, value: setattr(spec, "no_trial", read_truth("no_trial", value)),
    "no_prepare": lambda spec, value: setattr(spec, "no_preparation", read_truth("no_prepare", value)),
    "cuts_batch": lambda spec, value: setattr(spec, "takes_whole_batch", not read_truth("cuts_batch", value)),
    "releases_memory": lambda spec, value: setattr(spec, "releases_memory", read_truth("releases_memory", value)),
    "migration_cost": lambda spec, value: setattr(spec, "migration_cost_ms", parse_duration_ms(str(value))),
    "across_nodes": lambda spec, value: setattr(spec, "across_nodes", read_truth("across_nodes", value)),
    **QUEUE_READERS,
    **REPLICA_READERS,
}


def _check_keys(content: Mapping[str, Any], valid: Mapping[str, Any] | tuple[str, ...], noun: str) -> None:
    for key in content:
        if key not in valid:
            raise InputError(f"unknown {noun} {key!r}", remedy=did_you_mean(str(key), list(valid)))


def _shorten(value: object) -> str:
    shown = ascii(value) if not isinstance(value, int) else f"a number of {value.bit_length()} bits"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _whole_number(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{key} must be a whole number, not {value!r}")
    return value


def _real_number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{key} must be a number, not {value!r}")
    return float(value)

"""Flags of settings that change memory and time without being in the graph, for every verb that is about a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from cotenant.job_settings import DDP_BUCKET_BYTES_MAX, INPUT_WAIT_MS_MAX, SHARDED_RANKS_MAX
from cotenant.option_types import FiniteRange
from cotenant.v1 import resources_pb2

Command = TypeVar("Command", bound=Callable[..., Any])

SETTING_OPTIONS = (
    click.option(
        "--input-wait-ms",
        type=FiniteRange(0, INPUT_WAIT_MS_MAX),
        metavar="MS",
        help="Wait for input in a step, on any device.",
    ),
    click.option(
        "--input-wait-ratio",
        type=click.FloatRange(0, 1, max_open=True),
        metavar="RATIO",
        help="The same as part of a step, where it was measured.",
    ),
    click.option("--channels-last", is_flag=True, default=None, help="Images lie in memory with their channels last."),
    click.option(
        "--activation-checkpointing", is_flag=True, default=None, help="Activations are computed again, not kept."
    ),
    click.option(
        "--ddp-bucket-bytes",
        type=click.IntRange(1, DDP_BUCKET_BYTES_MAX),
        metavar="BYTES",
        help="The job runs under DistributedDataParallel, whose own is 26214400.",
    ),
    click.option(
        "--sharded-ranks",
        type=click.IntRange(2, SHARDED_RANKS_MAX),
        metavar="N",
        help="GPUs among which fully_shard divides weights, gradients and state.",
    ),
    click.option(
        "--gathered-ratio",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="RATIO",
        help="Share of them that a GPU holds whole at once.",
    ),
)
_WAITS = ("input_wait_ms", "input_wait_ratio")
SETTING_NAMES = (
    *_WAITS,
    "channels_last",
    "activation_checkpointing",
    "ddp_bucket_bytes",
    "sharded_ranks",
    "gathered_ratio",
)
_BINDING = re.compile(r"dimension_bindings\[([^\]\s]+)\]")
_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "--name", "tenant": "--tenant", "gpus": "--gpus", "ranks": "--ranks", "share": "--share",
        "steps_total": "--steps", "target_loss": "--target-loss", "progress_regex": "--progress-regex",
        "environment": "--env", "working_directory": "--workdir", "across_nodes": "--across-nodes",
        "max_slowdown_ratio": "--max-slowdown", "after_job_ids": "--after", "allowed_devices": "--device",
        "settings.global_batch_size": "--batch-size",
    }
)  # fmt: skip
_FIELD = re.compile(rf"\bspec\.({'|'.join(map(re.escape, _FLAGS))})\b(?!\.)")


def with_setting_options(command: Command) -> Command:
    """Adds the flags to a command."""
    for option in reversed(SETTING_OPTIONS):
        command = option(command)
    return command


def overlay_settings(known: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with changes.

    A wait for input that is changed was stated before in either form; one in milliseconds that stays is of the batch
    that it was stated with, of which each sample is waited for as long in another batch.
    """
    if not changes.keys().isdisjoint(_WAITS):
        return {name: value for name, value in known.items() if name not in _WAITS} | dict(changes)
    merged = {**known, **changes}
    wait_ms, own_size, batch_size = known.get("input_wait_ms"), known.get("batch_size"), merged.get("batch_size")
    if isinstance(wait_ms, int | float) and isinstance(own_size, int) and isinstance(batch_size, int) and own_size > 0:
        merged["input_wait_ms"] = wait_ms * batch_size / own_size
    return merged


def naming_flags(text: str) -> str:
    """Returns what a service says with the flag of a field in place of the contract's name of it."""
    return _FIELD.sub(lambda found: _FLAGS[found[1]], _BINDING.sub(r"--bind \1=SIZE", text))


def flags_of_settings(settings: resources_pb2.JobSettings) -> list[str]:
    """Returns the flags that state the same settings."""
    flags = ["--input-wait-ratio", str(settings.input_wait_ratio)] if settings.input_wait_ratio else []
    flags += ["--input-wait-ms", str(settings.input_wait_ms)] if settings.input_wait_ms else []
    flags += ["--channels-last"] if settings.channels_last else []
    flags += ["--activation-checkpointing"] if settings.activation_checkpointing else []
    flags += ["--sharded-ranks", str(settings.sharded_ranks)] if settings.sharded_ranks else []
    flags += ["--gathered-ratio", str(settings.gathered_ratio)] if settings.gathered_ratio else []
    bucket = str(settings.ddp_bucket_bytes)
    return [*flags, "--ddp-bucket-bytes", bucket] if settings.HasField("ddp_bucket_bytes") else flags

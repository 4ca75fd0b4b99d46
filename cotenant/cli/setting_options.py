"""Flags of settings that change memory and time without being in the graph, for every verb that is about a job."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cotenant.job_settings import DDP_BUCKET_BYTES_MAX
from cotenant.v1 import resources_pb2

Command = TypeVar("Command", bound=Callable[..., Any])

SETTING_OPTIONS = (
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
)
SETTING_NAMES = ("channels_last", "activation_checkpointing", "ddp_bucket_bytes")
_BINDING = re.compile(r"dimension_bindings\[([^\]\s]+)\]")


def with_setting_options(command: Command) -> Command:
    """Adds the flags to a command."""
    for option in reversed(SETTING_OPTIONS):
        command = option(command)
    return command


def naming_flags(text: str) -> str:
    """Returns what a service says with the flag of a setting in place of the contract's name of it."""
    return _BINDING.sub(r"--bind \1=SIZE", text)


def flags_of_settings(settings: resources_pb2.JobSettings) -> list[str]:
    """Returns the flags that state the same settings."""
    flags = ["--channels-last"] if settings.channels_last else []
    flags += ["--activation-checkpointing"] if settings.activation_checkpointing else []
    bucket = str(settings.ddp_bucket_bytes)
    return [*flags, "--ddp-bucket-bytes", bucket] if settings.HasField("ddp_bucket_bytes") else flags

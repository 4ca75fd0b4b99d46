"""Flags of `submit` that are about the group of a job's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cotenant.graph_parameters import parameter_blocks
from cotenant.option_types import FiniteRange
from cotenant.parameter_assignment import BLOCK_NAMES_BYTES_MAX, BLOCKS_MAX
from cotenant.v1 import scheduling_pb2

REPLICA_FLAGS = (
    click.option("--servers", metavar="N|N..M", help="Parameter servers in addition to the ranks, on CPU cores."),
    click.option("--server-command", metavar="COMMAND", help="What they run, quoted.  [default: the job's command]"),
    click.option("--server-cpu-cores", type=FiniteRange(min=0, min_open=True), help="CPU cores kept for each of them."),
    click.option("--server-host-memory", metavar="SIZE", help="Host memory kept for each of them."),
    click.option(
        "--straggler-ratio",
        type=FiniteRange(min=1, min_open=True, max=100),
        help="Replace a rank that takes so many times as long as the others.  [default: none]",
    ),
    click.option("--straggler-window", metavar="TIME", help="When it did so throughout this time.  [default: 60s]"),
)
_KEYS = (
    "servers", "server_command", "server_cpu_cores", "server_host_memory", "straggler_ratio", "straggler_window",
)  # fmt: skip


def replica_content(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that were given as keys of a job file."""
    return {name: flags[name] for name in _KEYS if flags.get(name) is not None}


def state_blocks(spec: scheduling_pb2.JobSpec, graph: bytes) -> None:
    """Tells the parameter servers of a job what the blocks of its model are; where they are too many, nothing.

    Args:
        spec: With or without parameter servers.
        graph: Of the job, stripped; empty = it has none.
    """
    if not graph or not spec.HasField("servers"):
        return
    blocks = parameter_blocks(graph)
    if len(blocks) <= BLOCKS_MAX and sum(len(name.encode()) for name in blocks) <= BLOCK_NAMES_BYTES_MAX:
        spec.servers.blocks.update(blocks)

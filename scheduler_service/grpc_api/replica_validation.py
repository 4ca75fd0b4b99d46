"""Rules of parameter servers, and of ranks that are too slow."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.parameter_assignment import BLOCK_NAMES_BYTES_MAX, BLOCKS_MAX
from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import FieldViolation

SERVERS_MAX = 64
BLOCK_PARAMETERS_MAX = 10**12
STRAGGLER_RATIO_MAX = 100.0
STRAGGLER_WINDOW_MS_MAX = 24 * 3_600_000
_COMMAND_BYTES_MAX = 131_072
_ARGUMENTS_MAX = 1_000
_CPU_CORES_MAX = 100_000
_BYTES_MAX = 2**60


def replica_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    """Check what a job asks of the group of its processes."""
    if spec.HasField("servers"):
        if not spec.ranks:
            needed = "parameter servers serve processes with the variables of torchrun"
            yield _violation("servers", f"needs ranks (--ranks): {needed}")
        yield from _server_violations(spec.servers)
        yield from _block_violations(spec.servers)
    yield from _straggler_violations(spec)


def _server_violations(servers: scheduling_pb2.ParameterServers) -> Iterator[FieldViolation]:
    allowed = servers.allowed_counts
    if not 1 <= servers.count <= SERVERS_MAX:
        yield _violation("servers.count", f"must be from 1 to {SERVERS_MAX}, not {servers.count}")
    if len(allowed) > SERVERS_MAX or any(not 1 <= count <= SERVERS_MAX for count in allowed):
        yield _violation("servers.allowed_counts", f"must be at most {SERVERS_MAX} counts from 1 to {SERVERS_MAX}")
    elif allowed and servers.count not in allowed:
        yield _violation("servers.allowed_counts", f"must contain count ({servers.count}) or be empty")
    size_bytes = sum(len(argument.encode()) + 1 for argument in servers.command)
    if len(servers.command) > _ARGUMENTS_MAX or size_bytes > _COMMAND_BYTES_MAX:
        yield _violation(
            "servers.command", f"must have at most {_ARGUMENTS_MAX} arguments and {_COMMAND_BYTES_MAX} bytes"
        )
    if servers.command and (not servers.command[0] or any("\0" in argument for argument in servers.command)):
        yield _violation("servers.command", "must begin with a program, and contain no zero byte")
    # A number that is not a number fails both comparisons.
    if not 0 <= servers.cpu_cores <= _CPU_CORES_MAX:
        yield _violation("servers.cpu_cores", f"must be from 0 to {_CPU_CORES_MAX:,}, not {servers.cpu_cores:,}")
    if not 0 <= servers.host_memory_bytes <= _BYTES_MAX:
        yield _violation("servers.host_memory_bytes", f"must be from 0 to {_BYTES_MAX:,}")


def _block_violations(servers: scheduling_pb2.ParameterServers) -> Iterator[FieldViolation]:
    blocks = servers.blocks
    if len(blocks) > BLOCKS_MAX or sum(len(name.encode()) for name in blocks) > BLOCK_NAMES_BYTES_MAX:
        yield _violation(
            "servers.blocks", f"must be at most {BLOCKS_MAX:,} with names of {BLOCK_NAMES_BYTES_MAX:,} bytes"
        )
    if any(not 1 <= parameters <= BLOCK_PARAMETERS_MAX for parameters in blocks.values()):
        yield _violation("servers.blocks", f"must have from 1 to {BLOCK_PARAMETERS_MAX:,} parameters each")


def _straggler_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    ratio, window_ms = spec.straggler_ratio, spec.straggler_window_ms
    if ratio != 0 and not 1 < ratio <= STRAGGLER_RATIO_MAX:
        yield _violation(
            "straggler_ratio", f"must be 0 (none), or above 1 and at most {STRAGGLER_RATIO_MAX:g}, not {ratio:g}"
        )
    elif ratio and max(spec.allowed_gpus, default=spec.gpus) < 2:
        yield _violation("straggler_ratio", "compares ranks: it needs two or more of them (--ranks)")
    elif ratio and not spec.ranks:
        yield _violation("straggler_ratio", "compares ranks: one process has none (--ranks)")
    if not 0 <= window_ms <= STRAGGLER_WINDOW_MS_MAX:
        yield _violation("straggler_window_ms", f"must be from 0 to {STRAGGLER_WINDOW_MS_MAX:,}, not {window_ms:,}")


def _violation(field: str, description: str) -> FieldViolation:
    return FieldViolation(field=f"spec.{field}", description=description)

"""The keys of a job file that are about the group of a job's processes.

servers: 1                            # parameter servers in addition to the ranks; 1..4 = optimus chooses, else 1
server_command: [python, server.py]   # leave out = the job's, which tells by COTENANT_ROLE what it is
server_cpu_cores: 2                   # of each server; leave out = none are kept for it
server_host_memory: 4GiB              # of each server
straggler_ratio: 2                    # a rank that takes twice as long as the others is replaced
straggler_window: 60s                 # when it did so throughout this time
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping

from cotenant.client_errors import InputError
from cotenant.job_file_queue import read_gpu_range
from cotenant.quantities import parse_bytes, parse_duration_ms
from cotenant.v1 import scheduling_pb2

Reader = Callable[[scheduling_pb2.JobSpec, object], None]


def check_replicas(spec: scheduling_pb2.JobSpec) -> None:
    """Checks that what a spec says of parameter servers is about some.

    Raises:
        InputError: There are none, or no ranks that they could serve.
    """
    if spec.HasField("servers") and not spec.servers.count:
        raise InputError(
            "what servers run or need is stated, and not how many there are", remedy="add --servers N (servers: N)"
        )
    if spec.HasField("servers") and not spec.ranks:
        raise InputError("parameter servers serve ranks", remedy="add --ranks N (ranks: N)")


def _read_servers(spec: scheduling_pb2.JobSpec, value: object) -> None:
    text = str(value).strip()
    counts = [int(text)] if text.isdecimal() and len(text) <= _DIGITS_MAX else _range_of(text)
    if isinstance(value, bool) or not counts or counts[0] < 1:  # in the message 0 stands for none
        raise _no_number(value)
    spec.servers.count = counts[0]
    spec.servers.allowed_counts[:] = counts if len(counts) > 1 else []


_DIGITS_MAX = 9


def _range_of(text: str) -> list[int]:
    try:
        return read_gpu_range(text)
    except InputError:
        return []


def _no_number(value: object) -> InputError:
    return InputError(
        f"{value!r} is not a number of parameter servers",
        remedy="write it like 1, or 1..4 for 1 to 4; leave it out for none",
    )


def _read_command(spec: scheduling_pb2.JobSpec, value: object) -> None:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:  # a quote that is not closed
        raise InputError(
            f"server_command: {error}", remedy="write it as for a shell, e.g. 'python server.py'"
        ) from error
    if not isinstance(words, list) or not words or not all(isinstance(word, str | int | float) for word in words):
        raise InputError(
            "server_command must be words", remedy="e.g. [python, server.py], or --server-command 'python server.py'"
        )
    spec.servers.command[:] = [str(word) for word in words]


def _read_cpu_cores(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.servers.cpu_cores = _number("server_cpu_cores", value, least=0.0)


def _read_ratio(spec: scheduling_pb2.JobSpec, value: object) -> None:
    spec.straggler_ratio = _number("straggler_ratio", value, least=1.0)


def _number(key: str, value: object, *, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < math.inf:
        raise InputError(f"{key} must be a number above {least:g}, not {value!r}", remedy="leave it out for none")
    return float(value)


REPLICA_READERS: Mapping[str, Reader] = {
    "servers": _read_servers,
    "server_command": _read_command,
    "server_cpu_cores": _read_cpu_cores,
    "server_host_memory": lambda spec, value: setattr(spec.servers, "host_memory_bytes", parse_bytes(str(value))),
    "straggler_ratio": _read_ratio,
    "straggler_window": lambda spec, value: setattr(spec, "straggler_window_ms", parse_duration_ms(str(value))),
}

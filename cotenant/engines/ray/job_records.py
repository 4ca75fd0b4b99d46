"""What Ray's key-value store holds about a job: a record of its driver, one of the bridge, one of the job itself.

Each has one writer, so that no writer overwrites what another one has written meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

from cotenant.engines.ray.tables import RayTables

NAMESPACE: Final = "cotenant"
"""Of the keys, and of the named actors."""
JOB, ORDER, PROGRESS, GPU = "job/", "order/", "progress/", "gpu/"
METRICS_MAX: Final = 50

_Record = TypeVar("_Record", "JobRecord", "OrderRecord", "ProgressRecord", "GpuRecord")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What its driver says of a job.

    Attributes:
        tag: The line that begins with the word cotenant.
        beat: Grows while the driver lives.
        node_hex: Node on which Ray runs it, as Ray calls it; empty = it does not run, or has not said where.
        gpu_index: Its GPU there, as CUDA_VISIBLE_DEVICES names it.
    """

    tag: str = ""
    tenant: str = ""
    submitted_at_ms: int = 0
    beat: int = 0
    node_hex: str = ""
    gpu_index: str = ""
    started_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRecord:
    """What was decided about a job.

    Attributes:
        gpu_id: Its GPU; empty = it waits.
        group_id: Placement group of that GPU.
        slots: Hundredths of the GPU; 0 = the whole GPU.
        is_released: It may start.
        ending: stop or requeue: it is to end, and for requeue to wait again.
        grace_s: Then it is killed after so long.
    """

    note: str = ""
    gpu_id: str = ""
    group_id: str = ""
    slots: int = 0
    is_released: bool = False
    ending: str = ""
    grace_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRecord:
    """What a job has reported last.

    Attributes:
        steps: Optimizer steps, counted by the job.
        at_ms: When it reported them, by the clock of its machine.
        metrics: Further numbers of the same report.
    """

    steps: int = 0
    at_ms: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """Which GPU a placement group of ours stands on.

    Attributes:
        node_id: Name of the node, unique in the cluster.
        gpu_index: As CUDA_VISIBLE_DEVICES names it there.
    """

    node_hex: str = ""
    node_id: str = ""
    gpu_index: str = ""


def encode(record: JobRecord | OrderRecord | ProgressRecord | GpuRecord) -> bytes:
    """Return a record as it is stored."""
    return json.dumps(asdict(record)).encode()


def decode(kind: type[_Record], data: bytes | None) -> _Record:
    """Return a stored record; what is absent or of another type has its default."""
    try:
        document = json.loads(data) if data else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        return kind()
    defaults = asdict(kind())
    known = {one.name: document[one.name] for one in fields(kind) if one.name in document}
    return kind(**{name: value for name, value in known.items() if type(value) is type(defaults[name])})


def read_records(tables: RayTables, prefix: str, kind: type[_Record]) -> dict[str, _Record]:
    """Return all records of a kind, by what follows the prefix in their keys."""
    return {name: decode(kind, data) for name, data in tables.read_all(prefix).items()}


def forget_job(tables: RayTables, job_id: str) -> None:
    """Remove everything about a job; the driver's record last, so that what is left half done is found again."""
    for prefix in (PROGRESS, ORDER, JOB):
        tables.remove(prefix + job_id)

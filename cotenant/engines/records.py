"""What an engine says of its cluster, in words that all engines share. Nothing of it is kept between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cotenant.device_sharing import DeviceSharing
from cotenant.engines.job_tag import JobTag


class EnginePhase(StrEnum):
    """Where a job is, as far as placing it is concerned."""

    HELD = "held"
    """It waits for us: it asked for it and has no GPU yet."""
    INTERRUPTED = "interrupted"
    """It is held and has the GPU that we gave it: the bridge that placed it ended before releasing it."""
    WAITING = "waiting"
    """It waits in the engine's own queue."""
    PLACED = "placed"
    """It was placed by us and has not started yet: it was released, or its user or an operator holds it."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGpu:
    """One GPU.

    Attributes:
        gpu_id: Unique in the cluster.
        device: Type as people name it; memory belongs to it.
        slots: In how many parts the engine can hand it out; 0 = only as a whole.
        sharing: How jobs share it, as far as the engine says that.
        is_interchangeable: The engine itself chooses among those of its node and type.
    """

    gpu_id: str
    device: str
    memory_bytes: int
    slots: int = 0
    sharing: DeviceSharing = DeviceSharing.UNSTATED
    is_interchangeable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNode:
    """One machine.

    Attributes:
        cpu_cores: What jobs with GPUs may use: what others use is taken off.
        is_usable: It takes jobs now.
        queues: Whose jobs it takes.
    """

    node_id: str
    cpu_cores: float = 0.0
    host_memory_bytes: int = 0
    is_usable: bool = True
    queues: tuple[str, ...] = ()
    gpus: tuple[EngineGpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """One job that waits for GPUs or holds some.

    Attributes:
        tag: What its user told us of it; None = it is none of our business.
        held_slots: Parts of each GPU that it holds or was given, by GPU id; 0 = the whole GPU.
        note: What we wrote into it last.
        queues: Any of them may run it.
        allowed_node_ids: Empty = all.
        allowed_devices: Types of GPUs as `EngineGpu.device` has them; empty = all.
        steps_done: The optimizer step at which its present attempt says it is; 0 = it says nothing.
        not_before_ms: It asks not to start before this time; 0 = at any.
        array_id: Of the array whose task it is; empty = of none.
        array_running_max: So many tasks of the array may run at once; 0 = any number.
        obstacle: Why it is not placed, whatever GPUs are free; empty = nothing is in the way.
        takes_notes: A note to it would not be one to others.
    """

    job_id: str
    phase: EnginePhase
    tag: JobTag | None = None
    gpus: int = 1
    held_slots: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    tenant: str = ""
    queues: tuple[str, ...] = ()
    allowed_node_ids: tuple[str, ...] = ()
    excluded_node_ids: tuple[str, ...] = ()
    allowed_devices: tuple[str, ...] = ()
    cpu_cores: float = 0.0
    host_memory_bytes: int = 0
    submitted_at_ms: int = 0
    started_at_ms: int = 0
    steps_done: int = 0
    not_before_ms: int = 0
    array_id: str = ""
    array_running_max: int = 0
    obstacle: str = ""
    takes_notes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One reading.

    Attributes:
        warnings: What could not be read, and what follows from that.
    """

    nodes: tuple[EngineNode, ...] = ()
    jobs: tuple[EngineJob, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> dict[str, EngineGpu]:
        """All GPUs by id."""
        return {gpu.gpu_id: gpu for node in self.nodes for gpu in node.gpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job shall run.

    Attributes:
        slots: Parts of the GPU that it gets; 0 = the whole GPU.
        note: Written into the job with it.
        memory_bytes: Device memory reserved for it, for engines that can enforce a limit; 0 = all of the GPU's.
    """

    job_id: str
    node_id: str
    gpu_id: str
    slots: int
    note: str
    memory_bytes: int = 0

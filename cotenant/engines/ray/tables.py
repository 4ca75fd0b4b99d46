"""The few things that cotenant reads from Ray and writes into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A living node.

    Attributes:
        node_hex: As Ray calls it.
        memory_bytes: Of the host, as far as Ray hands it out.
    """

    node_hex: str
    cpu_cores: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGpu:
    """A GPU for which Ray has made a placement group of ours.

    Attributes:
        group_id: The placement group; its only bundle is this GPU.
        node_id: Name of the node, unique in the cluster.
        gpu_index: As CUDA_VISIBLE_DEVICES names it on that node.
    """

    group_id: str
    node_hex: str
    node_id: str
    gpu_index: str

    @property
    def gpu_id(self) -> str:
        """Its name in the cluster."""
        return f"{self.node_id}/{self.gpu_index}"


class RayTables(Protocol):
    """A Ray cluster, as the bridge sees it. Every call raises `EngineUnreachableError` where Ray does not answer."""

    def read_all(self, prefix: str) -> dict[str, bytes]:
        """Return the values of all keys that begin so, by the rest of the key."""

    def read(self, key: str) -> bytes | None:
        """Return one value; None = there is none."""

    def write(self, key: str, value: bytes) -> None:
        """Set a value."""

    def remove(self, key: str) -> None:
        """Remove a key; one that is not there is no error."""

    def living_jobs(self) -> frozenset[str]:
        """Return the names of our actors that live, or wait in Ray itself."""

    def nodes(self) -> list[RayNode]:
        """Return the living nodes."""

    def claimed_gpus(self) -> list[ClaimedGpu]:
        """Return the GPUs that Ray has given us, as far as they are identified."""

"""Ground truth of jobs: step times, memory, utilization, and how much they slow each other down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_service.core.predictions.ratio_sums import rounded_sum

EVERY_DEVICE = ""
"""Stands for a device type of its own in tables that do not distinguish device types."""

DOES_NOT_FIT = 1_000.0
"""Slowdown ratio of pairs that were seen to run out of memory when co-located."""

OWN_KEY_MARK = "#"
"""Separates the kind from the job in a key that a single job has for itself."""


class ServerSteps(Protocol):
    """Step times of a training with parameter servers; a frozen value (`benchmarks.papers` has the Optimus paper's)."""

    def paired_step_ms(self, workers_by_node: Sequence[int]) -> float:
        """Return the time of one step in ms with so many workers on each node and one server next to every worker."""


class ColocationLaw(Protocol):
    """What three and more co-located jobs do to each other; a frozen value (`benchmarks.papers` has Horus')."""

    def slowdown_ratio(self, utilization_ratio: float) -> float:
        """Return the slowdown of each of the jobs whose utilizations have this sum, 1 = 100 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job on one device type.

    Attributes:
        step_ms_by_gpus: Time of one optimizer step alone, the whole batch at once, by number of GPUs; on as few nodes
            as possible.
        spread_step_ms_by_gpus: The same on more nodes than needed; absent = no difference.
        servers: Its parameter servers, one next to every worker; then steps take what the workers' nodes make of them,
            and the two tables hold only what is predicted. None = it has none.
        batch: Samples per optimizer step over all GPUs.
        fixed_step_ratio: Share of a step's time that every further pass of gradient accumulation costs again (alpha of
            the SJF-BSBF paper's Eq. 3 over the whole step), 0 to 1.
        memory_bytes: Device memory on each GPU with the whole batch at once, on the fewest GPUs.
        fixed_memory_ratio: Share of it that does not shrink with the batch, 0 to 1.
        utilization_ratio: Share of the time that a GPU computes, 0 to 1.
    """

    step_ms_by_gpus: Mapping[int, float]
    spread_step_ms_by_gpus: Mapping[int, float] = field(default_factory=dict)
    servers: ServerSteps | None = None
    batch: int = 1
    fixed_step_ratio: float = 0.1
    memory_bytes: int = 0
    fixed_memory_ratio: float = 0.5
    utilization_ratio: float = 0.6

    def step_ms(self, *, gpus: int, passes: int = 1, is_spread: bool = False) -> float:
        """Return the time of one optimizer step alone in ms.

        Raises:
            KeyError: Nothing is known of this number of GPUs.
        """
        whole = self.spread_step_ms_by_gpus.get(gpus) if is_spread else None
        whole = self.step_ms_by_gpus[gpus] if whole is None else whole
        return whole * (1.0 + self.fixed_step_ratio * (passes - 1))

    def placed_step_ms(self, gpus_by_node: Sequence[int], *, passes: int = 1, is_spread: bool = False) -> float:
        """Return the time of one optimizer step alone in ms, on so many GPUs of each of its nodes.

        Raises:
            KeyError: Nothing is known of this number of GPUs.
        """
        if self.servers is None:
            return self.step_ms(gpus=sum(gpus_by_node), passes=passes, is_spread=is_spread)
        return self.servers.paired_step_ms(gpus_by_node) * (1.0 + self.fixed_step_ratio * (passes - 1))

    def memory_at_bytes(self, micro_batch_size: int) -> int:
        """Return the memory on a GPU in bytes when it takes so many samples per pass."""
        samples = -(-self.batch // min(self.step_ms_by_gpus))
        share = min(micro_batch_size / samples, 1.0)
        return int(self.memory_bytes * (self.fixed_memory_ratio + (1.0 - self.fixed_memory_ratio) * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundTruth:
    """Everything that is true of the jobs of a trace.

    Attributes:
        kinds: By key and device type; `EVERY_DEVICE` holds where a device type is not listed.
        slowdowns: Measured slowdown ratios by victim key, other key and device type.
        slowdown_ratio: That of pairs that were not measured.
        predicts_unmeasured: Whether that ratio may be predicted too; otherwise unmeasured pairs are unknown.
        speeds: How much faster than the tables a device type is; absent = 1.
        multiway_law: What three and more jobs on one GPU do to each other; None = the sum of what each pair does.
        straggling: How many times longer everything takes on a GPU, by its id; absent = 1.
    """

    kinds: Mapping[tuple[str, str], Kind]
    slowdowns: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    slowdown_ratio: float = 0.5
    predicts_unmeasured: bool = True
    speeds: Mapping[str, float] = field(default_factory=dict)
    multiway_law: ColocationLaw | None = None
    straggling: Mapping[str, float] = field(default_factory=dict)

    def kind(self, key: str, device: str) -> Kind | None:
        """Return the ground truth of a key on a device type, or None where it cannot run there."""
        name = kind_name(key)
        return self.kinds.get((name, device)) or self.kinds.get((name, EVERY_DEVICE))

    def speed(self, device: str) -> float:
        """Return how much faster than the tables a device type is."""
        return self.speeds.get(device, 1.0)

    def measured_slowdown_ratio(self, victim_key: str, other_key: str, device: str) -> float | None:
        """Return how much the other key slows the victim down, or None where it is unmeasured."""
        victim, other = kind_name(victim_key), kind_name(other_key)
        found = self.slowdowns.get((victim, other, device))
        return self.slowdowns.get((victim, other, EVERY_DEVICE)) if found is None else found

    def true_slowdown_ratio(self, victim_key: str, other_key: str, device: str) -> float:
        """Return how much the other key slows the victim down."""
        measured = self.measured_slowdown_ratio(victim_key, other_key, device)
        return self.slowdown_ratio if measured is None else measured

    def colocated_slowdown_ratio(self, victim_key: str, other_keys: Sequence[str], device: str) -> float:
        """Return how much all others on its GPU slow the victim down together; no job speeds it up."""
        if self.multiway_law is not None and len(other_keys) > 1:
            kinds = (self.kind(key, device) for key in (victim_key, *other_keys))
            return self.multiway_law.slowdown_ratio(
                rounded_sum(kind.utilization_ratio for kind in kinds if kind is not None)
            )
        return sum(max(self.true_slowdown_ratio(victim_key, other, device), 0.0) for other in other_keys)


def kind_name(key: str) -> str:
    """Return the kind of job behind a key."""
    return key.partition(OWN_KEY_MARK)[0]

"""An attempt across nodes as the engine remembers it: which of its parts began, which have ended, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartEndKind(StrEnum):
    """How one part of a gang ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnd:
    """What a node said of the end of its part; what it did not say is empty.

    Attributes:
        code: Why it refused the launch.
        is_final: No other try would do.
    """

    kind: PartEndKind
    exit_class: str = ""
    exit_code: int = 0
    memory_available_bytes: int = 0
    code: str = ""
    detail: str = ""
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GangAttempt:
    """The parts of an attempt, one per node, named by their nodes; its GPUs stay taken until all have ended.

    Attributes:
        rendezvous_port: Where the ranks meet, as the node of rank 0 has chosen; 0 = it has not said so yet, and no
            other part was launched.
        resumed_fence: Of the checkpoint that the node of rank 0 goes on from and others fetch from there; 0 = none, or
            all see it.
        started_node_ids: Parts that were confirmed to run.
        paused_node_ids: Parts that stand still by order.
        ended_node_ids: Parts that have ended, or were never launched and never will be.
        end: The end that speaks for all so far; None = no part has ended.
        steps_done: The most that an ended part told of.
        checkpoint_step: Newest believed checkpoint that an ended part told of; -1 = none.
        memory_peak_bytes: Largest peak that an ended part told of.
        is_prepared: All parts were started early, and those that are not launched yet wait for it.
    """

    rendezvous_port: int = 0
    resumed_fence: int = 0
    started_node_ids: tuple[str, ...] = ()
    paused_node_ids: tuple[str, ...] = ()
    ended_node_ids: tuple[str, ...] = ()
    end: PartEnd | None = None
    steps_done: int = 0
    checkpoint_step: int = -1
    memory_peak_bytes: int = 0
    is_prepared: bool = False

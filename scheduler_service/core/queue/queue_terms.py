"""What a user asks of the queue: class, order and limits of a job; no policy looks at it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

PRIORITIES: Mapping[str, int] = MappingProxyType({"low": -100, "normal": 0, "high": 100})
"""The classes that have names; every whole number between the bounds is a class."""
PRIORITY_MAX = 1_000
"""Classes are -`PRIORITY_MAX` to `PRIORITY_MAX`."""
PARENTS_MAX = 1_000
"""Jobs that one job may wait for."""
DEVICES_MAX = 32
"""Device types that one job may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTerms:
    """What a job asks of the queue; the defaults ask for nothing.

    Attributes:
        priority: Higher classes are served first, -`PRIORITY_MAX` to `PRIORITY_MAX`.
        is_held: It waits until its owner releases it.
        after_job_ids: It starts when these have finished.
        after_any: It starts when these have ended in any way.
        array_id: The array that it is a task of; empty = of none.
        array_index: Its index in the array.
        array_running_max: Tasks of the array that may run at once; 0 = any number.
        time_limit_ms: How long it may run in sum, pauses left out; 0 = as long as it likes.
        deadline_at_ms: When its owner wants it to have ended; 0 = never. No policy looks at it.
        restarts_stalled: It is restarted where its progress stalls.
        devices: Device types that it may run on, as `is_device_named` reads them; empty = any.
        retry_of: The job of which it is the repetition; empty = of none.
        across_nodes: Its GPUs may be on several nodes, which share the storage of its checkpoints or send them.
    """

    priority: int = 0
    is_held: bool = False
    after_job_ids: tuple[str, ...] = ()
    after_any: bool = False
    array_id: str = ""
    array_index: int = 0
    array_running_max: int = 0
    time_limit_ms: int = 0
    deadline_at_ms: int = 0
    restarts_stalled: bool = False
    devices: tuple[str, ...] = ()
    retry_of: str = ""
    across_nodes: bool = False


NO_TERMS = QueueTerms()


@lru_cache(maxsize=4_096)
def is_device_named(devices: tuple[str, ...], device: str) -> bool:
    """Say whether a device type is among those that a job names; no name means every type.

    A name fits a type that has its words in this order: "a100" fits "NVIDIA A100-SXM4-40GB", "l4" no "NVIDIA L40S".
    """
    words = _words(device)
    return not devices or any(_has_words(words, _words(name)) for name in devices)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def _has_words(words: list[str], wanted: list[str]) -> bool:
    left = iter(words)
    return bool(wanted) and all(word in left for word in wanted)

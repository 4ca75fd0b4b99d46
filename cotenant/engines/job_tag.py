"""What the user of another engine tells cotenant of a job, in one line: `cotenant memory=8GiB utilization=0.4`.

The line begins with the word `cotenant`; what follows are pairs of a name and a value. A pair that is wrong is left out
and complained about; the job is decided on with what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cotenant.errors import InputError
from cotenant.nearest_name import did_you_mean
from cotenant.quantities import parse_bytes

FIRST_WORD: Final = "cotenant"
TAG_CHARACTERS_MAX: Final = 1_000
_SHOWN_CHARACTERS_MAX: Final = 40
_GRAPH = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_SHARES: Final = ("never", "safe", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTag:
    """What a user states; 0, None and empty = not stated.

    Attributes:
        graph_sha256: Graph that the predictor has.
        job_key: Equal jobs have equal keys.
        global_batch_size: Samples per optimizer step.
        steps_total: Optimizer steps of the whole job.
        memory_bytes: Device memory.
        utilization_ratio: Share of its time alone in which it keeps the GPU busy.
        slowdown_ratio: How much longer a step takes next to any other job; 0.2 = 20 % longer.
        step_ms: Time of one step alone.
        share: never, safe or any.
        max_slowdown_ratio: What it accepts while sharing.
        complaints: What is wrong with the line.
    """

    graph_sha256: str = ""
    job_key: str = ""
    global_batch_size: int = 0
    steps_total: int = 0
    memory_bytes: int = 0
    utilization_ratio: float | None = None
    slowdown_ratio: float | None = None
    step_ms: float = 0.0
    share: str = "safe"
    max_slowdown_ratio: float = 0.0
    complaints: tuple[str, ...] = ()


def read_tag(line: str) -> JobTag | None:
    """Read a line; None = it is not for us."""
    words = line[:TAG_CHARACTERS_MAX].split()
    if not words or words[0] != FIRST_WORD:
        return None
    found: dict[str, Any] = {}
    complaints = ["the line is cut after 1,000 characters"] if len(line) > TAG_CHARACTERS_MAX else []
    for word in words[1:]:
        name, _, text = word.partition("=")
        entry = _PAIRS.get(name)
        if entry is None:
            complaints.append(f"{name[:_SHOWN_CHARACTERS_MAX]!r} is unknown: {did_you_mean(name, [*_PAIRS])}")
            continue
        field, read, form = entry
        try:
            found[field] = read(text)
        except (ValueError, InputError):
            complaints.append(f"{name}={text[:_SHOWN_CHARACTERS_MAX]} is not {form}")
    return JobTag(**found, complaints=tuple(complaints))


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _count(most: int) -> Callable[[str], int]:
    return lambda text: int(_number(1, most)(str(int(text))))


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError
        return text

    return read


_PAIRS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = MappingProxyType(
    {
        "graph": ("graph_sha256", _matching(_GRAPH), "a sha256 of 64 hexadecimal digits"),
        "key": ("job_key", _matching(_KEY), "1 to 128 letters, digits or . _ : / -"),
        "batch": ("global_batch_size", _count(1_000_000), "a count from 1 to 1,000,000"),
        "steps": ("steps_total", _count(10**12), "a count from 1"),
        "memory": ("memory_bytes", parse_bytes, "a size such as 8GiB"),
        "utilization": ("utilization_ratio", _number(0, 1), "a ratio from 0 to 1"),
        "slowdown": ("slowdown_ratio", _number(0, 1_000_000), "a ratio from 0, 0.2 = 20 % longer steps"),
        "step_ms": ("step_ms", _number(1e-6, 1e12), "a number of milliseconds above 0"),
        "share": ("share", _matching(re.compile("|".join(_SHARES))), "never, safe or any"),
        "max_slowdown": ("max_slowdown_ratio", _number(0, 10), "a ratio from 0 to 10"),
    }
)

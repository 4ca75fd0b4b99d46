"""The keys of a job file that are about the queue.

priority: high                  # low | normal | high, or -1000 to 1000
hold: false                     # true = it waits until it is released
after: [job-3, array-8]         # it starts when these have finished
after_any: false                # true = when these have ended in any way
time_limit: 2h                  # then it is stopped with a checkpoint
deadline: 2030-01-31T08:00Z     # or +8h; you are told when it cannot be met
on_stall: none                  # none | restart
devices: [a100, l4]             # by words of their names
gpus: 2..4                      # as many as an elastic policy likes, 2 at the start
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from cotenant import system_clock
from cotenant.client_errors import InputError
from cotenant.quantities import parse_duration_ms
from cotenant.v1 import scheduling_pb2

PRIORITIES: Mapping[str, int] = {"low": -100, "normal": 0, "high": 100}
PRIORITY_MAX = 1_000
_RANGE = re.compile(r"\s*([0-9]{1,4})\s*\.\.\s*([0-9]{1,4})\s*")
_RANGE_WIDTH_MAX = 64

Reader = Callable[[scheduling_pb2.JobSpec, object], None]


def read_priority(value: object) -> int:
    """Reads a class: its name or its number.

    Raises:
        InputError: Neither.
    """
    text = str(value).strip().lower()
    if text in PRIORITIES:
        return PRIORITIES[text]
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text) and abs(int(text)) <= PRIORITY_MAX:
        return int(text)
    raise InputError(
        f"{value!r} is not a priority", remedy=f"low, normal, high, or a number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
    )


def read_gpu_range(text: str) -> list[int]:
    """Reads numbers of GPUs such as 2..4.

    Raises:
        InputError: Not two numbers, or too many between them.
    """
    match = _RANGE.fullmatch(text)
    least, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= least <= most or most - least >= _RANGE_WIDTH_MAX:
        raise InputError(f"{text!r} is not a number of GPUs", remedy="write it like 2, or 2..4 for 2 to 4")
    return list(range(least, most + 1))


def read_deadline_ms(text: str, now_ms: int) -> int:
    """Reads an instant: ISO 8601, in UTC unless it says otherwise, or + and a duration from now.

    Raises:
        InputError: Neither, or an instant in the past.
    """
    remedy = "write it like 2030-01-31T08:00Z, or +8h for 8 hours from now"
    if text.strip().startswith("+"):
        return now_ms + parse_duration_ms(text.strip()[1:])
    try:
        instant = datetime.fromisoformat(text.strip())
        at_ms = round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{text!r} is not an instant", remedy=remedy) from error
    if at_ms <= now_ms:
        raise InputError(f"{text!r} is in the past", remedy=remedy)
    return at_ms


def _names(key: str, value: object) -> list[str]:
    parts = value if isinstance(value, list) else str(value).split(",")
    names = [str(part).strip() for part in parts]
    if not all(names):
        raise InputError(f"{key} has an empty name", remedy=f"write {key} like one,two")
    return names


def read_truth(key: str, value: object) -> bool:
    """Reads true or false.

    Raises:
        InputError: Neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"{key} must be true or false, not {value!r}")
    return value


def _read_on_stall(spec: scheduling_pb2.JobSpec, value: object) -> None:
    if value not in ("none", "restart"):
        raise InputError(f"{value!r} is no rule for stalls", remedy="none or restart")
    spec.restarts_stalled = value == "restart"


def _deadline(spec: scheduling_pb2.JobSpec, value: object) -> None:
    # YAML reads an instant without quotes as one.
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    spec.deadline_at_ms = read_deadline_ms(text, system_clock.now_ms())


QUEUE_READERS: Mapping[str, Reader] = {
    "priority": lambda spec, value: setattr(spec, "priority", read_priority(value)),
    "hold": lambda spec, value: setattr(spec, "held", read_truth("hold", value)),
    "after": lambda spec, value: spec.after_job_ids.extend(_names("after", value)),
    "after_any": lambda spec, value: setattr(spec, "after_any", read_truth("after_any", value)),
    "time_limit": lambda spec, value: setattr(spec, "time_limit_ms", parse_duration_ms(str(value))),
    "deadline": _deadline,
    "on_stall": _read_on_stall,
    "devices": lambda spec, value: spec.allowed_devices.extend(_names("devices", value)),
}

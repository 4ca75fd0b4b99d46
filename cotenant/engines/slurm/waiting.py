"""Why a held job of Slurm is not to be placed now, or not at all, and which tasks a job array still has.

Slurm itself does not look at the dependencies of a job that is held, so that they are looked up in its table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from cotenant.engines.slurm.values import number_of, text_of, words_of

TASKS_MAX: Final = 500
"""Of an array that are looked at; a round decides about no more, and the others come once these have started."""
HELD_BY_OPERATOR: Final = "JobHeldAdmin"
_ENDED: Final = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "PREEMPTED",
    }
)
_CONDITION = re.compile(r"([a-z]+):([0-9]+)(?:_([0-9]+|\*))?[^,?]*")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")


class JobsByName:
    """The jobs of a table as dependencies name them.

    Args:
        rows: All that squeue writes; ended jobs stay in it for some minutes.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._all = rows

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str], list[Mapping[str, Any]]]:
        """By number and task; without a task all of the array."""
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for row in self._all:
            array = str(number_of(row, "array_job_id"))
            for name in {str(number_of(row, "job_id")), array} - {"0"}:
                found[name, ""].append(row)
            for task in tasks_of(row):
                found[array, task].append(row)
        return found

    @cached_property
    def _of_name(self) -> Mapping[tuple[str, str], list[Mapping[str, Any]]]:
        """By owner and name."""
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
        for row in self._all:
            found[_owner_and_name(row)].append(row)
        return found

    def awaits(self, row: Mapping[str, Any]) -> bool:
        """Say whether a job depends on what has not happened yet; whether it happened well is for Slurm to say."""
        text = text_of(row, "dependency")
        if not text:
            return False
        met = [self._is_over(part, row) for part in re.split("[,?]", text)]
        return not (any(met) if "?" in text else all(met))

    def _is_over(self, condition: str, row: Mapping[str, Any]) -> bool:
        if condition.startswith("singleton"):
            mine = number_of(row, "job_id")
            others = [one for one in self._of_name[_owner_and_name(row)] if number_of(one, "job_id") < mine]
            return all(map(_has_ended, others))
        match = _CONDITION.match(condition)
        if match is None:
            return True
        kind, name, task = match.groups(default="")
        named = self._rows.get((name, "" if task == "*" else task), [])
        # Of `after` the time behind the start is for Slurm to wait.
        return all(_has_begun(one) if kind == "after" else _has_ended(one) for one in named)


def obstacle_of(job_id: str, row: Mapping[str, Any], jobs: JobsByName) -> str:
    """Return why a held job that asks for us is not placed now; empty = nothing is in the way.

    Args:
        job_id: As orders name it.
        row: What squeue writes of it.
        jobs: All that squeue writes.
    """
    if text_of(row, "state_reason") == HELD_BY_OPERATOR:
        return f"an operator holds it; scontrol uhold {job_id} gives it back to cotenant"
    if number_of(row, "het_job_id"):
        return (
            f"parts of a heterogeneous job are not placed; scontrol release {job_id} leaves it to Slurm, without a GPU"
        )
    if number_of(row, "node_count") > 1:
        return f"jobs of several nodes are not placed; scontrol release {job_id} leaves it to Slurm, without a GPU"
    if "NONE" in words_of(row, "shared") or "TRUE" in words_of(row, "exclusive"):
        return f"--exclusive takes all GPUs of a node; submit it without, or with --gres, or scontrol release {job_id}"
    return "what it depends on has not happened yet" if jobs.awaits(row) else ""


def tasks_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the task of an array that a row is about, or all those that wait together in it; none = no array's."""
    if not number_of(row, "array_job_id"):
        return ()
    text = text_of(row, "array_task_string")
    if not text:
        return (str(number_of(row, "array_task_id")),)
    tasks: list[str] = []
    # Behind %: how many may run at once. A long list is cut off, and ends with dots.
    for match in map(_RANGE.fullmatch, text.partition("%")[0].strip("[]").split(",")):
        if match is not None:
            first, last, step = match.groups()
            numbers = range(int(first), int(last or first) + 1, max(int(step or 1), 1))
            tasks += [str(number) for number in numbers[:TASKS_MAX]]
    return tuple(tasks[:TASKS_MAX])


def job_names(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names by which orders reach the jobs of a row: 12, or 12_0 and 12_3 for tasks of an array."""
    tasks = tasks_of(row)
    array = number_of(row, "array_job_id")
    yield from (f"{array}_{task}" for task in tasks) if tasks else (str(number_of(row, "job_id")),)


def _owner_and_name(row: Mapping[str, Any]) -> tuple[str, str]:
    return text_of(row, "user_name") or str(number_of(row, "user_id")), text_of(row, "name")


def _has_ended(row: Mapping[str, Any]) -> bool:
    return bool(words_of(row, "job_state") & _ENDED)


def _has_begun(row: Mapping[str, Any]) -> bool:
    return "PENDING" not in words_of(row, "job_state")

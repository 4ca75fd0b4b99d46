"""Past jobs from Ray's state: its tasks and actors that had whole GPUs.

ray list tasks --detail --format json --limit 10000 > tasks.json

Ray tells the times of tasks only: an actor counts from its creation until its last task has ended.

Source: ray 2.60, `ray/util/state/common.py` (TaskState), and what a node of it wrote.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.accounting import Accounting, PastJob
from cotenant_simulator.readers.json_documents import Row, number_of, read_document, row_of, text_of

ORIGIN: Final = "ray list tasks --detail --format json --limit 10000"
ROWS_PER_ANSWER_MAX: Final = 10_000
"""So many tasks Ray tells at most."""
_CREATION: Final = "ACTOR_CREATION_TASK"
_ACTOR_TASK: Final = "ACTOR_TASK"
# In a placement group a demand has the group's id in its name, and with the place of its bundle once more.
_OF_GROUP: Final = re.compile(r"GPU_group_[0-9a-f]+")
_GPUS_MAX: Final = 100_000


def read_ray_tasks(path: Path) -> Accounting:
    """Read a list of tasks.

    Raises:
        TraceError: It is none, or holds no ended task or actor with whole GPUs.
    """
    document = read_document(path, ORIGIN)
    rows = [row_of(row) for row in document] if isinstance(document, list) else []
    skipped: Counter[str] = Counter()
    jobs = list(_jobs(rows, skipped))
    if not jobs:
        told = "; ".join(f"{reason}: {count:,}" for reason, count in skipped.items()) or "no list of tasks"
        raise TraceError(path, f"holds no ended task or actor with whole GPUs ({told}); write it with {ORIGIN}")
    jobs.sort(key=lambda job: (job.submitted_at_ms, job.job_id))
    doubts = []
    if any(text_of(row, "type") == _CREATION for row in rows):
        doubts.append("actors count until their last task ended: how long they kept their GPUs idle is not told")
    if len(rows) >= ROWS_PER_ANSWER_MAX:
        doubts.append(
            f"Ray tells {ROWS_PER_ANSWER_MAX:,} tasks at most: older ones, or parts of actors, may be missing"
        )
    return Accounting(jobs=tuple(jobs), skipped=dict(skipped), doubts=tuple(doubts))


def _jobs(rows: Iterable[Row], skipped: Counter[str]) -> Iterator[PastJob]:
    of_actors: dict[str, list[Row]] = defaultdict(list)
    seen: set[tuple[str, object]] = set()
    for row in rows:
        kind, task = text_of(row, "type"), (text_of(row, "task_id"), row.get("attempt_number"))
        if not task[0] or not kind:
            skipped["no task's id and type"] += 1
        elif task in seen:
            skipped["told twice"] += 1
        elif kind in (_CREATION, _ACTOR_TASK) and text_of(row, "actor_id"):
            of_actors[text_of(row, "actor_id")].append(row)
        else:
            yield from _told(_job(row, [row], text_of(row, "task_id")), skipped)
        seen.add(task)
    for actor_id, members in of_actors.items():
        created = next((row for row in members if text_of(row, "type") == _CREATION), None)
        if created is None:
            skipped["tasks of actors whose creation is not told"] += len(members)
        else:
            yield from _told(_job(created, members, actor_id), skipped)


def _told(found: PastJob | str, skipped: Counter[str]) -> Iterator[PastJob]:
    if isinstance(found, PastJob):
        yield found
    else:
        skipped[found] += 1


def _job(first: Row, members: list[Row], job_id: str) -> PastJob | str:
    """Return a task, or an actor with its tasks; a text says why it is none with whole GPUs."""
    gpus = _gpus(row_of(first.get("required_resources")))
    if not gpus:
        return "no GPUs"
    if gpus != int(gpus):
        return "a part of a GPU, shared already"
    created, began = (_milliseconds(first.get(name)) for name in ("creation_time_ms", "start_time_ms"))
    ends = [_milliseconds(row.get("end_time_ms")) for row in members]
    if began is None:
        return "not begun"
    if None in ends:
        return "not ended"
    ended = max(end for end in ends if end is not None)
    submitted = began if created is None else created
    if not submitted <= began < ended:
        return "no time with GPUs"
    return PastJob(
        job_id=job_id,
        name=text_of(first, "func_or_class_name", "name"),
        user=text_of(first, "job_id"),
        gpus=int(gpus),
        submitted_at_ms=submitted,
        started_at_ms=began,
        ended_at_ms=ended,
    )


def _gpus(resources: Row) -> float:
    amounts = {name: number_of(amount) or 0.0 for name, amount in resources.items()}
    asked = amounts.get("GPU") or max((amounts[name] for name in amounts if _OF_GROUP.fullmatch(name)), default=0.0)
    return min(max(asked, 0.0), _GPUS_MAX)


def _milliseconds(value: object) -> int | None:
    """Return an instant, which Ray tells in ms or, for people, as local time."""
    number = number_of(value)
    if number is not None:
        return int(number) if number > 0 else None
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1_000) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None

"""Rules of what requests ask of the queue."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.array_terms import INDEX_MAX, TASKS_MAX, VALUE_NAME
from cotenant.names import NAME_PATTERN
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.queue.queue_terms import DEVICES_MAX, PARENTS_MAX, PRIORITY_MAX
from scheduler_service.errors import FieldViolation

VALUES_MAX = 64
VALUE_CHARACTERS_MAX = 4_096
TIME_MS_MAX = 10 * 366 * 24 * 3_600_000
INSTANT_MS_MAX = 2**53
DEVICE_CHARACTERS_MAX = 100
RESERVED_VALUES = frozenset({"index", "sub_batch", "accumulation_steps", "checkpoint_dir", "resume"})
"""Placeholders that are replaced by others than the values of a task."""
_OF_SCHEDULER = ("array_id", "retry_of")


def terms_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    """Check what a spec asks of the queue."""
    for name, value, least, most in (
        ("priority", spec.priority, -PRIORITY_MAX, PRIORITY_MAX),
        ("time_limit_ms", spec.time_limit_ms, 0, TIME_MS_MAX),
        ("migration_cost_ms", spec.migration_cost_ms, 0, TIME_MS_MAX),
        ("deadline_at_ms", spec.deadline_at_ms, 0, INSTANT_MS_MAX),
        ("array_running_max", spec.array_running_max, 0, TASKS_MAX),
        ("array_index", spec.array_index, 0, INDEX_MAX),
    ):
        if not least <= value <= most:
            yield _violation(f"spec.{name}", f"must be from {least:,} to {most:,}, not {value:,}")
    if len(spec.after_job_ids) > PARENTS_MAX or not all(map(NAME_PATTERN.fullmatch, spec.after_job_ids)):
        yield _violation("spec.after_job_ids", f"must name at most {PARENTS_MAX:,} jobs or arrays, e.g. job-7")
    if len(spec.allowed_devices) > DEVICES_MAX or not all(map(is_device, spec.allowed_devices)):
        yield _violation("spec.allowed_devices", f"must be at most {DEVICES_MAX} types of devices, e.g. a100")


def is_device(name: str) -> bool:
    """Say whether this may be the name of a type of devices."""
    return len(name) <= DEVICE_CHARACTERS_MAX and any(one.isascii() and one.isalnum() for one in name)


def single_job_violations(spec: scheduling_pb2.JobSpec) -> Iterator[FieldViolation]:
    """Check that a submission leaves to the scheduler what the scheduler sets."""
    for name in _OF_SCHEDULER:
        if getattr(spec, name):
            yield _violation(f"spec.{name}", "is set by the scheduler; leave it out")


def array_violations(request: scheduling_pb2.SubmitArrayRequest) -> Iterator[FieldViolation]:
    """Check the tasks of an array; their spec is checked as any other."""
    tasks = request.tasks
    if not 1 <= len(tasks) <= TASKS_MAX:
        yield _violation("tasks", f"must be 1 to {TASKS_MAX:,} tasks, not {len(tasks):,}")
        return
    if any(not 0 <= task.index <= INDEX_MAX for task in tasks) or len({task.index for task in tasks}) != len(tasks):
        yield _violation("tasks.index", f"must be from 0 to {INDEX_MAX:,}, each once")
    if any(len(task.values) > VALUES_MAX for task in tasks):
        yield _violation("tasks.values", f"must have at most {VALUES_MAX} names")
    names = {name for task in tasks for name in task.values}
    wrong = sorted(name for name in names if not VALUE_NAME.fullmatch(name) or name in RESERVED_VALUES)
    if wrong:
        reserved = ", ".join(sorted(RESERVED_VALUES))
        yield _violation(
            "tasks.values", f"{wrong[0][:64]!r} must be a name of letters, digits and _, none of {reserved}"
        )
    if any(len(text) > VALUE_CHARACTERS_MAX or "\0" in text for task in tasks for text in task.values.values()):
        yield _violation("tasks.values", f"must have at most {VALUE_CHARACTERS_MAX:,} characters, no zero byte")


def alteration_violations(request: scheduling_pb2.AlterJobRequest) -> Iterator[FieldViolation]:
    """Check what a pending job is to ask for."""
    if request.HasField("priority") and not -PRIORITY_MAX <= request.priority <= PRIORITY_MAX:
        yield _violation("priority", f"must be from {-PRIORITY_MAX:,} to {PRIORITY_MAX:,}, not {request.priority:,}")
    if request.share not in resources_pb2.ShareMode.values():
        yield _violation("share", "must be one of SHARE_MODE_NEVER, SHARE_MODE_SAFE, SHARE_MODE_ANY")
    if request.HasField("max_slowdown_ratio") and not 0 <= request.max_slowdown_ratio <= 10:
        yield _violation("max_slowdown_ratio", f"must be from 0 to 10, not {request.max_slowdown_ratio:g}")
    if request.HasField("time_limit_ms") and not 0 <= request.time_limit_ms <= TIME_MS_MAX:
        yield _violation("time_limit_ms", f"must be from 0 to {TIME_MS_MAX:,}, not {request.time_limit_ms:,}")
    stated = any(request.HasField(name) for name in ("priority", "max_slowdown_ratio", "time_limit_ms"))
    if not stated and not request.share:
        yield _violation("priority", "nothing is to be altered; state a priority, share, slowdown or time limit")


def _violation(field: str, description: str) -> FieldViolation:
    return FieldViolation(field=field, description=description)

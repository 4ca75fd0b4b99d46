"""What a job asked of the queue, and what became of that, for tables and pages."""

from __future__ import annotations

from cotenant import quantities, system_clock
from cotenant.job_file_queue import PRIORITIES
from cotenant.v1 import scheduling_pb2

NAMED_PARENTS_MAX = 8
_REST_MS_MIN = 1_000
_NAMES = {number: name for name, number in PRIORITIES.items()}


def priority_name(priority: int) -> str:
    """Returns the name of a class, or its number where it has none."""
    return _NAMES.get(priority, str(priority))


def queue_notes(job: scheduling_pb2.Job, at_ms: int) -> list[str]:
    """Returns what should be known about a job at a glance: it stalls, it will miss its deadline or has missed it."""
    notes = []
    if job.stalled_since_ms:
        notes.append(f"stalled: no step for {quantities.format_duration(at_ms - job.stalled_since_ms)}")
    if job.HasField("deadline_missed_by_ms"):
        notes.append(_deadline_note(job, at_ms))
    return notes


def _deadline_note(job: scheduling_pb2.Job, at_ms: int) -> str:
    """A deadline that has passed cannot be met any more, whatever the job still needs."""
    missed = quantities.format_duration(job.deadline_missed_by_ms)
    passed_ms = at_ms - job.spec.deadline_at_ms
    if not job.spec.deadline_at_ms or passed_ms < 0:
        return f"will miss its deadline by {missed} at least"
    left_ms = job.deadline_missed_by_ms - passed_ms
    rest = f" and it needs {quantities.format_duration(left_ms)} more at least" if left_ms >= _REST_MS_MIN else ""
    return f"its deadline passed {quantities.format_duration(passed_ms)} ago{rest}"


def queue_lines(job: scheduling_pb2.Job, at_ms: int) -> list[tuple[str, str]]:
    """Returns labelled lines; those with nothing to say are empty."""
    spec = job.spec
    named = ", ".join(spec.after_job_ids[:NAMED_PARENTS_MAX])
    more = len(spec.after_job_ids) - NAMED_PARENTS_MAX
    parents = f"{named} and {more} more" if more > 0 else named
    limit = f" of {quantities.format_duration(spec.time_limit_ms)} allowed" if spec.time_limit_ms else ""
    return [
        ("class", priority_name(spec.priority) if spec.priority else ""),
        ("array", f"{spec.array_id}, index {spec.array_index}" + _at_once(spec) if spec.array_id else ""),
        ("retry of", spec.retry_of),
        ("after", f"{parents} {'in any way' if spec.after_any else 'with success'}" if parents else ""),
        ("devices", ", ".join(spec.allowed_devices)),
        ("ran", quantities.format_duration(job.ran_ms) + limit if limit or job.ran_ms else ""),
        ("deadline", system_clock.iso_utc(spec.deadline_at_ms) if spec.deadline_at_ms else ""),
        ("on stall", "restart" if spec.restarts_stalled else ""),
        *[("note", note) for note in queue_notes(job, at_ms)],
    ]


def _at_once(spec: scheduling_pb2.JobSpec) -> str:
    return f", {spec.array_running_max} at once" if spec.array_running_max else ""

"""The live table of the demo: which jobs share a GPU and why, predicted against measured, progress."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.text import Text

from cotenant import quantities
from cotenant.cli.demo.job_tracker import ENDED
from cotenant.cli.demo.narrator import Note
from cotenant.cli.job_views import AWAITING_PREDICTION, coded_reason, phase_name, slowdown_pair
from cotenant.cli.tables import Column, Row, render_table
from cotenant.v1 import scheduling_pb2

BAR_CELLS = 5
_JOB_ID = re.compile(r"\bjob-[0-9]+\b")
_COLUMNS = (
    Column(title="JOB", shrinks=True),
    Column(title="PHASE"),
    Column(title="STEPS"),
    Column(title="STEP", right=True),
    Column(title="GPU", wraps=True),
    Column(title="SHARES WITH", wraps=True),
    Column(title="PRED/MEAS", right=True),
)
_STYLES = {
    "running": "green",
    "failed": "red",
    "pending": "yellow",
    "finished": "cyan",
    "starting": "green",
    "paused": "yellow",
}


def render_jobs(jobs: Mapping[str, scheduling_pb2.Job], *, title: str, width: int) -> Text:
    """Returns the table as it stands now.

    Args:
        jobs: Newest state by job id.
        title: Line above the table.
        width: Columns of the terminal.
    """
    names = {job_id: job.spec.name for job_id, job in jobs.items()}
    ordered = sorted(jobs.values(), key=lambda job: (job.submitted_at_ms, job.job_id))
    table = render_table(_COLUMNS, [_row(job, names) for job in ordered], width)
    return Text("\n").join([Text(title, style="bold"), table])


def _row(job: scheduling_pb2.Job, names: Mapping[str, str]) -> Row:
    phase = phase_name(job)
    others = [other for other in job.co_located_jobs if job.phase not in ENDED]
    cells = (
        job.spec.name,
        phase,
        _progress_text(job),
        quantities.format_ms(job.step_ms) if job.step_ms else "-",
        ",".join(assignment.gpu_id for assignment in job.assignments) or "-",
        ",".join(names.get(other.job_id, other.job_id) for other in others) or "-",
        slowdown_pair(job),
    )
    wants_note = phase in ("pending", "failed") or bool(others)
    return Row(
        cells=cells,
        styles=((1, _STYLES.get(phase, "")),),
        note=_named(coded_reason(job.reason), names) if wants_note else "",
    )


def _progress_text(job: scheduling_pb2.Job) -> str:
    total = max(1, job.spec.steps_total)
    full = round(BAR_CELLS * min(1.0, job.steps_done / total))
    return f"{'█' * full}{'░' * (BAR_CELLS - full)} {job.steps_done}/{total}"


def summary_line(jobs: Mapping[str, scheduling_pb2.Job]) -> str:
    """Returns one line for a log: counts and which jobs are co-located; empty before the first job."""
    if not jobs:
        return ""
    names = {job_id: job.spec.name for job_id, job in jobs.items()}
    running = [job for job in jobs.values() if phase_name(job) == "running"]
    parts = []
    for job in sorted(running, key=lambda job: (job.assignments[0].gpu_id if job.assignments else "", job.job_id)):
        co_located = "+".join(names.get(other.job_id, other.job_id) for other in job.co_located_jobs)
        parts.append(
            f"{job.spec.name} {job.steps_done}/{job.spec.steps_total}" + (f" with {co_located}" * bool(co_located))
        )
    ended = sum(job.phase in ENDED for job in jobs.values())
    return f"{ended} of {len(jobs)} ended; " + ("; ".join(parts) or "nothing runs")


def placement_notes(jobs: Mapping[str, scheduling_pb2.Job]) -> dict[str, Note]:
    """Returns what is worth saying once: where each job is and why."""
    names = {job_id: job.spec.name for job_id, job in jobs.items()}
    return {
        job_id: _placement_note(job, names) for job_id, job in jobs.items() if job.reason.code != AWAITING_PREDICTION
    }


def _named(reason: str, names: Mapping[str, str]) -> str:
    """Puts names where a reason has job ids."""
    return _JOB_ID.sub(lambda found: names.get(found[0], found[0]), reason)


def _placement_note(job: scheduling_pb2.Job, names: Mapping[str, str]) -> Note:
    phase = phase_name(job)
    if job.phase in ENDED:
        return Note(key=(phase,), text=f"{job.spec.name} {phase} after {job.steps_done} steps")
    gpus = ",".join(assignment.gpu_id for assignment in job.assignments)
    where = f"on {gpus}" if gpus else phase
    text = f"{job.spec.name} {where}: {_named(coded_reason(job.reason), names)}"
    return Note(key=(where, job.reason.code), text=text)

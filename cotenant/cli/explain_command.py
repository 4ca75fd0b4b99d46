"""explain: the reason of a job, the candidates that were looked at, and its history."""

from __future__ import annotations

from collections.abc import Mapping

import click

from cotenant import quantities, system_clock
from cotenant.cli.forecast_views import expected_start_text, step_time_lines
from cotenant.cli.formats import emit_message
from cotenant.cli.job_lookup import complete_job, find_job
from cotenant.cli.job_views import ENDED, coded_reason, neighbour_lines, neighbour_text, phase_name, unusual_lines
from cotenant.cli.session import Session, show, with_session
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.client_errors import InputError
from cotenant.v1 import scheduling_pb2

SHOWN_EVENTS = 20
_COLUMNS = (
    Column(title="GPU", wraps=True),
    Column(title="VERDICT"),
    Column(title="COST", right=True),
    Column(title="REASON", wraps=True),
)


_EPILOG = """\b
Examples:
  cotenant explain job-12
  cotenant explain job-12 --if batch_size=32 --if policy=srtf
"""


@click.command(epilog=_EPILOG)
@click.argument("job", shell_complete=complete_job)
@click.option("--history/--no-history", default=True, help="Show what happened to the job so far.")
@click.option("--start/--no-start", default=True, help="Simulate when a waiting job starts.")
@click.option(
    "--if",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="When it would start with another policy, batch_size, gpus, steps, share, max_slowdown or memory.",
)
@with_session
def explain(session: Session, /, job: str, history: bool, start: bool, changes: tuple[str, ...]) -> None:
    """Say why JOB runs where it runs, or why it waits, what would change that, and when it starts.

    Lists every GPU that was looked at with its verdict. COST is the policy's own measure: lower is better. The expected
    start holds 80 % of the starts in simulations of the queue as it is; jobs that come later are not in them.
    """
    wanted = _read_changes(changes)
    if wanted and not start:
        raise InputError("--if asks when the job would start", remedy="leave out --no-start")
    client = session.scheduler()
    answer = client.explain_job(find_job(client, job).job_id, expected_start=start, changes=wanted)
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[answer.job.job_id])
        return
    show(render_labelled(_summary(answer, wanted), session.width))
    if answer.candidates:
        show("")
        rows = [_candidate_row(candidate, answer.reason, session.width) for candidate in answer.candidates]
        show(render_table(_COLUMNS, rows, session.width))
    if history and answer.history:
        show("")
        show(render_labelled(_history_lines(answer), session.width))


def _read_changes(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise InputError(f"--if {text!r} is not NAME=VALUE", remedy="e.g. --if batch_size=32")
        if name in found:
            raise InputError(f"--if {name} is given twice", remedy="leave one of them out")
        found[name] = value
    return found


def _start_lines(answer: scheduling_pb2.ExplainJobResponse, changes: Mapping[str, str]) -> list[tuple[str, str]]:
    now_ms = system_clock.now_ms()
    lines = []
    if answer.HasField("expected_start"):
        lines.append(("expected", expected_start_text(answer.expected_start, at_ms=now_ms)))
    if answer.HasField("changed_start"):
        named = ", ".join(f"{name}={value}" for name, value in changes.items())
        lines.append(("what if", f"{named}: {expected_start_text(answer.changed_start, at_ms=now_ms)}"))
    elif changes:
        lines.append(("what if", "nothing to expect: only the start of a waiting job can be simulated"))
    return lines


def _summary(answer: scheduling_pb2.ExplainJobResponse, changes: Mapping[str, str]) -> list[tuple[str, str]]:
    numbers = ", ".join(quantities.format_named(name, value) for name, value in sorted(answer.reason.numbers.items()))
    lines = [
        ("job", f"{answer.job.job_id}  {answer.job.spec.name}  {phase_name(answer.job)}"),
        ("reason", coded_reason(answer.reason)),
        ("sooner by", answer.remedy),
        *_start_lines(answer, changes),
        ("numbers", numbers),
        _settled_line(answer),
        *step_time_lines(answer.job),
        *unusual_lines(answer.job),
        *neighbour_lines(answer.job),
    ]
    return [line for line in lines if line[1]]


def _settled_line(answer: scheduling_pb2.ExplainJobResponse) -> tuple[str, str]:
    """When the reason was last decided; a job that has ended is in no decision any more."""
    if answer.job.phase in ENDED:
        return "ended", system_clock.iso_utc(answer.job.finished_at_ms)
    decided = system_clock.iso_utc(answer.decided_at_ms) if answer.decided_at_ms else "not yet"
    return "decided", f"{decided} by policy {answer.policy}"


def _candidate_row(candidate: scheduling_pb2.Candidate, told: scheduling_pb2.Reason, width: int) -> Row:
    """A GPU that was looked at; what stands above the table already is not said again."""
    verdict = "chosen" if candidate.chosen else "possible" if candidate.feasible else "no"
    cost = f"{candidate.cost:.4g}" if candidate.HasField("cost") else "-"
    reason = coded_reason(candidate.reason)
    is_told = candidate.reason.message == told.message
    narrow = is_told or len(reason) > width - 40
    style = "green" if candidate.chosen else "" if candidate.feasible else "dim"
    cells = [candidate.gpu_id, verdict, cost, candidate.reason.code if narrow else reason]
    notes = [candidate.reason.message] if narrow and candidate.reason.message and not is_told else []
    notes += [f"with {neighbour_text(other)}" for other in candidate.co_located_jobs]
    return Row(cells=cells, styles=((1, style),), note="; ".join(note.rstrip(".") for note in notes))


def _history_lines(answer: scheduling_pb2.ExplainJobResponse) -> list[tuple[str, str]]:
    start_ms, events = answer.job.submitted_at_ms, list(answer.history)[-SHOWN_EVENTS:]
    widest = max(len(event.kind) for event in events)
    return [
        (f"+{quantities.format_duration(event.at_ms - start_ms)}", f"{event.kind:<{widest}}  {event.message}".rstrip())
        for event in events
    ]

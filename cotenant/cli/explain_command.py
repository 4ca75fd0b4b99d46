"""explain: the reason of a job, the candidates that were looked at, and its history."""

from __future__ import annotations

import click

from cotenant import quantities, system_clock
from cotenant.cli.formats import emit_message
from cotenant.cli.job_lookup import complete_job, find_job
from cotenant.cli.job_views import coded_reason, neighbour_text, phase_name, unusual_lines
from cotenant.cli.session import Session, show, with_session
from cotenant.cli.tables import Column, Row, render_labelled, render_table
from cotenant.v1 import scheduling_pb2

SHOWN_EVENTS = 20
_COLUMNS = (
    Column(title="GPU", shrinks=True),
    Column(title="VERDICT"),
    Column(title="COST", right=True),
    Column(title="REASON", shrinks=True),
)


@click.command(epilog="Example:  cotenant explain job-12")
@click.argument("job", shell_complete=complete_job)
@click.option("--history/--no-history", default=True, help="Show what happened to the job so far.")
@with_session
def explain(session: Session, /, job: str, history: bool) -> None:
    """Say why JOB runs where it runs, or why it waits.

    Lists every GPU that was looked at with its verdict. COST is the policy's own measure: lower is better.
    """
    client = session.scheduler()
    answer = client.explain_job(find_job(client, job).job_id)
    if not session.output.is_for_people:
        emit_message(answer, session.output, names=[answer.job.job_id])
        return
    show(render_labelled(_summary(answer), session.width))
    if answer.candidates:
        show("")
        show(render_table(_COLUMNS, [_candidate_row(c, session.width) for c in answer.candidates], session.width))
    if history and answer.history:
        show("")
        show(render_labelled(_history_lines(answer), session.width))


def _summary(answer: scheduling_pb2.ExplainJobResponse) -> list[tuple[str, str]]:
    decided = system_clock.iso_utc(answer.decided_at_ms) if answer.decided_at_ms else "not yet"
    numbers = ", ".join(f"{name}={value:g}" for name, value in sorted(answer.reason.numbers.items()))
    lines = [
        ("job", f"{answer.job.job_id}  {answer.job.spec.name}  {phase_name(answer.job)}"),
        ("reason", coded_reason(answer.reason)),
        ("numbers", numbers),
        ("decided", f"{decided} by policy {answer.policy}"),
        *unusual_lines(answer.job),
        *[("shares with", neighbour_text(other)) for other in answer.job.co_located_jobs],
    ]
    return [line for line in lines if line[1]]


def _candidate_row(candidate: scheduling_pb2.Candidate, width: int) -> Row:
    verdict = "chosen" if candidate.chosen else "possible" if candidate.feasible else "no"
    cost = f"{candidate.cost:.4g}" if candidate.HasField("cost") else "-"
    reason = coded_reason(candidate.reason)
    narrow = len(reason) > width - 40
    style = "green" if candidate.chosen else "" if candidate.feasible else "dim"
    cells = [candidate.gpu_id, verdict, cost, candidate.reason.code if narrow else reason]
    notes = [candidate.reason.message] if narrow and candidate.reason.message else []
    notes += [f"with {neighbour_text(other)}" for other in candidate.co_located_jobs]
    return Row(cells=cells, styles=((1, style),), note="; ".join(note.rstrip(".") for note in notes))


def _history_lines(answer: scheduling_pb2.ExplainJobResponse) -> list[tuple[str, str]]:
    start_ms = answer.job.submitted_at_ms
    return [
        (f"+{quantities.format_duration(event.at_ms - start_ms)}", f"{event.kind}  {event.message}".rstrip())
        for event in list(answer.history)[-SHOWN_EVENTS:]
    ]

"""ps, describe, cancel."""

from __future__ import annotations

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from cotenant import system_clock
from cotenant.cli.formats import OutputFormat, emit_data, emit_message, message_to_dict
from cotenant.cli.job_lookup import complete_job, find_job, find_jobs, is_array, names_in
from cotenant.cli.job_views import ENDED, PAUSED, describe_job, job_columns, job_rows, phase_name
from cotenant.cli.session import Session, show, tell, tell_warnings, with_session
from cotenant.cli.tables import render_labelled, render_table
from cotenant.counted_nouns import agreed
from cotenant.job_watch import WatchKind, watch_jobs
from cotenant.v1 import scheduling_pb2

SHOWN_BY_DEFAULT = 50
# Of the contract: a paused job is a running one that says so in a field of its own.
_RUNNING = "JOB_PHASE_RUNNING"
_PHASES = [
    name.removeprefix("JOB_PHASE_").lower()
    for name in scheduling_pb2.JobPhase.keys()  # noqa: SIM118  # an enum wrapper, not a dict
    if not name.endswith("UNSPECIFIED")
] + [PAUSED]

_PAUSABLE = (scheduling_pb2.JOB_PHASE_RUNNING,)
_NOT_ENDED = [phase for phase in scheduling_pb2.JobPhase.values() if phase not in ENDED]


@click.command(epilog="\b\nExamples:\n  cotenant ps --phase pending\n  cotenant ps -o json\n  cotenant ps -w")
@click.option("-a", "--all", "show_all", is_flag=True, help=f"More than {SHOWN_BY_DEFAULT} jobs.")
@click.option("--phase", "phases", multiple=True, type=click.Choice(_PHASES), help="Only jobs in this phase.")
@click.option("--tenant", default="", help="Only jobs of this tenant.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing changes until interrupted.")
@with_session
def ps(session: Session, /, show_all: bool, phases: tuple[str, ...], tenant: str, watch: bool) -> None:
    """List jobs, newest first, with the reason where one waits; of many those that run, then those that wait.

    PRED/MEAS is the slowdown against running alone, predicted at its start and measured: +20 % = a step takes 1.2 times
    as long. What is expected now, after what was measured since, stands in describe and explain.
    """
    if watch:
        _watch_list(session, phases)
        return
    names = {_RUNNING if phase == PAUSED else f"JOB_PHASE_{phase.upper()}" for phase in phases}
    wanted = [scheduling_pb2.JobPhase.Value(name) for name in sorted(names)]
    jobs = [
        job
        for job in session.scheduler().list_jobs(phases=wanted, tenant=tenant)
        if not phases or phase_name(job) in phases
    ]
    if not session.output.is_for_people:
        emit_message(scheduling_pb2.ListJobsResponse(jobs=jobs), session.output, names=[job.job_id for job in jobs])
        return
    shown = jobs if show_all else _choose_shown(jobs)
    show(_job_table(session, shown))
    if not jobs:
        is_part = bool(phases or tenant)
        tell("no such jobs; `cotenant ps -a` lists all" if is_part else "no jobs; submit one with `cotenant submit`")
    if len(jobs) > len(shown):
        tell(agreed(f"{len(jobs) - len(shown)} more job(s) not shown (-a shows all)"))
    tell_warnings(session.scheduler().list_warnings())


def _choose_shown(newest: list[scheduling_pb2.Job]) -> list[scheduling_pb2.Job]:
    """Those of most interest in the given order: hundreds of tasks that ended never hide a job that runs."""
    if len(newest) <= SHOWN_BY_DEFAULT:
        return newest
    chosen = sorted(range(len(newest)), key=lambda at: _interest(newest[at]))[:SHOWN_BY_DEFAULT]
    return [newest[at] for at in sorted(chosen)]


def _interest(job: scheduling_pb2.Job) -> int:
    return 2 if job.phase in ENDED else int(job.phase == scheduling_pb2.JOB_PHASE_PENDING)


def _job_table(session: Session, jobs: list[scheduling_pb2.Job]) -> Text:
    wide = session.output is OutputFormat.WIDE
    return render_table(job_columns(wide=wide), job_rows(jobs, wide=wide, at_ms=system_clock.now_ms()), session.width)


def _watch_list(session: Session, phases: tuple[str, ...]) -> None:
    jobs: dict[str, scheduling_pb2.Job] = {}
    status = Text("")
    with Live(auto_refresh=False, screen=False) as live:
        for event in watch_jobs(session.scheduler()):
            status = Text("scheduler unreachable, trying again ..." * (event.kind is WatchKind.DISCONNECTED), "red")
            if event.job is not None:
                jobs[event.job.job_id] = event.job
            newest = sorted(jobs.values(), key=lambda job: (job.submitted_at_ms, job.job_id), reverse=True)
            shown = _choose_shown([job for job in newest if not phases or phase_name(job) in phases])
            live.update(Group(_job_table(session, shown), status), refresh=True)


@click.command(epilog="Example:  cotenant describe resnet-small -o yaml")
@click.argument("job", shell_complete=complete_job)
@with_session
def describe(session: Session, /, job: str) -> None:
    """Show everything about JOB (id, unique start of an id, or name)."""
    client = session.scheduler()
    found = find_job(client, job)
    if not session.output.is_for_people:
        emit_message(found, session.output, names=[found.job_id])
        return
    enforcements = [name for node in client.list_nodes() if node.node_id == found.node_id for name in node.enforcements]
    show(render_labelled(describe_job(found, enforcements), session.width))


@click.command(epilog="\b\nExamples:\n  cotenant cancel job-12 array-13\n  cotenant cancel 'sweep-1?'")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@with_session
def cancel(session: Session, /, jobs: tuple[str, ...]) -> None:
    """Stop JOBS (or whole arrays, or all like 'NAME-*') or take them off the queue; repeating it is harmless."""
    client = session.scheduler()
    names = names_in(jobs)
    single = [name for name in names if not is_array(name)]
    found = find_jobs(client, single, phases=_NOT_ENDED, may_be_over=True) if single else []  # all before an end
    for array in filter(is_array, names):
        tell(agreed(f"{array}: {len(client.cancel_array(array))} task(s) cancelled"))
    if found:
        tell_jobs(session, [client.cancel_job(job_id) for job_id in found])


@click.command(epilog="Example:  cotenant pause job-12 --seconds 20")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@click.option(
    "--seconds", type=click.IntRange(1, 60), default=60, show_default=True, help="Then they go on by themselves."
)
@with_session
def pause(session: Session, /, jobs: tuple[str, ...], seconds: int) -> None:
    """Let JOBS, or running ones of arrays and patterns, stand still; their GPUs and their memory stay taken.

    For jobs on one GPU. Repeating it makes no pause longer; `cotenant resume` ends it sooner.
    """
    client = session.scheduler()
    found = find_jobs(client, jobs, phases=_PAUSABLE)
    paused = [client.pause_job(job_id, most_ms=seconds * 1_000) for job_id in found]
    tell_jobs(session, paused, done=f"pause of {seconds} s at most ordered")


@click.command(epilog="Example:  cotenant resume job-12")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@with_session
def resume(session: Session, /, jobs: tuple[str, ...]) -> None:
    """Let paused JOBS go on; others are left as they are."""
    client = session.scheduler()
    tell_jobs(session, [client.resume_job(job_id) for job_id in find_jobs(client, jobs, phases=_PAUSABLE)])


def tell_jobs(session: Session, jobs: list[scheduling_pb2.Job], *, done: str = "") -> None:
    """Prints where jobs are after an order about them.

    Args:
        session: Says in which form.
        jobs: As the scheduler answered.
        done: What was done with them, where their phase alone does not show it.
    """
    if session.output is OutputFormat.NAME:
        for job in jobs:
            click.echo(job.job_id)
    elif session.output.is_for_people:
        for job in jobs:
            show(f"{job.job_id}  {job.spec.name}  {phase_name(job)}{_order_text(job, done)}")
    else:
        emit_data({"jobs": [message_to_dict(job) for job in jobs]}, session.output)


def _order_text(job: scheduling_pb2.Job, done: str) -> str:
    """A job that stands still shows the pause by its phase; one that was told to go on stands still for a moment."""
    if job.HasField("pause"):
        return ", about to go on" if job.pause.resuming else ""
    return f", {done}" if done else ""

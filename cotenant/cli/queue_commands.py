"""hold, release, retry, alter: what is done with jobs that wait, or are to run once more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import click

from cotenant.cli.job_commands import tell_jobs
from cotenant.cli.job_lookup import complete_job, find_jobs
from cotenant.cli.job_views import ENDED, phase_name
from cotenant.cli.session import Session, tell, with_session
from cotenant.cli.unsaved_work import tell_unsaved_work
from cotenant.client_errors import InputError
from cotenant.job_file import share_mode
from cotenant.job_file_queue import read_priority
from cotenant.option_types import FiniteRange
from cotenant.quantities import parse_duration_ms
from cotenant.v1 import resources_pb2, scheduling_pb2

_PENDING = (scheduling_pb2.JOB_PHASE_PENDING,)
_ON_GPUS = (
    scheduling_pb2.JOB_PHASE_STARTING,
    scheduling_pb2.JOB_PHASE_RUNNING,
)
_FAILED = (scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED)


@click.command(epilog="Example:  cotenant hold job-12 array-13")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@click.option("--stop", "stop_running", is_flag=True, help="Running ones too: they stop with a checkpoint.")
@click.option("--dry-run", is_flag=True, help="Say where the jobs are, and what they would lose; change nothing.")
@with_session
def hold(session: Session, /, jobs: tuple[str, ...], stop_running: bool, dry_run: bool) -> None:
    """Let pending JOBS, or those of whole arrays, wait until they are released; they go on from their checkpoints.

    With --stop a job whose script writes no checkpoint loses its steps; a warning names it.
    """
    client = session.scheduler()
    found = find_jobs(client, jobs, phases=(*_PENDING, *_ON_GPUS) if stop_running else _PENDING)
    known = [client.get_job(job_id) for job_id in found] if stop_running or dry_run else []
    tell_unsaved_work(known if stop_running else ())
    if not dry_run:
        known = [client.hold_job(job_id, stop_running=stop_running) for job_id in found]
    tell_jobs(session, known, done="" if dry_run else "held")


@click.command(epilog="Example:  cotenant release job-12")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@with_session
def release(session: Session, /, jobs: tuple[str, ...]) -> None:
    """Let held JOBS, or those of whole arrays, start; those that wait or run already are left as they are."""
    client = session.scheduler()
    found = find_jobs(client, jobs, phases=_PENDING)
    tell_jobs(session, [client.release_job(job_id) for job_id in found], done="not held")


@click.command(epilog="Example:  cotenant retry job-12")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@click.option("--force", is_flag=True, help="Submit what no connected node can run or no device can hold.")
@with_session
def retry(session: Session, /, jobs: tuple[str, ...], force: bool) -> None:
    """Hand failed or cancelled JOBS, or those of arrays, in again; each gets a new id and begins from the start."""
    client = session.scheduler()
    again = []
    found = find_jobs(client, jobs, phases=_FAILED, ended=True)
    _require_ended_repetitions(client.list_jobs(), found)
    # The oldest first: a child waits for the repetition of its parent.
    try:
        for job_id in sorted(found, key=lambda job_id: (len(job_id), job_id)):
            answer = client.retry_job(job_id, force=force)
            for warning in answer.warnings:
                tell(f"warning: {warning.code}: {warning.message}", style="yellow")
            again.append(answer.job)
    finally:  # where one is refused, those before it are in the queue all the same
        if again:
            tell_jobs(session, again)


def _require_ended_repetitions(known: Iterable[scheduling_pb2.Job], job_ids: Collection[str]) -> None:
    """Refuse to let a script run twice at once, in one folder and with one checkpoint of its own."""
    jobs, asked = {job.job_id: job for job in known}, frozenset(job_ids)
    for job in jobs.values():
        if job.phase not in ENDED and (former := asked.intersection(_repeated_by(job, jobs))):
            raise InputError(
                f"{min(former)} was handed in again: {job.job_id} is {phase_name(job)}",
                remedy=f"cotenant cancel {job.job_id} first, or hand another job in by cotenant submit",
            )


def _repeated_by(job: scheduling_pb2.Job, jobs: Mapping[str, scheduling_pb2.Job]) -> Iterator[str]:
    """Yields the job that another one repeats, and what that one repeated before."""
    former, left = job.spec.retry_of, len(jobs)
    while former and left:
        yield former
        former, left = jobs[former].spec.retry_of if former in jobs else "", left - 1


@click.command(epilog="Example:  cotenant alter job-12 --priority high --time-limit 4h")
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@click.option("--priority", metavar="CLASS", help="low, normal, high or a number; higher ones go first.")
@click.option("--share", type=click.Choice(["never", "safe", "any"]), help="Sharing consent.")
@click.option("--max-slowdown", type=FiniteRange(0, 10), metavar="RATIO", help="0.2 = 20 % slower.")
@click.option("--time-limit", metavar="TIME", help="How long it may run, e.g. 2h; none = as long as it likes.")
@with_session
def alter(
    session: Session,
    /,
    *,
    jobs: tuple[str, ...],
    priority: str | None,
    share: str | None,
    max_slowdown: float | None,
    time_limit: str | None,
) -> None:
    """Change what pending JOBS ask for, or the time limit of running ones; what is not given stays as it is.

    Whatever has no flag here is changed by cancelling the job and submitting it anew.
    """
    if all(value is None for value in (priority, share, max_slowdown, time_limit)):
        raise InputError("nothing is to be altered", remedy="--priority, --share, --max-slowdown or --time-limit")
    limit_ms = None if time_limit is None else 0 if time_limit == "none" else parse_duration_ms(time_limit)
    client = session.scheduler()
    of_limit_only = priority is None and share is None and max_slowdown is None
    phases = (*_PENDING, *_ON_GPUS) if of_limit_only else _PENDING
    found = find_jobs(client, jobs, phases=phases)
    if limit_ms:
        known = [client.get_job(job_id) for job_id in found]
        tell_unsaved_work(job for job in known if job.ran_ms >= limit_ms)
    altered = [
        client.alter_job(
            job_id,
            priority=None if priority is None else read_priority(priority),
            share=resources_pb2.SHARE_MODE_UNSPECIFIED if share is None else share_mode(share),
            max_slowdown_ratio=max_slowdown,
            time_limit_ms=limit_ms,
        )
        for job_id in found
    ]
    tell_jobs(session, altered, done="altered")

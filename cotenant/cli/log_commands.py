"""logs: what a job printed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypedDict

import click

from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.job_lookup import complete_job, find_job
from cotenant.cli.job_views import ENDED
from cotenant.cli.session import Session, with_session
from cotenant.client import SchedulerClient
from cotenant.client_errors import InputError, ProgramError
from cotenant.job_watch import watch_jobs
from cotenant.v1 import scheduling_pb2

# A tail is counted in lines by the user and in bytes by the protocol.
LONGEST_LINE_BYTES = 4096
TAIL_LIMIT_BYTES = 4 * 1024 * 1024


class Process(TypedDict):
    """Whose output is wanted."""

    rank: int
    server: int | None


_EPILOG = """\b
Examples:
  cotenant logs job-12 --tail 20
  cotenant logs -f resnet-small
  cotenant logs job-12 --rank 1
  cotenant logs job-12 --server 0
"""


@click.command(epilog=_EPILOG)
@click.argument("job", shell_complete=complete_job)
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job has ended, over its restarts; exit 7 or 8 as it ended."
)
@click.option("--tail", type=click.IntRange(1, 1_000_000), metavar="LINES", help="Only the last lines.")
@click.option("--attempt", type=click.IntRange(0, 1_000_000), default=0, help="Which launch.  [default: the newest]")
@click.option("--rank", type=click.IntRange(0, 1_000_000), help="Which process of a job with --ranks.")
@click.option("--server", type=click.IntRange(0, 1_000_000), help="Which parameter server of a job with --servers.")
@with_session
def logs(
    session: Session,
    /,
    *,
    job: str,
    follow: bool,
    tail: int | None,
    attempt: int,
    rank: int | None,
    server: int | None,
) -> None:
    """Print what JOB printed, stdout and stderr together; of a job with ranks what rank 0 printed."""
    if rank is not None and server is not None:
        raise InputError("a process is a rank or a parameter server", remedy="give --rank or --server")
    client = session.scheduler()
    process: Process = {"rank": rank or 0, "server": server}
    found = find_job(client, job)
    job_id, tail_bytes = found.job_id, 0
    if tail is not None:
        last = _last_lines(client, job_id, attempt=attempt, lines=tail, process=process)
        tail_bytes = len(last)
        if not follow:
            _write([last])
            return
    if follow:
        ended = _follow(client, found, attempt=attempt, tail_bytes=tail_bytes, process=process)
        raise click.exceptions.Exit(outcome_code(ended))
    _write(client.read_job_log(job_id, attempt=attempt, tail_bytes=tail_bytes, **process))


def outcome_code(job: scheduling_pb2.Job) -> ExitCode:
    """Returns the exit status for the end of a job; 0 while it has not ended."""
    if job.phase == scheduling_pb2.JOB_PHASE_FAILED:
        return ExitCode.JOB_FAILED
    if job.phase == scheduling_pb2.JOB_PHASE_CANCELLED:
        return ExitCode.JOB_CANCELLED
    return ExitCode.OK


def _follow(
    client: SchedulerClient, job: scheduling_pb2.Job, *, attempt: int, tail_bytes: int, process: Process
) -> scheduling_pb2.Job:
    """Prints one attempt, or the newest and all that come after it; returns the job as it then is."""
    while True:
        number = attempt or job.attempt
        _write(client.read_job_log(job.job_id, attempt=number, follow=True, tail_bytes=tail_bytes, **process))
        job = _after_attempt(client, job.job_id, number, goes_on=not attempt)
        if attempt or job.phase in ENDED:
            return job
        tail_bytes = 0


def _after_attempt(client: SchedulerClient, job_id: str, attempt: int, *, goes_on: bool) -> scheduling_pb2.Job:
    """Waits until the scheduler knows what has become of an attempt: its log ends on the node before that is reported.

    Args:
        client: Client of the scheduler.
        job_id: Whose attempt it was.
        attempt: Its number.
        goes_on: Whether the next attempt's log is awaited where the job is restarted.
    """
    has_log = (scheduling_pb2.JOB_PHASE_RUNNING, scheduling_pb2.JOB_PHASE_STOPPING)
    for event in watch_jobs(client, [job_id]):
        job = event.job
        if job is None or job.job_id != job_id:
            continue
        is_over = job.attempt > attempt or job.phase == scheduling_pb2.JOB_PHASE_PENDING
        if job.phase in ENDED or (job.attempt > attempt and job.phase in has_log if goes_on else is_over):
            return job
    raise ProgramError(f"the watch over {job_id} ended before the job did")


def _last_lines(client: SchedulerClient, job_id: str, *, attempt: int, lines: int, process: Process) -> bytes:
    tail_bytes = min(lines * LONGEST_LINE_BYTES, TAIL_LIMIT_BYTES)
    text = b"".join(client.read_job_log(job_id, attempt=attempt, tail_bytes=tail_bytes, **process))
    return b"".join(deque(text.splitlines(keepends=True), maxlen=lines))


def _write(chunks: Iterator[bytes] | list[bytes]) -> None:
    for chunk in chunks:
        click.echo(chunk, nl=False)

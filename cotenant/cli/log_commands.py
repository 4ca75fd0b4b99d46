"""logs: what a job printed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypedDict

import click

from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.job_lookup import complete_job, find_job
from cotenant.cli.session import Session, with_session
from cotenant.client import SchedulerClient
from cotenant.client_errors import InputError
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
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended; exit 7 or 8 as it ended.")
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
    job_id = find_job(client, job).job_id
    tail_bytes = 0
    if tail is not None:
        last = _last_lines(client, job_id, attempt=attempt, lines=tail, process=process)
        tail_bytes = len(last)
        if not follow:
            _write([last])
            return
    _write(client.read_job_log(job_id, attempt=attempt, follow=follow, tail_bytes=tail_bytes, **process))
    if follow:
        raise click.exceptions.Exit(outcome_code(client.get_job(job_id)))


def outcome_code(job: scheduling_pb2.Job) -> ExitCode:
    """Returns the exit status for the end of a job; 0 while it has not ended."""
    if job.phase == scheduling_pb2.JOB_PHASE_FAILED:
        return ExitCode.JOB_FAILED
    if job.phase == scheduling_pb2.JOB_PHASE_CANCELLED:
        return ExitCode.JOB_CANCELLED
    return ExitCode.OK


def _last_lines(client: SchedulerClient, job_id: str, *, attempt: int, lines: int, process: Process) -> bytes:
    tail_bytes = min(lines * LONGEST_LINE_BYTES, TAIL_LIMIT_BYTES)
    text = b"".join(client.read_job_log(job_id, attempt=attempt, tail_bytes=tail_bytes, **process))
    return b"".join(deque(text.splitlines(keepends=True), maxlen=lines))


def _write(chunks: Iterator[bytes] | list[bytes]) -> None:
    for chunk in chunks:
        click.echo(chunk, nl=False)

"""wait: until jobs that were handed in before have ended, for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.formats import emit_message
from cotenant.cli.job_lookup import complete_job, find_jobs
from cotenant.cli.job_views import ENDED, coded_reason, phase_name
from cotenant.cli.log_commands import outcome_code
from cotenant.cli.session import Session, show, with_session
from cotenant.cli.tables import render_labelled
from cotenant.client import SchedulerClient
from cotenant.client_errors import ProgramError
from cotenant.job_watch import WatchKind, watch_jobs
from cotenant.v1 import scheduling_pb2

WATCHED_JOBS_MAX = 1_000
"""So many jobs one watch may name (`scheduler_service.grpc_api.validation`)."""
_WORST_FIRST = (ExitCode.JOB_FAILED, ExitCode.JOB_CANCELLED, ExitCode.OK)


@click.command(
    epilog="\b\nExamples:\n  cotenant wait job-12 job-13 && python collect.py\n  timeout 2h cotenant wait array-20"
)
@click.argument("jobs", nargs=-1, required=True, shell_complete=complete_job)
@with_session
def wait(session: Session, /, jobs: tuple[str, ...]) -> None:
    """Wait until all JOBS, or those of arrays, have ended; exit 7 if one failed, else 8 if one was cancelled.

    A line says how each has ended, in the order of their ends. Interrupting the wait leaves the jobs alone.
    """
    client = session.scheduler()
    wanted = find_jobs(client, jobs, phases=scheduling_pb2.JobPhase.values())
    ended = dict[str, scheduling_pb2.Job]()
    for job in _ends(client, wanted):
        ended[job.job_id] = job
        if session.output.is_for_people:
            why = "" if job.phase == scheduling_pb2.JOB_PHASE_FINISHED else coded_reason(job.reason)
            told = f"{job.spec.name}  {phase_name(job)}  {why}".rstrip()
            show(render_labelled([(job.job_id, told)], session.width))
    _tell_worst(session, [ended[job_id] for job_id in wanted])


def _ends(client: SchedulerClient, wanted: Sequence[str]) -> Iterator[scheduling_pb2.Job]:
    """Yields every job once, when it has ended; of more jobs than one watch may name all are watched."""
    left, seen = set(wanted), set[str]()
    for event in watch_jobs(client, wanted if len(wanted) <= WATCHED_JOBS_MAX else ()):
        if event.kind is WatchKind.DISCONNECTED:
            seen.clear()
        if event.kind is WatchKind.SNAPSHOT_END and (forgotten := left - seen):
            raise ProgramError(f"{min(forgotten)} is not known any more", remedy="`cotenant ps -a` lists all jobs")
        job = event.job
        if job is None:
            continue
        seen.add(job.job_id)
        if job.job_id in left and job.phase in ENDED:
            left.discard(job.job_id)
            yield job
        if not left:
            return


def _tell_worst(session: Session, jobs: list[scheduling_pb2.Job]) -> None:
    if not session.output.is_for_people:
        emit_message(scheduling_pb2.ListJobsResponse(jobs=jobs), session.output, names=[job.job_id for job in jobs])
    codes = {outcome_code(job) for job in jobs}
    raise click.exceptions.Exit(next(code for code in _WORST_FIRST if code in codes))

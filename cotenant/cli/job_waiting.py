"""Waiting for a job with a progress bar on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cotenant.cli.exit_codes import ExitCode
from cotenant.cli.forecast_views import known_steps
from cotenant.cli.formats import emit_message
from cotenant.cli.job_views import ENDED, coded_reason, phase_name
from cotenant.cli.log_commands import outcome_code
from cotenant.cli.session import Session, tell
from cotenant.client import SchedulerClient
from cotenant.client_errors import ProgramError
from cotenant.job_watch import watch_jobs
from cotenant.v1 import scheduling_pb2


def wait_for_job(session: Session, client: SchedulerClient, job_id: str) -> ExitCode:
    """Waits until the job has ended and returns the exit status of its end.

    Interrupting the wait leaves the job alone.
    """
    try:
        job = _follow(client, job_id)
    except KeyboardInterrupt:
        tell(f"stopped waiting; {job_id} goes on (`cotenant cancel {job_id}` stops it)")
        raise
    if session.output.is_for_people:
        tell(f"{job_id}  {phase_name(job)}" + (f"  {coded_reason(job.reason)}" if job.reason.code else ""))
    else:
        emit_message(job, session.output, names=[job.job_id])
    return outcome_code(job)


def _follow(client: SchedulerClient, job_id: str) -> scheduling_pb2.Job:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task(job_id)
        for event in watch_jobs(client, [job_id]):
            job = event.job
            if job is None:
                continue
            described = f"{job.spec.name or job_id} {phase_name(job)}"
            total = known_steps(job) or None
            progress.update(bar, description=described, completed=job.steps_done, total=total)
            if job.phase in ENDED:
                return job
    raise ProgramError(f"the watch over {job_id} ended before the job did")

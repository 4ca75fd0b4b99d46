"""Jobs by id, by unique start of an id, or by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import click
import grpc
from click.shell_completion import CompletionItem

from cotenant.cli.job_views import ENDED, phase_name
from cotenant.cli.session import tell
from cotenant.cli.settings import resolve_settings
from cotenant.client import SchedulerClient, open_channel
from cotenant.client_errors import CotenantError, InputError, NotFoundError
from cotenant.counted_nouns import agreed
from cotenant.v1 import scheduling_pb2

ARRAY_PREFIX = "array-"
_JOB_PREFIX = "job-"
# Names have up to 63; what is matched with a pattern takes a time that grows faster than its length.
_WANTED_CHARACTERS_MAX = 200
# A shell that hangs on the tabulator key is worse than one without completion.
COMPLETION_TIMEOUT_S = 0.5


def find_job(client: SchedulerClient, wanted: str, *, ended: bool = False) -> scheduling_pb2.Job:
    """Returns the job that a user means.

    Args:
        client: Client of the scheduler that is asked.
        wanted: Whole id, its number alone, unique start of one, or a name; a script that was submitted again has the
            name of its earlier runs.
        ended: Of several, whether the only one that has ended is meant, or the only one that has not.

    Raises:
        NotFoundError: No such job.
        InputError: Several jobs could be meant, or all of an array.
    """
    try:
        return client.get_job(wanted)
    except NotFoundError as missing:
        jobs = client.list_jobs()
        named = [job for job in jobs if job.spec.name == wanted]
        named = named or [job for job in jobs if job.job_id == _JOB_PREFIX + wanted]
        matches = named or [job for job in jobs if job.job_id.startswith(wanted)]
        if tasks := [job.job_id for job in jobs if job.spec.array_id == wanted]:
            remedy = f"name one of its tasks, {tasks[-1]} to {tasks[0]}; verbs that change jobs take all"
            raise InputError(agreed(f"{wanted} is an array of {len(tasks)} job(s)"), remedy=remedy) from None
        if not matches:
            missing.remedy = missing.remedy or "`cotenant ps -a` lists all jobs"
            raise
        if len(matches) > 1:
            likely = [job for job in matches if (job.phase in ENDED) is ended]
            matches = likely if len(likely) == 1 else matches
        if len(matches) > 1:
            ids = ", ".join(f"{job.job_id} ({phase_name(job)})" for job in matches[:5])
            raise InputError(f"{len(matches)} jobs match {wanted!r}", remedy=f"name one of: {ids}") from None
        return matches[0]


def find_jobs(
    client: SchedulerClient,
    wanted: Sequence[str],
    *,
    phases: Collection[scheduling_pb2.JobPhase.ValueType],
    ended: bool = False,
    may_be_over: bool = False,
) -> list[str]:
    """Returns the ids of the jobs that a user means; an array, or a pattern of names, stands for those in some phases.

    Args:
        client: Client of the scheduler that is asked.
        wanted: Jobs as `find_job` takes them, ids of arrays, or patterns as of file names (`sweep-*`) for ids and
            names; several in one word are parted by commas.
        phases: Of the tasks of arrays and of what fits a pattern; jobs that are named are found in any phase.
        ended: As in `find_job`; of tasks those that were handed in again are left out, whatever their repetitions are
            called. Otherwise a task is left out where its repetition stands in its place.
        may_be_over: An array or pattern of which all jobs have ended stands for none, and that is told.

    Raises:
        NotFoundError: No such job or array, or none that fits a pattern.
        InputError: Several jobs could be meant, or none of an array or pattern is in these phases.
    """
    found: dict[str, None] = {}
    names = names_in(wanted)
    listed = client.list_jobs() if any(map(_stands_for_several, names)) else []
    for name in names:
        known = listed if _stands_for_several(name) else []
        tasks = sorted((job for job in known if _stands_for(name, job)), key=lambda job: job.spec.array_index)
        repeated = {job.spec.retry_of for job in (known if ended else tasks)}
        fitting = [job.job_id for job in tasks if job.phase in phases and job.job_id not in repeated]
        are_over = bool(tasks) and not fitting and all(job.phase in ENDED for job in tasks)
        if are_over and may_be_over:
            tell(f"{_all_text(name, len(tasks))} ended")
            continue
        if tasks and not fitting:
            asked = " or ".join(map(_phase_text, filter(None, phases)))
            kind = "job like" if is_pattern(name) else "task of"
            over = f": {_all_text(name, len(tasks))} ended" if are_over else ""
            raise InputError(f"no {kind} {name} is {asked}{over}", remedy="`cotenant ps -a` shows them")
        if is_pattern(name) and not tasks:
            missing = f"no job has an id or name like {name}"
            raise NotFoundError(missing, code=grpc.StatusCode.NOT_FOUND, remedy="`cotenant ps -a` lists all jobs")
        found |= dict.fromkeys(fitting if tasks else [find_job(client, name, ended=ended).job_id])
    return list(found)


def names_in(wanted: Sequence[str]) -> list[str]:
    """Returns the names in words, of which one may have several behind commas.

    Raises:
        InputError: There is none, as where a variable of a shell is empty, or one is longer than any pattern needs be.
    """
    names = [name for word in wanted for name in word.split(",") if name]
    if not names:
        raise InputError("no job is named", remedy="name jobs, arrays or patterns; `cotenant ps` lists jobs")
    if any(len(name) > _WANTED_CHARACTERS_MAX for name in names):
        raise InputError(f"no name of jobs has over {_WANTED_CHARACTERS_MAX} characters", remedy="`cotenant ps -a`")
    return names


def is_array(name: str) -> bool:
    """Whether a name is the id of one array."""
    return name.startswith(ARRAY_PREFIX) and not is_pattern(name)


def _stands_for_several(name: str) -> bool:
    return name.startswith(ARRAY_PREFIX) or is_pattern(name)


def _all_text(name: str, count: int) -> str:
    kind = "job(s) like" if is_pattern(name) else "task(s) of"
    return agreed(f"all {count} {kind} {name} have" if count > 1 else f"the only {kind.replace('(s)', '')} {name} has")


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern as of file names."""
    return any(mark in name for mark in "*?[")


def _phase_text(phase: scheduling_pb2.JobPhase.ValueType) -> str:
    return scheduling_pb2.JobPhase.Name(phase).removeprefix("JOB_PHASE_").lower()


def _stands_for(name: str, job: scheduling_pb2.Job) -> bool:
    if not is_pattern(name):
        return job.spec.array_id == name
    return any(fnmatchcase(each, name) for each in (job.job_id, job.spec.name, job.spec.array_id) if each)


def complete_job(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers ids and names of jobs to the shell; nothing when the scheduler does not answer at once."""
    settings = resolve_settings({}).settings
    channel = open_channel(settings.channel_options(settings.scheduler))
    try:
        jobs = SchedulerClient(channel, timeout_s=COMPLETION_TIMEOUT_S).list_jobs()
    except CotenantError:
        return []
    words = [word for job in jobs for word in (job.job_id, job.spec.name) if word]
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]

"""Whose job it is, who may change it, and what of it who may see."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from cotenant.access.callers import Caller
from cotenant.access.roles import Role
from cotenant.v1 import scheduling_pb2
from scheduler_service.core.events import Actor
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.tenants import TenantRules
from scheduler_service.errors import NotPermittedError

HIDDEN = "(hidden)"
"""Stands for a value that is not for the caller."""
SAID = " It said: "
"""Comes in a reason before the words of a node, or of a job's output."""


def actor_of(caller: Caller) -> Actor:
    """Return who is noted for the audit."""
    return Actor(role=caller.role or "", name=caller.name, address=caller.address)


def owner_of(job: JobRecord) -> str:
    """Return who handed a job in; empty = unknown."""
    return str(job.submission.launch.get("owner", ""))


def own_submission(
    request: scheduling_pb2.SubmitJobRequest, caller: Caller, rules: TenantRules | None
) -> scheduling_pb2.SubmitJobRequest:
    """Return a submission with the owner and the tenant that the caller's identity gives.

    Args:
        request: The submission.
        caller: Who makes it.
        rules: Whose jobs a user may submit; None = a user is a tenant.

    Raises:
        NotPermittedError: It names another owner or tenant.
    """
    if caller.role is None:
        return request
    own = scheduling_pb2.SubmitJobRequest()
    own.CopyFrom(request)
    if not caller.acts_for_all:
        _check_own("owner", request.spec.owner, (caller.name,), caller)
        tenants = rules.tenants_of(caller.name) if rules is not None else (caller.name,)
        if not tenants:
            raise NotPermittedError(
                f"tenant {caller.name!r} has other users than {caller.name!r}; an operator names each user below a "
                "tenant in the scheduler's --tenants file, or submits the job"
            )
        _check_own("tenant", request.spec.tenant, tenants, caller)
        own.spec.tenant = request.spec.tenant or tenants[0]
    own.spec.owner = request.spec.owner or caller.name
    if caller.acts_for_all and rules is not None and not request.spec.tenant:
        # Whose account names no tenant, as that of `cotenant up`, would else have no quota.
        own.spec.tenant = next(iter(rules.naming(own.spec.owner)), "")
    return own


def _check_own(field: str, value: str, allowed: Sequence[str], caller: Caller) -> None:
    if value and value not in allowed:
        raise NotPermittedError(
            f"the {field} of what {caller.name!r} submits is {' or '.join(map(repr, allowed))}, not {value!r}; leave "
            f"the {field} out, or let an operator submit it"
        )


def may_see(caller: Caller, job: JobRecord) -> bool:
    """Return whether a caller may see that a job is there."""
    return caller.sees_all or owner_of(job) == caller.name


def check_visible(caller: Caller, job: JobRecord) -> None:
    """Look whether a caller may read about a job.

    Raises:
        NotPermittedError: It is another user's.
    """
    if not may_see(caller, job):
        raise NotPermittedError(f"{job.job_id} is another user's; list the jobs to see your own, or ask an operator")


def check_changeable(caller: Caller, job: JobRecord) -> None:
    """Look whether a caller may change a job, or read what it printed.

    Raises:
        NotPermittedError: It is another user's, and the caller is no operator.
    """
    if not caller.acts_for_all and owner_of(job) != caller.name:
        raise NotPermittedError(f"{job.job_id} is another user's; only its owner and operators may do this")


class Visibility(Enum):
    """How much of a job a caller reads."""

    WHOLE = "whole"
    WITHOUT_VALUES = "without the values of its environment"
    WITHOUT_ARGUMENTS = "without these and the arguments of its command"


def visibility_of(caller: Caller, owner: str) -> Visibility:
    """Return how much a caller reads of a job that it may see."""
    is_own = caller.role is None or (caller.role is not Role.VIEWER and owner == caller.name)
    # Of jobs from before there were owners only operators see anything but what is public.
    if is_own or (not owner and caller.acts_for_all):
        return Visibility.WHOLE
    return Visibility.WITHOUT_ARGUMENTS if caller.role is Role.VIEWER else Visibility.WITHOUT_VALUES


def shown(caller: Caller, job: scheduling_pb2.Job) -> scheduling_pb2.Job:
    """Return a job's message without what is not for the caller: values of the environment, for viewers arguments."""
    return redacted(job, visibility_of(caller, job.spec.owner))


def redacted(job: scheduling_pb2.Job, visibility: Visibility) -> scheduling_pb2.Job:
    """Return a job's message, changed, without what is not to be seen."""
    if visibility is Visibility.WHOLE:
        return job
    for name in job.spec.environment:
        job.spec.environment[name] = HIDDEN
    if visibility is Visibility.WITHOUT_ARGUMENTS:
        if len(job.spec.command) > 1:
            job.spec.command[1:] = [HIDDEN]
        job.exit_detail = _without_output(job.exit_detail)
        job.reason.message = job.reason.message.partition(SAID)[0]
    return job


def shown_history(
    caller: Caller, job: JobRecord, history: Sequence[scheduling_pb2.JobEvent]
) -> Sequence[scheduling_pb2.JobEvent]:
    """Return a job's story, changed, without what is not for the caller."""
    said = job.exit.exit_detail
    if said and visibility_of(caller, owner_of(job)) is Visibility.WITHOUT_ARGUMENTS:
        for line in history:
            line.message = line.message.replace(said, _without_output(said))
    return history


def _without_output(detail: str) -> str:
    """Return how a job ended without the words that were found in its output, which viewers do not read."""
    return detail.partition(": ")[0]

"""What is taken out of a job's message for whom."""

from __future__ import annotations

import pytest

from cotenant.access.callers import Caller
from cotenant.access.roles import Role
from cotenant.v1 import scheduling_pb2
from scheduler_service.core.events import JobSubmitted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.tenants import TenantRules, parse_tenants
from scheduler_service.grpc_api.visibility import SAID, Visibility, own_submission, redacted, shown_history
from tests.support.engine_play import Play
from tests.support.scheduling import job

PRINTED = "exit code 127: my-secret-tool: command not found"
TOLD = f"it ended with exit code 127.{SAID}my-secret-tool: command not found"


def failed() -> JobRecord:
    """A job that could not find a command."""
    play = Play()
    play.tell(JobSubmitted, request=job("job"))
    return play.engine.state.jobs["job"].exiting(exit_detail=PRINTED)


@pytest.mark.parametrize(
    ("visibility", "detail", "reason"),
    [
        (Visibility.WHOLE, PRINTED, "it ended with exit code 127." + SAID + "my-secret-tool: command not found"),
        (
            Visibility.WITHOUT_VALUES,
            PRINTED,
            "it ended with exit code 127." + SAID + "my-secret-tool: command not found",
        ),
        (Visibility.WITHOUT_ARGUMENTS, "exit code 127", "it ended with exit code 127."),
    ],
)
def test_what_a_job_printed_is_for_its_owner_and_operators(visibility: Visibility, detail: str, reason: str) -> None:
    message = scheduling_pb2.Job(exit_detail=PRINTED, reason=scheduling_pb2.Reason(message=TOLD))
    found = redacted(message, visibility)
    assert (found.exit_detail, found.reason.message) == (detail, reason)


@pytest.mark.parametrize(("role", "told"), [(Role.VIEWER, "exit code 127"), (Role.OPERATOR, PRINTED)])
def test_nor_does_a_jobs_story_tell_viewers_what_it_printed(role: Role, told: str) -> None:
    story = [scheduling_pb2.JobEvent(kind="failed", message=PRINTED)]
    (line,) = shown_history(Caller(role=role, name="carol"), failed(), story)
    assert line.message == told


RULES = parse_tenants('[tenants.vision]\nusers = ["ann", "root"]\ngpus = 1\n')


@pytest.mark.parametrize(
    ("owner", "tenant", "rules", "expected"),
    [
        ("", "", RULES, "vision"),
        ("ann", "", RULES, "vision"),
        ("ann", "speech", RULES, "speech"),
        ("dan", "", RULES, ""),
        ("", "", None, ""),
    ],
)
def test_a_job_of_an_operator_is_of_the_tenant_that_names_its_owner(
    owner: str, tenant: str, rules: TenantRules | None, expected: str
) -> None:
    """The account of `cotenant up` is an operator, and its quota would hold for nothing."""
    spec = scheduling_pb2.JobSpec(owner=owner, tenant=tenant)
    request = scheduling_pb2.SubmitJobRequest(spec=spec)
    assert own_submission(request, Caller(role=Role.OPERATOR, name="root"), rules).spec.tenant == expected

"""`cotenant wait` lets a script go on when jobs have ended, and says by its exit status how."""

from __future__ import annotations

import copy
import json

import pytest

from cotenant.cli import wait_command
from cotenant.cli.exit_codes import ExitCode
from cotenant.job_watch import WatchEvent, WatchKind
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api import validation
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

FINISHED, FAILED, CANCELLED = (
    scheduling_pb2.JOB_PHASE_FINISHED,
    scheduling_pb2.JOB_PHASE_FAILED,
    scheduling_pb2.JOB_PHASE_CANCELLED,
)


def changed(scheduler: FakeScheduler, job_id: str, phase: scheduling_pb2.JobPhase.ValueType) -> scheduling_pb2.Job:
    job = copy.deepcopy(scheduler.jobs["job-000003"])
    job.job_id, job.phase = job_id, phase
    job.spec.name, job.spec.array_id = "sweep", "array-7"
    job.reason.Clear()
    return job


@for_each(
    ("phases", "code"),
    [
        ((FINISHED, FINISHED), ExitCode.OK),
        ((FINISHED, CANCELLED), ExitCode.JOB_CANCELLED),
        ((CANCELLED, FAILED), ExitCode.JOB_FAILED),
    ],
)
def test_it_ends_with_the_last_of_an_array_and_tells_the_worst_end(
    cotenant: CommandLine, scheduler: FakeScheduler, phases: tuple[scheduling_pb2.JobPhase.ValueType, ...], code: int
) -> None:
    ids = ("job-000007", "job-000008")
    for job_id in ids:
        scheduler.jobs[job_id] = changed(scheduler, job_id, scheduling_pb2.JOB_PHASE_RUNNING)
    scheduler.changes = [changed(scheduler, *each) for each in zip(ids, phases, strict=True)]
    outcome = cotenant("wait", "array-7")
    assert outcome.code == code
    assert [line.split()[0] for line in outcome.out.splitlines()] == list(ids)
    told = json.loads(cotenant("wait", "array-7", "-o", "json").out)
    assert [job["job_id"] for job in told["jobs"]] == list(ids)


def test_of_a_task_that_was_handed_in_again_the_repetition_counts(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    ids = ("job-000007", "job-000008", "job-000009")
    for job_id, phase in zip(ids, (FAILED, FINISHED, FINISHED), strict=True):
        scheduler.jobs[job_id] = changed(scheduler, job_id, phase)
    scheduler.jobs[ids[2]].spec.retry_of = ids[0]
    outcome = cotenant("wait", "array-7")
    assert (outcome.code, [line.split()[0] for line in outcome.out.splitlines()]) == (ExitCode.OK, list(ids[1:]))
    assert cotenant("wait", "job-00000[78]").code == ExitCode.JOB_FAILED
    assert cotenant("wait", ids[0]).code == ExitCode.JOB_FAILED


def test_a_job_that_is_not_there_is_not_waited_for(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("wait", "job-999").code == ExitCode.NOT_FOUND


def test_more_jobs_than_a_watch_may_name_are_waited_for_all_the_same(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_command.WATCHED_JOBS_MAX <= validation.WATCHED_JOBS_MAX
    monkeypatch.setattr(wait_command, "WATCHED_JOBS_MAX", 1)
    for job_id in ("job-7", "job-8"):
        scheduler.jobs[job_id] = changed(scheduler, job_id, FINISHED)
    assert cotenant("wait", "job-7", "job-8").code == ExitCode.OK
    assert [list(each.job_ids) for each in scheduler.seen if isinstance(each, scheduling_pb2.WatchJobsRequest)] == [[]]


def test_a_job_that_is_forgotten_meanwhile_is_waited_for_no_longer(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.jobs["job-7"] = changed(scheduler, "job-7", scheduling_pb2.JOB_PHASE_RUNNING)
    known, end = WatchEvent(kind=WatchKind.JOB, job=scheduler.jobs["job-7"]), WatchEvent(kind=WatchKind.SNAPSHOT_END)
    events = [known, end, WatchEvent(kind=WatchKind.DISCONNECTED), end]
    monkeypatch.setattr(wait_command, "watch_jobs", lambda client, job_ids: iter(events))
    outcome = cotenant("wait", "job-7")
    assert (outcome.code, "job-7 is not known any more" in outcome.err) == (1, True)


def test_why_a_job_failed_is_folded_between_words_on_a_terminal_only(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scheduler.jobs["job-7"] = changed(scheduler, "job-7", FAILED)
    job.reason.code, job.reason.message = "JOB_ERROR", "The program ended. " + "It said so. " * 20
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(cotenant("wait", "job-7").out.splitlines()) == 1
    monkeypatch.setenv("COLUMNS", "80")
    lines = cotenant("wait", "job-7").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 3

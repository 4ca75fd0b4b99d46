"""A name means the job that still goes on where earlier runs of the same script have it too."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest

from cotenant.cli.job_lookup import find_job, find_jobs
from cotenant.cli.queue_options import find_parents
from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import InputError, NotFoundError
from cotenant.v1 import scheduling_pb2
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler


def add(scheduler: FakeScheduler, job_id: str, phase: scheduling_pb2.JobPhase.ValueType) -> None:
    job = copy.deepcopy(scheduler.jobs["job-000003"])
    job.job_id, job.phase = job_id, phase
    scheduler.jobs[job_id] = job


def test_a_name_means_the_only_one_of_several_runs_that_has_not_ended(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    add(scheduler, "job-000007", scheduling_pb2.JOB_PHASE_FINISHED)
    add(scheduler, "job-000008", scheduling_pb2.JOB_PHASE_FAILED)
    assert cotenant("cancel", "resnet").out == "job-000003  resnet  cancelled\n"


def test_several_that_may_be_meant_are_named_with_their_phases(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    add(scheduler, "job-000007", scheduling_pb2.JOB_PHASE_PENDING)
    outcome = cotenant("cancel", "resnet")
    assert outcome.code == 2
    for each in ("job-000003 (pending)", "job-000007 (pending)"):
        assert each in outcome.err


def test_what_repeats_a_run_means_the_one_that_has_ended(scheduler: FakeScheduler) -> None:
    add(scheduler, "job-000007", scheduling_pb2.JOB_PHASE_FAILED)
    with open_channel(ChannelOptions(address=os.environ["COTENANT_SCHEDULER"])) as channel:
        client = SchedulerClient(channel)
        assert find_job(client, "resnet", ended=True).job_id == "job-000007"
        assert find_job(client, "resnet").job_id == "job-000003"


@for_each("verb", ["logs", "describe", "explain"])
def test_an_array_is_no_job_and_its_tasks_are_named(cotenant: CommandLine, scheduler: FakeScheduler, verb: str) -> None:
    for number in (7, 8):
        add(scheduler, f"job-00000{number}", scheduling_pb2.JOB_PHASE_FINISHED)
        scheduler.jobs[f"job-00000{number}"].spec.array_id = "array-7"
    outcome = cotenant(verb, "array-7")
    assert outcome.code == 2
    assert "array-7 is an array of 2 jobs" in outcome.err
    for job_id in ("job-000007", "job-000008"):
        assert job_id in outcome.err


def test_the_number_of_a_job_names_it_alone(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    add(scheduler, "job-57", scheduling_pb2.JOB_PHASE_PENDING)
    add(scheduler, "job-571", scheduling_pb2.JOB_PHASE_PENDING)
    assert cotenant("cancel", "57").out == "job-57  resnet  cancelled\n"
    assert cotenant("describe", "5").code == 3


def test_jobs_are_cancelled_by_a_pattern_of_their_names_or_ids(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    phases = (scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_PENDING, scheduling_pb2.JOB_PHASE_RUNNING)
    for number, phase in enumerate(phases, start=20):
        add(scheduler, f"job-{number}", phase)
        scheduler.jobs[f"job-{number}"].spec.name = f"sweep-{number}"
    assert cotenant("cancel", "sweep-*").out == "job-21  sweep-21  cancelled\njob-22  sweep-22  cancelled\n"
    add(scheduler, "job-23", scheduling_pb2.JOB_PHASE_PENDING)
    add(scheduler, "job-24", scheduling_pb2.JOB_PHASE_PENDING)
    assert cotenant("cancel", "job-2[3],job-24").out == "job-23  resnet  cancelled\njob-24  resnet  cancelled\n"
    outcome = cotenant("cancel", "nothing-*")
    assert (outcome.code, "remedy: `cotenant ps -a`" in outcome.err) == (3, True)


@for_each("verb", ["cancel", "wait", "hold", "retry"])
@for_each("word", ["", ","])
def test_a_word_without_a_name_is_refused_and_means_neither_all_jobs_nor_none(
    cotenant: CommandLine, scheduler: FakeScheduler, verb: str, word: str
) -> None:
    outcome = cotenant(verb, word)
    assert (outcome.code, outcome.err.splitlines()[0]) == (2, "error: no job is named")
    assert not scheduler.seen


@pytest.mark.usefixtures("scheduler")
def test_a_pattern_that_is_longer_than_any_name_is_not_matched(cotenant: CommandLine) -> None:
    assert "no name of jobs has over 200 characters" in cotenant("cancel", "[" * 201).err
    assert cotenant("cancel", "[a-").code == 3


def test_arrays_are_cancelled_among_jobs_and_by_a_pattern(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    for number in (30, 31, 32):
        add(scheduler, f"job-{number}", scheduling_pb2.JOB_PHASE_PENDING)
        scheduler.jobs[f"job-{number}"].spec.array_id = f"array-{number}"
    outcome = cotenant("cancel", "array-30,job-000003")
    assert outcome.err == "array-30: 1 task cancelled\n"
    assert outcome.out == "job-000003  resnet  cancelled\n"
    assert cotenant("cancel", "array-3[12]").out.split()[::3] == ["job-31", "job-32"]


def test_what_fits_a_pattern_in_no_asked_phase_is_told_in_phases_that_jobs_have(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    add(scheduler, "job-23", scheduling_pb2.JOB_PHASE_RUNNING)
    told = cotenant("hold", "job-2*")
    assert (told.code, told.err.splitlines()[0]) == (2, "error: no job like job-2* is pending")


def test_to_cancel_once_more_what_a_pattern_stands_for_is_harmless_as_it_is_of_a_job(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    add(scheduler, "job-23", scheduling_pb2.JOB_PHASE_RUNNING)
    add(scheduler, "job-24", scheduling_pb2.JOB_PHASE_FINISHED)
    assert cotenant("cancel", "job-2*").out == "job-23  resnet  cancelled\n"
    again = cotenant("cancel", "job-2*")
    assert (again.code, again.out, again.err) == (0, "", "all 2 jobs like job-2* have ended\n")
    assert cotenant("cancel", "job-23").code == 0
    more = cotenant("cancel", "job-24*,job-000003")
    assert (more.code, more.err) == (0, "the only job like job-24* has ended\n")
    assert more.out == "job-000003  resnet  cancelled\n"


@pytest.mark.usefixtures("scheduler")
def test_an_order_that_finds_only_ended_jobs_fails_and_says_that_they_have_ended(cotenant: CommandLine) -> None:
    cotenant("cancel", "job-*")
    told = cotenant("hold", "job-*")
    assert told.code == 2
    assert " like job-* is pending: " in told.err
    assert told.err.splitlines()[0].endswith(" ended")


class CountingClient(SchedulerClient):
    """Counts how often all jobs are listed."""

    lists = 0

    def list_jobs(self, **asked: Any) -> list[scheduling_pb2.Job]:
        self.lists += 1
        return super().list_jobs(**asked)


def test_all_jobs_are_listed_once_for_all_patterns_of_a_command(scheduler: FakeScheduler) -> None:
    for number in (51, 52, 53):
        add(scheduler, f"job-{number}", scheduling_pb2.JOB_PHASE_PENDING)
    with open_channel(ChannelOptions(address=os.environ["COTENANT_SCHEDULER"])) as channel:
        client = CountingClient(channel)
        found = find_jobs(client, ["job-5[12]", "job-53*", "job-000003"], phases=[scheduling_pb2.JOB_PHASE_PENDING])
    assert found == ["job-51", "job-52", "job-53", "job-000003"]
    assert client.lists == 1


def test_a_failed_job_that_was_handed_in_again_is_not_retried_by_a_pattern_that_its_repetition_does_not_fit(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    add(scheduler, "job-41", scheduling_pb2.JOB_PHASE_FAILED)
    add(scheduler, "job-50", scheduling_pb2.JOB_PHASE_PENDING)
    scheduler.jobs["job-50"].spec.retry_of = "job-41"
    assert "no job like job-4? is failed or cancelled" in cotenant("retry", "job-4?").err


@for_each("named", ["job-41", "41", "unet"])
def test_a_job_whose_repetition_has_not_ended_is_not_handed_in_once_more(
    cotenant: CommandLine, scheduler: FakeScheduler, named: str
) -> None:
    """Both would write into one folder."""
    add(scheduler, "job-41", scheduling_pb2.JOB_PHASE_FAILED)
    add(scheduler, "job-50", scheduling_pb2.JOB_PHASE_RUNNING)
    scheduler.jobs["job-50"].spec.retry_of = "job-41"
    for job_id in ("job-41", "job-50"):
        scheduler.jobs[job_id].spec.name = "unet"
    told = cotenant("retry", named)
    assert (told.code, told.out) == (2, "")
    assert told.err.splitlines()[0] == "error: job-41 was handed in again: job-50 is running"
    assert "cotenant cancel job-50 first" in told.err
    scheduler.jobs["job-50"].phase = scheduling_pb2.JOB_PHASE_FAILED
    assert "handed in again" not in cotenant("retry", "job-41").err


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_whose_repetition_was_itself_repeated_is_not_handed_in_beside_that(
    cotenant: CommandLine, scheduler: FakeScheduler, is_known: bool
) -> None:
    for number, phase in enumerate(("FAILED", "FAILED", "RUNNING"), start=41):
        add(scheduler, f"job-{number}", scheduling_pb2.JobPhase.Value(f"JOB_PHASE_{phase}"))
        scheduler.jobs[f"job-{number}"].spec.retry_of = f"job-{number - 1}"  # of job-40 nothing is known any more
    if not is_known:
        del scheduler.jobs["job-42"]
    told = cotenant("retry", "job-41").err
    assert ("job-41 was handed in again: job-43 is running" in told) is is_known


def test_jobs_are_handed_in_again_oldest_first_so_that_a_child_finds_the_repetition_of_its_parent(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (9, 41, 100):
        add(scheduler, f"job-{number}", scheduling_pb2.JOB_PHASE_FAILED)
    asked = list[str]()

    def retried(client: SchedulerClient, job_id: str, *, force: bool = False) -> scheduling_pb2.RetryJobResponse:
        asked.append(job_id)
        return scheduling_pb2.RetryJobResponse(job=scheduler.jobs[job_id])

    monkeypatch.setattr(SchedulerClient, "retry_job", retried)
    assert cotenant("retry", "job-100", "job-41", "job-9").code == 0
    assert asked == ["job-9", "job-41", "job-100"]


def test_what_was_handed_in_again_is_told_although_a_later_one_is_refused(
    cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (8, 9):
        add(scheduler, f"job-{number}", scheduling_pb2.JOB_PHASE_FAILED)

    def retried(client: SchedulerClient, job_id: str, *, force: bool = False) -> scheduling_pb2.RetryJobResponse:
        if job_id == "job-9":
            raise InputError("it comes after job-2, which has not finished", remedy="retry job-2 first")
        return scheduling_pb2.RetryJobResponse(job=scheduling_pb2.Job(job_id="job-12"))

    monkeypatch.setattr(SchedulerClient, "retry_job", retried)
    outcome = cotenant("retry", "job-8", "job-9", "-o", "name")
    assert outcome.code != 0
    assert outcome.out.split() == ["job-12"]
    assert "job-2" in outcome.err


def test_a_job_may_wait_for_all_that_fit_a_pattern_and_for_an_array_by_its_id(scheduler: FakeScheduler) -> None:
    for number, phase in enumerate((scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_PENDING), start=61):
        add(scheduler, f"job-{number}", phase)
    spec = scheduling_pb2.JobSpec(after_job_ids=["job-6?", "array-7", "62"], after_any=True)
    with open_channel(ChannelOptions(address=os.environ["COTENANT_SCHEDULER"])) as channel:
        find_parents(SchedulerClient(channel), spec)
        assert list(spec.after_job_ids) == ["job-61", "job-62", "array-7"]
        with pytest.raises(NotFoundError, match=r"no job has an id or name like nothing-\*"):
            find_parents(SchedulerClient(channel), scheduling_pb2.JobSpec(after_job_ids=["nothing-*"]))

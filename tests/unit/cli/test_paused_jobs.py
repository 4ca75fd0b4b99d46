"""A paused job reads as such, with since when, for how long at most, and why."""

from __future__ import annotations

import pytest

from cotenant.cli.formats import OutputFormat
from cotenant.cli.job_commands import tell_jobs
from cotenant.cli.session import Session
from cotenant.cli.settings import resolve_settings
from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import NOW_MS, CommandLine
from tests.support.fake_services import FakeScheduler

WHY = scheduling_pb2.Reason(code="SLOWDOWN_TOO_HIGH", message="Steps took 31 % longer, 20 % are accepted.")


@pytest.fixture
def paused(scheduler: FakeScheduler) -> FakeScheduler:
    job = scheduler.jobs["job-000002"]
    job.pause.CopyFrom(scheduling_pb2.JobPause(since_ms=NOW_MS - 12_000, until_ms=NOW_MS + 48_000, reason=WHY))
    job.paused_ms = 12_000
    return scheduler


def test_the_list_says_since_when_and_why_a_job_is_paused(cotenant: CommandLine, paused: FakeScheduler) -> None:
    text = " ".join(cotenant("ps").out.split())
    assert "job-000002 lstm-waiting paused" in text
    assert "(12s), until" in text
    assert "at the latest: SLOWDOWN_TOO_HIGH: Steps took 31 % longer" in text.replace(" └", "")
    assert "job-000001 cnn-waiting running" in text


def test_paused_and_running_jobs_are_told_apart_by_phase(cotenant: CommandLine, paused: FakeScheduler) -> None:
    assert cotenant("ps", "--phase", "paused", "-o", "name").out == "job-000002\n"
    assert cotenant("ps", "--phase", "running", "-o", "name").out == "job-000001\n"
    both = cotenant("ps", "--phase", "running", "--phase", "paused", "-o", "name").out
    assert both == "job-000002\njob-000001\n"


def test_the_page_of_a_job_says_how_long_it_stood_still(cotenant: CommandLine, paused: FakeScheduler) -> None:
    text = " ".join(cotenant("describe", "job-000002").out.split())
    assert "phase paused" in text
    assert "paused since 20" in text
    assert "paused for 12s in sum" in text
    paused.jobs["job-000002"].pause.resuming = True
    assert "is about to go on: SLOWDOWN_TOO_HIGH" in " ".join(cotenant("describe", "job-000002").out.split())
    paused.jobs["job-000002"].ClearField("pause")
    text = " ".join(cotenant("describe", "job-000002").out.split())
    assert "phase running" in text
    assert "paused since" not in text


def test_jobs_are_paused_for_so_long_and_resumed_by_name(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    outcome = cotenant("pause", "cnn-waiting", "job-000002", "--seconds", "3")
    assert outcome.out.splitlines() == ["job-000001  cnn-waiting  paused", "job-000002  lstm-waiting  paused"]
    orders = [one for one in scheduler.seen if isinstance(one, scheduling_pb2.PauseJobRequest)]
    assert [(one.job_id, one.paused_ms_max) for one in orders] == [("job-000001", 3_000), ("job-000002", 3_000)]
    assert len({one.request_id for one in orders}) == 2
    assert cotenant("resume", "job-000002", "-o", "name").out == "job-000002\n"
    assert cotenant("resume", "job-000001").out == "job-000001  cnn-waiting  running\n"


def test_running_jobs_are_paused_and_resumed_by_a_pattern_and_by_arrays(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    scheduler.jobs["job-000002"].spec.array_id = "array-2"
    for words in (["lstm-*"], ["array-2"]):
        assert cotenant("pause", *words).out.split() == ["job-000002", "lstm-waiting", "paused"]
        assert cotenant("resume", *words, "-o", "name").out == "job-000002\n"
    assert cotenant("pause", "nothing-*").code == 3


def test_an_answer_says_what_was_done_where_the_phase_does_not(
    scheduler: FakeScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    session, job = Session(resolved=resolve_settings({}), output=OutputFormat.TABLE), scheduler.jobs["job-000002"]
    tell_jobs(session, [job], done="held")
    job.pause.since_ms = 1
    tell_jobs(session, [job], done="pause of 60 s at most ordered")
    job.pause.resuming = True
    tell_jobs(session, [job])
    assert [line.partition("lstm-waiting  ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "running, held",
        "paused",
        "paused, about to go on",
    ]


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "2.5", "nan", "inf", "soon"])
def test_a_length_that_cannot_be_is_refused_before_anything_is_asked(
    cotenant: CommandLine, scheduler: FakeScheduler, seconds: str
) -> None:
    assert cotenant("pause", "cnn-waiting", "--seconds", seconds).code == 2
    assert not [one for one in scheduler.seen if isinstance(one, scheduling_pb2.PauseJobRequest)]


def test_where_no_job_is_in_a_phase_no_cluster_is_called_empty(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert "no such jobs; `cotenant ps -a` lists all" in cotenant("ps", "--phase", "cancelled").err
    scheduler.jobs.clear()
    assert "no jobs; submit one with `cotenant submit`" in cotenant("ps").err

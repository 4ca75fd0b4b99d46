"""A list that is cut shows first what a person asks after: what runs, then what waits, then what ended last."""

from __future__ import annotations

import copy

from cotenant.cli.job_commands import SHOWN_BY_DEFAULT
from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import NOW_MS, CommandLine
from tests.support.fake_services import FakeScheduler


def put_newer_jobs_first(scheduler: FakeScheduler, count: int, phase: scheduling_pb2.JobPhase.ValueType) -> None:
    """Sets before all jobs of the scheduler so many others of one phase."""
    newer = [
        scheduling_pb2.Job(
            job_id=f"job-{1_000 + number:06}",
            spec=scheduling_pb2.JobSpec(name="newer"),
            phase=phase,
            submitted_at_ms=NOW_MS,
            finished_at_ms=NOW_MS,
        )
        for number in reversed(range(count))
    ]
    scheduler.jobs = {job.job_id: job for job in [*newer, *scheduler.jobs.values()]}


def test_hundreds_of_cancelled_tasks_do_not_hide_what_runs_and_waits(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    put_newer_jobs_first(scheduler, 200, scheduling_pb2.JOB_PHASE_CANCELLED)
    outcome = cotenant("ps")
    rows = [line.split()[0] for line in outcome.out.splitlines() if line.startswith("job-")]
    assert rows[: SHOWN_BY_DEFAULT - 3] == [f"job-{1_199 - number:06}" for number in range(SHOWN_BY_DEFAULT - 3)]
    assert rows[SHOWN_BY_DEFAULT - 3 :] == ["job-000003", "job-000002", "job-000001"]
    assert outcome.err == "153 more jobs not shown (-a shows all)\n"


def test_a_long_queue_does_not_hide_what_runs(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    put_newer_jobs_first(scheduler, 60, scheduling_pb2.JOB_PHASE_PENDING)
    out = cotenant("ps").out
    assert "cnn-waiting" in out
    assert "lstm-waiting" in out
    assert out.count("newer") == SHOWN_BY_DEFAULT - 2


def test_a_job_that_has_ended_is_explained_by_its_end_and_not_by_a_later_decision_about_others(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    job = scheduler.jobs["job-000003"]
    job.phase, job.finished_at_ms = scheduling_pb2.JOB_PHASE_FAILED, NOW_MS - 5_000
    scheduler.explanations["job-000003"].job.CopyFrom(job)
    lines = cotenant("explain", "job-000003").out.splitlines()
    assert [line for line in lines if line.startswith(("ended", "decided"))] == ["ended    2026-09-21T14:13:15Z"]


def test_a_job_that_was_cancelled_by_nobody_says_why(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    for code, message in (("PARENT_FAILED", "The job was to start after job-1."), ("CANCELLED", "It was cancelled.")):
        job = copy.deepcopy(scheduler.jobs["job-000003"])
        job.job_id, job.phase = f"job-{code}", scheduling_pb2.JOB_PHASE_CANCELLED
        job.reason.CopyFrom(scheduling_pb2.Reason(code=code, message=message))
        scheduler.jobs[job.job_id] = job
    shown = cotenant("ps").out
    assert ("PARENT_FAILED: The job was to start after job-1." in shown, "It was cancelled" in shown) == (True, False)


def test_jobs_that_wait_for_the_same_reason_tell_it_once(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    first = scheduler.jobs["job-000001"]
    scheduler.jobs.clear()
    for name in ("job-7", "job-8", "job-70", "job-9"):
        job = scheduling_pb2.Job(job_id=name, phase=scheduling_pb2.JOB_PHASE_PENDING, spec=first.spec)
        code, what = ("LIMIT", "is over its limit") if name == "job-9" else ("UNKNOWN", "takes long")
        job.reason.CopyFrom(scheduling_pb2.Reason(code=code, message=f"{name} {what}."))
        scheduler.jobs[name] = job
    text = cotenant("ps").out
    shown = [line.strip() for line in text.splitlines() if "└" in line]
    newest = next(line.split()[0] for line in text.splitlines() if line.startswith("job-") and "job-9 " not in line)
    as_newest = f"└ UNKNOWN, as {newest}"
    assert sorted(shown) == [
        "└ LIMIT: job-9 is over its limit.",
        as_newest,
        as_newest,
        f"└ UNKNOWN: {newest} takes long.",
    ]

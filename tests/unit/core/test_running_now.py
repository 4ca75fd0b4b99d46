"""Running jobs are shown as they are now, not as they were at their newest report."""

from __future__ import annotations

import pytest

from scheduler_service.core.cluster_view.progress_extrapolation import ExtrapolatedJobs, ReportedJobs, extrapolated
from scheduler_service.core.jobs.job_records import JobRecord
from tests.support.scheduling import job, running


@pytest.mark.parametrize(
    ("changes", "steps_done"),
    [
        ({"step_ms": 100.0}, 25),
        ({"step_ms": 0.0}, 5),
        ({"step_ms": 100.0, "is_stopping": True}, 5),
        ({"step_ms": 0.1}, 99),
    ],
    ids=["at the measured pace", "not yet measured", "while it stops", "never to its end"],
)
def test_steps_go_on_since_the_newest_report(changes: dict[str, object], steps_done: int) -> None:
    reported = running(job(steps_total=100), ["g0", "g1"], steps_done=5, accrued_at_ms=1_000, **changes)
    now = extrapolated(reported, 3_000)
    assert (now.steps_done, now.attained_gpu_ms, now.accrued_at_ms) == (steps_done, 4_000, 3_000)
    assert extrapolated(now, 3_000) is now


def test_a_view_of_running_jobs_keeps_their_order_and_names() -> None:
    reported = {name: running(job(name), ["g0"]) for name in ("b", "a")}
    now = ExtrapolatedJobs(reported, 10)
    assert list(now) == ["b", "a"]
    assert "a" in now
    assert "c" not in now
    assert [one.attained_gpu_ms for one in now.values()] == [10, 10]


def test_a_record_is_copied_with_known_fields_only() -> None:
    record = JobRecord(request=job("a"), steps_done=3)
    assert record.changed(steps_done=4) == JobRecord(request=job("a"), steps_done=4)
    assert record.steps_done == 3
    with pytest.raises(TypeError, match="JobRecord has no steps"):
        record.changed(steps=4)


def test_reported_jobs_show_the_newest_report_in_start_order() -> None:
    reported = ReportedJobs()
    for name in ("b", "a"):
        reported.put(JobRecord(request=job(name)))
    assert [one.steps_done for one in reported.values()] == [0, 0]
    reported.put(JobRecord(request=job("b"), steps_done=7))
    assert {name: one.steps_done for name, one in reported.items()} == {"b": 7, "a": 0}
    reported.drop("b")
    assert list(reported) == ["a"]
    assert "b" not in reported

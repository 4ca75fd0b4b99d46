"""GPUs that were looked at for a job: each says what is its own, and nothing that stands above the table."""

from __future__ import annotations

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

TOLD = "How long the job takes is not known, so that sharing cannot be weighed and it waits for a GPU of its own."


@pytest.mark.parametrize("columns", ["80", "200"])
def test_a_reason_that_all_gpus_share_is_said_once(
    columns: str, cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    job = next(iter(scheduler.jobs.values()))
    same = scheduling_pb2.Reason(code="REMAINING_TIME_UNKNOWN", message=TOLD)
    other = scheduling_pb2.Reason(code="SHARE_NOT_ALLOWED", message="job-9 shares no GPU.")
    answer = scheduling_pb2.ExplainJobResponse(job=job, reason=same)
    for place, reason in enumerate((same, same, other)):
        answer.candidates.add(gpu_id=f"gpu-{place}", reason=reason)
    answer.candidates[0].co_located_jobs.add(job_id="job-77")
    scheduler.explanations[job.job_id] = answer
    text = " ".join(cotenant("explain", job.job_id).out.split())
    assert text.count("so that sharing cannot be weighed") == 1
    assert text.count("REMAINING_TIME_UNKNOWN") == 3
    assert "job-9 shares no GPU" in text
    assert "with job-77: slowdown unknown" in text

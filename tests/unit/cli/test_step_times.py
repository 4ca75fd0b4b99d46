"""What the pages of a job say of its step times on several numbers of GPUs."""

from __future__ import annotations

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

STEP_TIMES = (
    (1, 800.0, "MEASURED", 1),
    (2, 500.0, "FITTED", 3),
    (4, 300.0, "CORRECTED", 2),
    (8, 200.0, "FORESEEN", 0),
    (16, 100.0, "UNSPECIFIED", 0),
)
SERVED = scheduling_pb2.KnownStepTime(
    gpus=2, servers=3, step_ms=250.0, basis=scheduling_pb2.STEP_TIME_BASIS_MEASURED, measurements=1
)


@pytest.fixture
def scheduler_with_speeds(scheduler: FakeScheduler) -> FakeScheduler:
    job = scheduler.jobs["job-000002"]
    del job.predictions[:]
    job.predictions.add(
        device="NVIDIA L4",
        step_times=[
            scheduling_pb2.KnownStepTime(
                gpus=gpus,
                micro_batch_size=16,
                step_ms=step_ms,
                basis=scheduling_pb2.StepTimeBasis.Value(f"STEP_TIME_BASIS_{basis}"),
                measurements=measurements,
            )
            for gpus, step_ms, basis, measurements in STEP_TIMES
        ]
        + [SERVED],
    )
    scheduler.explanations["job-000002"] = scheduling_pb2.ExplainJobResponse(job=job)
    return scheduler


@pytest.mark.parametrize("verb", ["describe", "explain"])
def test_a_page_says_what_each_step_time_is_based_on(
    cotenant: CommandLine, scheduler_with_speeds: FakeScheduler, verb: str
) -> None:
    text = " ".join(cotenant(verb, "job-000002").out.split())
    assert "on 1 GPU 800 ms (measured), NVIDIA L4" in text
    assert "on 2 GPUs with 3 servers 250 ms (measured), NVIDIA L4" in text
    assert "on 2 GPUs 500 ms (fitted to 3 measurements), NVIDIA L4" in text
    assert "on 4 GPUs 300 ms (foreseen, corrected by 2 measured), NVIDIA L4" in text
    assert "on 8 GPUs 200 ms (foreseen), NVIDIA L4" in text
    assert "on 16 GPUs 100 ms (basis not known), NVIDIA L4" in text, "a newer scheduler may know another one"

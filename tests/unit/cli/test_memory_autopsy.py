"""What the owner of a job that ran out of device memory reads."""

from __future__ import annotations

import pytest

from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

GIB = 1 << 30


@pytest.fixture
def scheduler_with_autopsy(scheduler: FakeScheduler) -> FakeScheduler:
    job = scheduler.jobs["job-000002"]
    job.exit_detail = "rank 1 of 2 ended first: exit code 3"
    job.memory_autopsy.CopyFrom(
        scheduling_pb2.MemoryAutopsy(
            attempt=2, gpu_id="GPU-7", gpu_memory_bytes=16 * GIB, micro_batch_size=64, predicted_bytes=5 * GIB,
            predicted_upper_99_bytes=7 * GIB, reserved_bytes=8 * GIB, peak_bytes=9 * GIB, available_bytes=10 * GIB,
            co_located_job_ids=["job-3", "job-4"], detail="it tried to allocate 2.00 GiB", micro_batch_size_max=32,
        )
    )  # fmt: skip
    return scheduler


def test_the_page_of_a_job_says_how_its_memory_ran_out(
    cotenant: CommandLine, scheduler_with_autopsy: FakeScheduler
) -> None:
    text = " ".join(cotenant("describe", "job-000002").out.split())
    assert "attempt 2 ran out of it on GPU-7, which has 16.00 GiB" in text
    assert "predicted 5.00 GiB, at most 7.00 GiB, reserved 8.00 GiB, used 9.00 GiB, 10.00 GiB left to it" in text
    assert "64 samples at once" in text
    assert "co-located then: job-3, job-4" in text
    assert "it tried to allocate 2.00 GiB" in text
    assert "at most 32 samples at once from now on" in text
    assert "ended rank 1 of 2 ended first: exit code 3" in text


def test_what_is_not_known_is_not_shown_as_nothing(
    cotenant: CommandLine, scheduler_with_autopsy: FakeScheduler
) -> None:
    autopsy = scheduler_with_autopsy.jobs["job-000002"].memory_autopsy
    autopsy.ClearField("predicted_bytes")
    autopsy.ClearField("peak_bytes")
    autopsy.ClearField("co_located_job_ids")
    text = " ".join(cotenant("describe", "job-000002").out.split())
    assert "nothing was predicted, reserved 8.00 GiB, its use was not seen" in text
    assert "co-located then: no other job" in text

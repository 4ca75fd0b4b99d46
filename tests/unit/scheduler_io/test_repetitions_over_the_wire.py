"""Jobs handed in again by several callers at once, over a real channel."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.grpc_api.queue.repetitions import OneAtATime
from tests.support.live_scheduler import running_scheduler

CALLS = 8
TIMEOUT_S = 90.0
SLOW_DISK_S = 0.5


def slow_down_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while the disk writes is looked at together."""
    append = SqliteEventLog.append

    def slow(log: SqliteEventLog, records: Sequence[LogRecord]) -> None:
        time.sleep(SLOW_DISK_S)
        append(log, records)

    monkeypatch.setattr(SqliteEventLog, "append", slow)


def test_of_callers_who_hand_one_job_in_again_at_once_one_is_heard_and_repeats_itself_harmlessly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_scheduler(tmp_path) as address, grpc.insecure_channel(address) as channel:
        stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        spec = scheduling_pb2.JobSpec(name="train", command=["python", "t.py"])
        submission = scheduling_pb2.SubmitJobRequest(spec=spec, force=True)
        job_id = stub.SubmitJob(submission, timeout=TIMEOUT_S).job.job_id
        stub.CancelJob(scheduling_pb2.CancelJobRequest(job_id=job_id), timeout=TIMEOUT_S)
        requests = [
            scheduling_pb2.RetryJobRequest(request_id=str(uuid.uuid4()), job_id=job_id, force=True)
            for _ in range(CALLS)
        ]
        slow_down_the_disk(monkeypatch)
        other = stub.SubmitJob.future(submission, timeout=TIMEOUT_S)
        time.sleep(SLOW_DISK_S / 2)
        calls = [stub.RetryJob.future(request, timeout=TIMEOUT_S) for request in requests]
        codes = [call.code() for call in calls]
        assert sorted(code.name for code in codes) == ["FAILED_PRECONDITION"] * (CALLS - 1) + ["OK"]
        heard = codes.index(grpc.StatusCode.OK)
        again = stub.RetryJob(requests[heard], timeout=TIMEOUT_S)
        assert again.job.job_id == calls[heard].result().job.job_id
        listed = stub.ListJobs(scheduling_pb2.ListJobsRequest(), timeout=TIMEOUT_S).jobs
        assert {job.job_id for job in listed} == {job_id, other.result().job.job_id, again.job.job_id}


def test_a_caller_that_goes_while_it_waits_hands_nothing_in_and_what_was_begun_is_stored_to_its_end() -> None:
    """Else callers with short deadlines would fill the memory while a disk is slow."""
    stored, disk_is_ready = list[str](), asyncio.Event()

    async def store(job_id: str) -> str:
        await disk_is_ready.wait()
        stored.append(job_id)
        return job_id

    async def work() -> None:
        turns = OneAtATime()
        calls = [asyncio.ensure_future(turns.run(partial(store, job_id))) for job_id in ("begun", "waiting", "last")]
        await asyncio.sleep(0)
        for gone in calls[:2]:
            gone.cancel()
        await asyncio.sleep(0)
        assert stored == []
        disk_is_ready.set()
        assert await calls[2] == "last"

    asyncio.run(work())
    assert stored == ["begun", "last"]

"""The Python client: pages, chunks, retries, a watch that survives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import grpc
import pytest

from cotenant import client, system_clock
from cotenant.call_retries import service_config
from cotenant.client import ChannelOptions, PredictorClient, SchedulerClient, open_channel
from cotenant.client_errors import UnavailableError
from cotenant.graph_file import graph_sha256
from cotenant.job_watch import WatchKind, watch_jobs
from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import ended_job, sample_scheduler
from tests.support.fake_services import FakePredictor, serving


def test_a_watch_goes_on_after_the_scheduler_dropped_it() -> None:
    fake = sample_scheduler()
    fake.changes = [ended_job(scheduling_pb2.JOB_PHASE_FINISHED)]
    kinds = []
    with serving(fake) as address:
        for event in watch_jobs(SchedulerClient(open_channel(ChannelOptions(address=address)))):
            kinds.append(event.kind)
            if event.job is not None and event.job.job_id == "job-000009" and WatchKind.DISCONNECTED in kinds:
                break
    assert kinds[:3] == [WatchKind.JOB] * 3
    assert kinds[3:6] == [WatchKind.SNAPSHOT_END, WatchKind.JOB, WatchKind.DISCONNECTED]


def test_a_watch_gives_up_when_patience_ends() -> None:
    channel = open_channel(ChannelOptions(address="127.0.0.1:1"))
    events = watch_jobs(SchedulerClient(channel, address="127.0.0.1:1"), patience_ms=0)
    seen: list[WatchKind | str] = []
    try:
        seen.extend(event.kind for event in events)
    except UnavailableError as error:
        seen.append(error.message)
    assert seen[-1] == "the scheduler at 127.0.0.1:1 cannot be reached"


def test_a_watch_of_which_nothing_was_heard_for_long_goes_on_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0
    monkeypatch.setattr(system_clock, "steady_ms", lambda: now_ms)

    class QuietScheduler:
        """Breaks a watch after ten minutes without a word."""

        def open_watch(self, job_ids: Sequence[str]) -> Iterator[scheduling_pb2.WatchJobsResponse]:
            nonlocal now_ms
            yield scheduling_pb2.WatchJobsResponse(snapshot_end=True)
            now_ms += 600_000
            raise UnavailableError("it cannot be reached", code=grpc.StatusCode.UNAVAILABLE)

    watch = watch_jobs(cast("SchedulerClient", QuietScheduler()))
    kinds = [event.kind for event in islice(watch, 4)]
    assert kinds == [WatchKind.SNAPSHOT_END, WatchKind.DISCONNECTED] * 2


def test_a_graph_is_uploaded_in_chunks() -> None:
    fake = FakePredictor()
    graph = bytes(3 * client.UPLOAD_CHUNK_BYTES + 5)
    with serving(fake) as address:
        answer = PredictorClient(open_channel(ChannelOptions(address=address))).upload_graph(graph)
    assert answer.graph_sha256 == graph_sha256(graph)
    assert fake.graphs[answer.graph_sha256] == graph


def test_only_repeatable_methods_are_retried() -> None:
    config = json.loads(json.dumps(service_config()))["methodConfig"][0]
    named = {name["method"] for name in config["name"]}
    assert {"GetJob", "SubmitJob", "PredictJob"} <= named
    assert named.isdisjoint({"WatchJobs", "ReadJobLog", "UploadGraph", "SetPolicy"})
    assert config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]

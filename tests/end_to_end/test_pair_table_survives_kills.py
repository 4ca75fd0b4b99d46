"""Agents repeat what they measured while scheduler and predictor are killed: the table has every window once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.client import ChannelOptions, PredictorClient, open_channel
from cotenant.client_errors import ServiceError
from cotenant.local_cluster import Program
from cotenant.v1 import prediction_pb2, resources_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.forked_cluster import fork_programs
from tests.support.scheduler_process import SchedulerProcess, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 240.0
CO_LOCATED = 6
"""Windows with co-located jobs, of each machine."""


def measured(machine: int) -> list[resources_pb2.MeasurementWindow]:
    """One job alone, and often co-located with another one that makes it take twice as long."""
    jobs = [
        resources_pb2.MeasuredJob(graph_sha256=digits * 32, settings=resources_pb2.JobSettings(global_batch_size=8))
        for digits in ("ab", "cd")
    ]
    return [
        resources_pb2.MeasurementWindow(
            window_id=f"{machine:016x}{number:016x}",
            campaign=f"collected_{machine:08x}",
            device="cpu-standin",
            job=jobs[0],
            co_located_jobs=jobs[1:] if number else [],
            steps=100,
            window_ms=2_000 if number else 1_000,
        )
        for number in range(1 + CO_LOCATED)
    ]


@contextmanager
def running_predictor(folder: Path) -> Iterator[Program]:
    """A predictor that never learned anything, at an address that it keeps."""
    arguments = ["--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", "--state-dir", str(folder / "state")]
    program = Program("predictor", "serve-predictor", arguments, folder)
    program.start()
    try:
        assert program.wait_ready()
        arguments[1] = program.address
        yield program
    finally:
        program.stop()


def table(client: PredictorClient) -> list[prediction_pb2.MeasuredPair]:
    """Returns the pairs, or none while the predictor is away."""
    try:
        return client.list_measured_pairs("cpu-standin")
    except ServiceError:
        return []


def test_every_window_is_counted_once_whichever_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-datasets").mkdir()
    fork_programs(monkeypatch)
    monkeypatch.setenv("COTENANT_PREDICTOR_DATASETS", str(tmp_path / "no-datasets"))
    with (
        running_predictor(tmp_path) as predictor,
        SchedulerProcess(tmp_path, arguments=("--predictor", predictor.address, "--policy", "fifo")) as scheduler,
        FakeAgent(scheduler.address, node_id="one", windows=measured(1)) as one,
        FakeAgent(scheduler.address, node_id="two", windows=measured(2)) as two,
        open_channel(ChannelOptions(address=predictor.address)) as channel,
    ):
        client = PredictorClient(channel, timeout_s=5)

        def has_everything() -> bool:
            return [pair.times_measured for pair in table(client)] == [2 * CO_LOCATED]

        wait_until(has_everything, what="the windows of both", timeout_s=PATIENCE_S)
        for _ in range(2):
            predictor.kill()
            scheduler.kill()
            one.cut()
            predictor.start()
            scheduler.start()
            assert predictor.wait_ready()
            one.acks = two.acks = 0
            wait_until(lambda: min(one.acks, two.acks) > 50, what="heartbeats of both", timeout_s=PATIENCE_S)
            wait_until(has_everything, what="the same table again", timeout_s=PATIENCE_S)
        (pair,) = table(client)
        assert pair.slowdown_ratio == pytest.approx(1.0)
        assert one.errors == two.errors == []

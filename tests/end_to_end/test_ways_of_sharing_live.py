"""One pair was measured in turns and under MPS: a node is given the answer of the way that it shares its GPU in.

Predictor and scheduler are real; the node agent says what a test lets it say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import json_format

from cotenant.v1 import resources_pb2, scheduling_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import listening_server, open_predictor
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

pytestmark = pytest.mark.timeout(600)
DEVICE = "cpu-standin"
SETTINGS = resources_pb2.JobSettings(global_batch_size=16, optimizer=resources_pb2.OPTIMIZER_ADAM)
TURNS, MPS = resources_pb2.DEVICE_SHARING_TIME_SLICING, resources_pb2.DEVICE_SHARING_MPS
ALONE_MS, IN_TURNS_MS, SIDE_BY_SIDE_MS = 10, 40, 11
WINDOWS = 5
PAIRS_IN_BOTH_WAYS = 4
ACCEPTED_RATIO = 0.5


def measured(one: str, two: str, *, together_ms: int, under_mps: bool) -> Iterator[resources_pb2.MeasurementWindow]:
    """Each of two jobs alone, then with the other one."""
    for side, (victim, other) in enumerate(((one, two), (two, one))):
        jobs = [resources_pb2.MeasuredJob(graph_sha256=graph, settings=SETTINGS) for graph in (victim, other)]
        for number in range(1 + WINDOWS):
            yield resources_pb2.MeasurementWindow(
                window_id=f"{under_mps:08x}{side:08x}{number:016x}",
                campaign="collected_00000000",
                device=DEVICE,
                job=jobs[0],
                co_located_jobs=jobs[1:] if number else (),
                steps=1_000,
                window_ms=1_000 * (together_ms if number else ALONE_MS),
                under_mps=under_mps,
            )


def co_located(client: SchedulerClient, waiting: str) -> scheduling_pb2.CoLocatedJob | None:
    """What the scheduler expects of a waiting job with the running one; None = no measured pair told it."""
    request = scheduling_pb2.ExplainJobRequest(job_id=waiting)
    answer = client.stub.ExplainJob(request, timeout=90, wait_for_ready=True)
    found = (other for candidate in answer.candidates for other in candidate.co_located_jobs)
    return next((other for other in found if other.times_measured), None)


@contextmanager
def taught_cluster(
    folder: Path, sharing: resources_pb2.DeviceSharing.ValueType
) -> Iterator[tuple[SchedulerClient, list[str]]]:
    """A scheduler with one node that shares its GPU in a way, and the hashes of two graphs measured in both ways."""
    predictor = open_predictor(folder / "graphs")
    hashes = [predictor.keep_graph(content)[0] for content in list(graphs().values())[:2]]
    windows = [
        *measured(*hashes, together_ms=IN_TURNS_MS, under_mps=False),
        *measured(*hashes, together_ms=SIDE_BY_SIDE_MS, under_mps=True),
    ]
    with (
        listening_server(folder, predictor) as address,
        SchedulerProcess(folder, arguments=("--predictor", address, "--policy", "sjf_bsbf")) as process,
        SchedulerClient(process.address) as client,
        FakeAgent(process.address, device=DEVICE, windows=windows, sharing=sharing) as agent,
    ):
        wait_until(lambda: len(predictor.measured_pairs()) == PAIRS_IN_BOTH_WAYS, "every window has arrived")
        yield client, hashes
        assert agent.errors == []


def submit(client: SchedulerClient, graph_sha256: str) -> str:
    settings = json_format.MessageToDict(SETTINGS)
    return client.submit(
        graph_sha256=graph_sha256,
        settings=settings,
        steps_total=10_000_000,
        share="SHARE_MODE_ANY",
        max_slowdown_ratio=ACCEPTED_RATIO,
    ).job_id


def test_under_mps_jobs_share_that_would_be_too_slow_in_turns(tmp_path: Path) -> None:
    with taught_cluster(tmp_path, MPS) as (client, hashes):
        (gpu,) = client.stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=90).nodes[0].gpus
        assert gpu.sharing == MPS
        jobs = [submit(client, one) for one in hashes]
        for job_id in jobs:
            client.wait_for_phase(job_id, "RUNNING")


def test_in_turns_the_same_jobs_run_one_after_the_other(tmp_path: Path) -> None:
    with taught_cluster(tmp_path, TURNS) as (client, hashes):
        first = submit(client, hashes[0])
        client.wait_for_phase(first, "RUNNING")
        second = submit(client, hashes[1])
        found = wait_until(lambda: co_located(client, second), "the second job is compared with the first one")
        assert found.times_measured == WINDOWS
        assert found.predicted_slowdown_ratio > 2.0
        assert client.get(second).phase == scheduling_pb2.JOB_PHASE_PENDING

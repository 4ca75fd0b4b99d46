"""A real scheduler looks at a job when it is submitted; what a node refuses for good is not tried again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.v1 import node_agent_pb2
from tests.support.fake_agent import GIB, FakeAgent
from tests.support.fake_predictor import FakePredictor
from tests.support.grpc_errors import code_of, error_info_of
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess, wait_until

GRAPH: dict[str, Any] = {"graph_sha256": "ab" * 32}
PYTHON_ONLY = node_agent_pb2.LaunchRules(executables=["/venv/bin/python"], directories=["/srv"])


@pytest.fixture
def predictor() -> Iterator[FakePredictor]:
    with FakePredictor() as made:
        yield made


@pytest.fixture
def scheduler(tmp_path: Path, predictor: FakePredictor) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(tmp_path, arguments=("--predictor", predictor.address)) as process:
        yield process


def refused(client: SchedulerClient, **fields: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        client.answer_to(**fields)
    assert code_of(caught.value) is grpc.StatusCode.FAILED_PRECONDITION
    assert "--force" in error_info_of(caught.value).metadata["remedy"]
    return str(error_info_of(caught.value).reason)


def joined(client: SchedulerClient, agent: FakeAgent) -> None:
    wait_until(lambda: agent.acks > 0, what="the node has joined")


def test_what_no_node_runs_is_refused_at_the_door_unless_it_is_forced(
    scheduler: SchedulerProcess, client: SchedulerClient
) -> None:
    before = client.submit(command=["bash", "run.sh"])
    with FakeAgent(scheduler.address, launch_rules=PYTHON_ONLY, refuse=lambda _: "COMMAND_NOT_ALLOWED") as agent:
        joined(client, agent)
        for dry in (True, False):
            assert refused(client, command=["bash"], validate_only=dry) == "NO_NODE_RUNS_IT"
            assert refused(client, gpus=2, validate_only=dry) == "NO_NODE_RUNS_IT"
            # Also where the batch has no sample for each of them: a smaller number is the remedy for both.
            too_many = {"gpus": 9, "settings": {"global_batch_size": 4}}
            assert refused(client, validate_only=dry, **too_many) == "NO_NODE_RUNS_IT"
        failed = client.wait_for_phase(before.job_id, "FAILED")
        assert (failed.attempt, failed.reason.code) == (1, "LAUNCH_REFUSED_FOR_GOOD")
        assert "told to" in failed.reason.message
        forced = client.answer_to(command=["bash"], force=True)
        assert [warning.code for warning in forced.warnings] == ["FORCED"]
        client.wait_for_phase(forced.job.job_id, "FAILED")
        scheduler.restart()
        assert client.get(before.job_id).attempt == 1


def test_what_fits_on_no_device_is_refused_and_what_may_not_fit_is_warned_of(
    scheduler: SchedulerProcess, client: SchedulerClient, predictor: FakePredictor
) -> None:
    with FakeAgent(scheduler.address) as agent:
        joined(client, agent)
        predictor.memory_bytes = 20 * GIB
        assert refused(client, **GRAPH) == "FITS_NO_DEVICE"
        assert refused(client, validate_only=True, **GRAPH) == "FITS_NO_DEVICE"
        assert client.list_all() == []
        predictor.memory_bytes = 15 * GIB
        other: dict[str, Any] = {**GRAPH, "settings": {"global_batch_size": 4}}
        request_id = str(uuid.uuid4())
        first = client.answer_to(request_id=request_id, **other)
        assert [warning.code for warning in first.warnings] == ["MEMORY_MAY_NOT_FIT"]
        agent.launch_rules = node_agent_pb2.LaunchRules(executables=["/bin/true"])
        acks = agent.acks
        agent.cut()
        wait_until(lambda: agent.hellos > 1 and agent.acks > acks, what="the node has joined again")
        assert refused(client, **other) == "NO_NODE_RUNS_IT"
        again = client.answer_to(request_id=request_id, **other)
        assert (again.job.job_id, list(again.warnings)) == (first.job.job_id, list(first.warnings))

"""What is refused when it is submitted, what is only warned of, and what is accepted unseen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import pytest

from cotenant.device_calibration_message import calibration_message
from cotenant.v1 import node_agent_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.launch_rules import launch_rules
from scheduler_service.adapters.predictor.memory_ranges import MemoryRanges
from scheduler_service.adapters.predictor.predictor_client import PredictorClient, open_channel
from scheduler_service.core import events
from scheduler_service.core.queue.tenants import parse_tenants
from scheduler_service.core.queue_events import TenantsChosen
from scheduler_service.errors import FitsNoDeviceError, NoNodeRunsItError, QuotaTooSmallError, SchedulerServiceError
from scheduler_service.grpc_api.jobs.admission import Admission
from scheduler_service.grpc_api.jobs.job_requests import submitted
from tests.support.calibrations import calibration
from tests.support.engine_play import Play
from tests.support.fake_predictor import FakePredictor
from tests.support.scheduler_process import job_spec
from tests.support.scheduling import GIB, gpu, node

GRAPH = {"graph_sha256": "ab" * 32}
PYTHON = {"executables": ["/venv/bin/python"], "directories": ["/srv"], "environment_patterns": ["SEED"]}
OWNERS = {"any_command": True, "directories": ["/srv"]}
Rules = Mapping[str, Any] | None


@pytest.fixture
def predictor() -> Iterator[FakePredictor]:
    with FakePredictor() as made:
        yield made


class Door:
    """A cluster of nodes with one GPU of 8 GiB each, whose agents reported what they run."""

    def __init__(self, *rules: Rules, gpus: int = 1, address: str = "") -> None:
        self.play = Play(nodes=0)
        self.sessions = AgentSessions()
        self.address = address
        for index, fields in enumerate(rules):
            devices = [gpu(f"n{index}.{number}", memory_bytes=8 * GIB) for number in range(gpus)]
            self.play.tell(events.NodeJoined, node=node(f"n{index}", devices))
            said = None if fields is None else node_agent_pb2.LaunchRules(**fields)
            hello = node_agent_pb2.Hello(launch_rules=said)
            self.sessions.open(f"n{index}", now_ms=0, launch_rules=launch_rules(hello))

    def review(self, *specs: scheduling_pb2.JobSpec, force: bool = False, seconds_left: float = 20) -> list[list[str]]:
        """Returns the codes of the warnings of each."""
        return asyncio.run(self._review(specs, force, seconds_left))

    async def _review(
        self, specs: Sequence[scheduling_pb2.JobSpec], force: bool, seconds_left: float
    ) -> list[list[str]]:
        client = PredictorClient(open_channel(self.address) if self.address else None, deadline_s=20)
        ranges = MemoryRanges(client, deadline_s=20)
        admission = Admission(sessions=self.sessions, ranges=ranges)
        requests = [scheduling_pb2.SubmitJobRequest(spec=spec, force=force) for spec in specs]
        try:
            reviews = [admission.review(self.play.engine.state, one, seconds_left=seconds_left) for one in requests]
            found: list[Sequence[resources_pb2.Warning]] = await asyncio.gather(*reviews)
            return [[warning.code for warning in warnings] for warnings in found]
        finally:
            await ranges.close()
            await client.close()


def refusal(door: Door, **fields: Any) -> SchedulerServiceError:
    with pytest.raises((NoNodeRunsItError, FitsNoDeviceError, QuotaTooSmallError)) as caught:
        door.review(job_spec(**fields))
    assert "--force" in caught.value.metadata["remedy"]
    assert len(door.review(job_spec(**fields), force=True)[0]) == 1
    return caught.value


def test_without_a_connected_node_everything_is_accepted() -> None:
    assert Door().review(job_spec(command=["/absent"], gpus=512, memory_bytes=2**50, **GRAPH)) == [[]]


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"command": ["bash"]}, "'bash'"),
        ({"environment": {"OMP_NUM_THREADS": "1"}}, "OMP_NUM_THREADS"),
        ({"gpus": 2, "settings": {"global_batch_size": 8}}, "has 1 GPU of one kind, not 2"),
    ],
)
def test_what_no_connected_node_runs_is_refused_and_each_node_says_what_it_lacks(
    fields: dict[str, Any], finding: str
) -> None:
    error = refusal(Door(PYTHON, PYTHON), **fields)
    assert isinstance(error, NoNodeRunsItError)
    assert error.message.count(finding) == 2
    assert "n0 " in error.message


def test_a_job_for_two_gpus_is_refused_at_once_where_there_are_slices_only() -> None:
    door = Door(None)
    door.play.tell(events.NodeJoined, node=node("n0", [gpu("MIG-0"), gpu("MIG-1", index=1)]))
    with pytest.raises(NoNodeRunsItError, match=r"of 2 slices of GPUs \(MIG\) a process can use one") as caught:
        door.review(job_spec(gpus=2, settings={"global_batch_size": 8}))
    assert "ask for fewer --gpus" in caught.value.metadata["remedy"]
    assert door.review(job_spec(settings={"global_batch_size": 8})) == [[]]


def test_a_job_that_its_tenant_may_never_start_is_refused() -> None:
    door = Door(None, gpus=4)
    door.play.tell(TenantsChosen, rules=parse_tenants("[tenants.a]\ngpus = 2\n[tenants.b]\ngpus = 0"))
    wide = {"gpus": 3, "settings": {"global_batch_size": 8}}
    error = refusal(door, tenant="a", **wide)
    assert isinstance(error, QuotaTooSmallError)
    assert error.message == "jobs of tenant 'a' may hold 2 GPUs at once; this one asks for 3"
    assert "fewer --gpus" in error.metadata["remedy"]
    assert "fewer" not in refusal(door, tenant="b").metadata["remedy"]
    assert door.review(job_spec(tenant="c", **wide)) == [[]]
    assert door.review(job_spec(tenant="a", allowed_gpus=[2, 4], settings={"global_batch_size": 8})) == [[]]


def test_a_gang_for_more_gpus_than_nodes_that_share_checkpoints_have_together_is_refused() -> None:
    door = Door(None, None)
    gang = {"gpus": 2, "ranks": 2, "across_nodes": True, "settings": {"global_batch_size": 8}}
    assert "neither shares checkpoints with other nodes nor sends them" in refusal(door, **gang).message
    facts = {"enforcements": ("rank_processes",), "rendezvous_address": "10.0.0.1"}
    for name, storage_id in (("n0", "a"), ("n1", "b")):
        door.play.tell(events.NodeJoined, node=node(name, [gpu(f"{name}.0")], storage_id=storage_id, **facts))
    assert "have 1 GPU of one kind together, not 2" in refusal(door, **gang).message
    door.play.tell(events.NodeJoined, node=node("n1", [gpu("n1.0")], storage_id="a", **facts))
    assert door.review(job_spec(**gang)) == [[]]


def test_one_node_must_run_all_of_it() -> None:
    shell, variable = {**PYTHON, "executables": ["/bin/bash"]}, {**PYTHON, "environment_patterns": ["FOO"]}
    wanted = {"command": ["bash"], "environment": {"FOO": "1"}}
    assert isinstance(refusal(Door(shell, variable), **wanted), NoNodeRunsItError)
    assert Door(shell, variable, {**shell, **{"environment_patterns": ["FOO"]}}).review(job_spec(**wanted)) == [[]]


@pytest.mark.parametrize("rules", [OWNERS, None])
def test_a_node_of_its_owner_or_one_that_does_not_say_takes_any_command(rules: Rules) -> None:
    wanted = {"command": ["./run.sh"], "environment": {"OMP_NUM_THREADS": "1"}}
    assert Door(PYTHON, rules).review(job_spec(**wanted)) == [[]]


def test_a_directory_that_is_not_listed_is_a_warning_since_a_link_may_lead_inside() -> None:
    assert Door(OWNERS).review(job_spec(working_directory="/home/me")) == [["DIRECTORY_NOT_LISTED"]]
    assert Door(OWNERS).review(job_spec(working_directory="/srv/me")) == [[]]
    assert Door(OWNERS, None).review(job_spec(working_directory="/home/me")) == [[]]


def test_ones_own_choice_of_gpus_is_said_to_be_ignored() -> None:
    assert Door(OWNERS).review(job_spec(environment={"CUDA_VISIBLE_DEVICES": "3"})) == [["VARIABLE_SET_BY_NODE"]]


def test_stated_memory_beyond_the_largest_device_is_refused_without_asking(predictor: FakePredictor) -> None:
    door = Door(OWNERS, address=predictor.address)
    error = refusal(door, memory_bytes=8 * GIB + 1, **GRAPH)
    assert "8.00 GiB" in error.message
    assert door.review(job_spec(memory_bytes=8 * GIB, **GRAPH)) == [[]]
    assert predictor.job_questions == []


@pytest.mark.parametrize(
    ("expected_gib", "codes"), [(6, []), (7, ["MEMORY_MAY_NOT_FIT"]), (8.8, ["MEMORY_MAY_NOT_FIT"])]
)
def test_only_a_range_that_begins_beyond_the_device_is_refused(
    expected_gib: float, codes: list[str], predictor: FakePredictor
) -> None:
    predictor.memory_bytes = int(expected_gib * GIB)
    assert Door(OWNERS, address=predictor.address).review(job_spec(**GRAPH)) == [codes]


def test_what_cannot_fit_is_refused_with_both_numbers_and_a_smaller_batch(predictor: FakePredictor) -> None:
    predictor.memory_bytes = 10 * GIB
    error = refusal(Door(OWNERS, None, address=predictor.address), **GRAPH)
    assert isinstance(error, FitsNoDeviceError)
    assert "9.00 GiB to 12.00 GiB" in error.message
    assert "has 8.00 GiB" in error.message
    assert "--batch-size" in error.metadata["remedy"]


def test_the_share_of_a_batch_on_several_gpus_is_what_must_fit(predictor: FakePredictor) -> None:
    predictor.memory_bytes, predictor.sample_bytes = 0, GIB
    door = Door(OWNERS, gpus=4, address=predictor.address)
    wanted = {"settings": {"global_batch_size": 16}, **GRAPH}
    assert isinstance(refusal(door, **wanted), FitsNoDeviceError)
    assert door.review(job_spec(gpus=4, **wanted)) == [[]]


def test_a_job_that_fits_only_where_it_may_not_run_is_refused_for_memory(predictor: FakePredictor) -> None:
    predictor.memory_bytes = 10 * GIB
    door = Door(OWNERS, {**PYTHON, "executables": ["/bin/sh"]}, address=predictor.address)
    large = node("n1", [gpu("n1.0", memory_bytes=80 * GIB)])
    door.play.tell(events.NodeJoined, node=large)
    assert isinstance(refusal(door, **GRAPH), FitsNoDeviceError)
    assert door.review(job_spec(command=["sh"], **GRAPH)) == [[]]


def test_without_an_answer_in_time_the_job_is_accepted(predictor: FakePredictor) -> None:
    predictor.failure = lambda: grpc.StatusCode.NOT_FOUND
    assert Door(OWNERS, address=predictor.address).review(job_spec(**GRAPH)) == [["MEMORY_NOT_CHECKED"]]
    assert Door(OWNERS, address="127.0.0.1:1").review(job_spec(**GRAPH), seconds_left=1) == [["MEMORY_NOT_CHECKED"]]
    assert Door(OWNERS).review(job_spec(**GRAPH)) == [[]]


def test_a_predictor_that_never_answers_keeps_no_job_out(predictor: FakePredictor) -> None:
    answering = threading.Event()

    def wait() -> None:
        answering.wait(60)

    predictor.failure = wait
    assert Door(OWNERS, address=predictor.address).review(job_spec(**GRAPH), seconds_left=1) == [["MEMORY_NOT_CHECKED"]]
    answering.set()


def test_a_flood_of_submissions_asks_once_per_job_and_never_many_at_once(predictor: FakePredictor) -> None:
    door = Door(OWNERS, address=predictor.address)
    assert door.review(*[job_spec(**GRAPH)] * 50) == [[]] * 50
    assert len(predictor.job_questions) == 1
    many = [job_spec(graph_sha256=f"{number:064x}") for number in range(60)]
    codes = door.review(*many)
    assert len(predictor.job_questions) == 1 + 32
    assert codes.count(["MEMORY_NOT_CHECKED"]) == 60 - 32


def final(door: Door, spec: scheduling_pb2.JobSpec, *, code: str = "COMMAND_NOT_ALLOWED", node_id: str = "n0") -> bool:
    event = submitted("job-1", spec)
    door.play.tell(events.JobSubmitted, request=event.request, launch=event.launch)
    refused = node_agent_pb2.CommandRefused(key=node_agent_pb2.AttemptKey(job_id="job-1"), code=code)
    no_ranges: Any = None
    return Admission(sessions=door.sessions, ranges=no_ranges).is_final(door.play.engine.state, node_id, refused)


def test_the_first_refusal_is_final_unless_another_connected_node_may_run_it() -> None:
    spec = job_spec(working_directory="/srv/link")
    assert final(Door(OWNERS), spec)
    assert final(Door(OWNERS, {**OWNERS, "directories": ["/data"]}), spec)
    assert final(Door(OWNERS, {**PYTHON, "executables": ["/bin/sh"]}), spec)
    assert not final(Door(OWNERS, OWNERS), spec)
    assert not final(Door(OWNERS, None), spec)
    assert not final(Door(OWNERS), spec, node_id="n1")
    assert not final(Door(OWNERS), spec, code="OVER_CAPACITY")
    assert not final(Door(OWNERS), spec, code="DEVICE_UNAVAILABLE")


def test_the_question_of_a_submission_carries_what_was_measured_of_the_device(predictor: FakePredictor) -> None:
    door = Door(OWNERS, address=predictor.address)
    measured = calibration(device=gpu().device)
    door.play.tell(events.NodeJoined, node=node("n1", [gpu("n1.0", calibration=measured, memory_bytes=8 * GIB)]))
    door.review(job_spec(**GRAPH))
    (question,) = predictor.job_questions
    assert question.calibration == calibration_message(measured)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"command": ["torchrun", "--nproc-per-node=2", "t.py"], "gpus": 2, "ranks": 2}, ["LAUNCHER_STARTS_RANKS"]),
        ({"command": ["/venv/bin/accelerate", "launch"], "gpus": 2, "ranks": 2}, ["LAUNCHER_STARTS_RANKS"]),
        ({"command": ["torchrun", "--nproc-per-node=2", "t.py"], "gpus": 2}, []),
        ({"command": ["python", "t.py"], "gpus": 2, "ranks": 2}, []),
    ],
)
def test_a_launcher_that_would_be_started_once_per_gpu_is_a_warning(
    fields: dict[str, Any], expected: list[str]
) -> None:
    assert Door().review(job_spec(**fields)) == [expected]

"""How GPUs are shared comes with a node's inventory, and goes with every question about pairs."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.device_sharing import DeviceSharing
from cotenant.v1 import node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_messages import node_joined
from scheduler_service.adapters.predictor.prediction_messages import pairs_question
from scheduler_service.adapters.predictor.predictor_client import PredictorClient, _failure, open_channel
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.commands import PairMember, RefreshPairs, RequestPairPredictions
from scheduler_service.core.events import PairPredictionsFailed, PairsRefreshed
from scheduler_service.errors import PredictorError
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.fake_predictor import FakePredictor

GIB = 1 << 30
UNSTATED = resources_pb2.DEVICE_SHARING_UNSPECIFIED
TURNS, MPS = resources_pb2.DEVICE_SHARING_TIME_SLICING, resources_pb2.DEVICE_SHARING_MPS


@pytest.mark.parametrize(
    ("said", "kept"), [(UNSTATED, DeviceSharing.UNSTATED), (MPS, DeviceSharing.MPS), (9, DeviceSharing.UNSTATED)]
)
def test_a_way_survives_hello_event_and_log(said: resources_pb2.DeviceSharing.ValueType, kept: DeviceSharing) -> None:
    gpu = node_agent_pb2.AgentGpu(gpu_id="g", device="d", memory_bytes=GIB, healthy=True, sharing=said)
    event = node_joined(node_agent_pb2.Hello(node_id="n", gpus=[gpu]))
    assert event.node.gpus[0].sharing is kept
    assert decode_event(encode_event(event)) == event


def test_both_questions_about_pairs_say_the_way() -> None:
    members = (PairMember(key="k", graph_sha256="a" * 64, settings=None),)
    for kind in (RequestPairPredictions, RefreshPairs):
        assert pairs_question(kind(device="d", members=members)).sharing == UNSTATED
        assert pairs_question(kind(device="d", members=members, sharing=DeviceSharing.MPS)).sharing == MPS


def snapshot(*ways: resources_pb2.DeviceSharing.ValueType) -> scheduling_pb2.Snapshot:
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    for number, way in enumerate(ways):
        node = made.nodes.add(node_id=f"n{number}", schedulable=True, cpu_cores=64, host_memory_bytes=256 * GIB)
        node.gpus.add(gpu_id=f"g{number}", device="NVIDIA A10", memory_bytes=24 * GIB, healthy=True, sharing=way)
    for name in ("a", "b"):
        job = scheduling_pb2.SnapshotJob(
            job_id=name,
            job_key=name,
            gpus=1,
            global_batch_size=8,
            steps_total=1_000,
            graph_sha256=name * 64,
            settings=resources_pb2.JobSettings(global_batch_size=8),
            share=resources_pb2.SHARE_MODE_ANY,
        )
        made.pending.add(job=job)
    return made


@pytest.mark.parametrize(("ways", "are_told"), [((MPS, MPS), False), ((MPS, TURNS), True), ((MPS, UNSTATED), True)])
def test_a_decision_to_share_says_where_gpus_of_one_type_are_not_shared_alike(
    ways: tuple[resources_pb2.DeviceSharing.ValueType, ...], are_told: bool
) -> None:
    asked = snapshot(*ways)
    for number, name in enumerate("abcd"):
        if name in "cd":
            copied = asked.pending.add()
            copied.CopyFrom(asked.pending[0])
            copied.job.job_id = copied.job.job_key = name
        job = asked.pending[number].job
        job.stated_memory_bytes, job.stated_utilization_ratio, job.stated_step_ms = GIB, 0.2, 10.0
        job.stated_slowdown_ratio = 0.01
    request = scheduling_pb2.DecideRequest(policy="horus", snapshot=asked)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    shared = [one.reason for one in answer.decisions if one.reason.code == "STARTS_SHARED"]
    assert shared
    assert {"are shared in 2 ways" in one.message for one in shared} == {are_told}
    assert UNSTATED in ways or not any("do not say how" in one.message for one in shared)


@pytest.mark.parametrize("policy", ["horus", "sjf_bsbf"])
@pytest.mark.parametrize(("ratio", "starts"), [(0.01, 3), (5.0, 2)])
def test_a_pair_that_a_snapshot_states_holds_for_gpus_of_either_way(policy: str, ratio: float, starts: int) -> None:
    asked = snapshot(MPS, TURNS)
    asked.pending.add().CopyFrom(asked.pending[0])
    for name, pending in zip("abc", asked.pending, strict=True):
        pending.job.job_id, pending.job.job_key = name, "k"
        pending.job.stated_memory_bytes, pending.job.stated_utilization_ratio = GIB, 0.2
        pending.job.stated_step_ms, pending.job.max_slowdown_ratio = 10.0, 0.5
    asked.pair_predictions.add(
        victim_job_key="k", other_job_key="k", device="NVIDIA A10", slowdown_ratio=ratio, slowdown_upper_ratio=ratio
    )
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=asked)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    assert sum(one.WhichOneof("action") == "start" for one in answer.decisions) == starts


@pytest.mark.parametrize("kind", [RequestPairPredictions, RefreshPairs])
def test_a_failed_answer_names_the_way_that_was_asked_about(
    kind: type[RequestPairPredictions | RefreshPairs],
) -> None:
    told = _failure(kind(device="d", members=(), sharing=DeviceSharing.MPS), PredictorError("away", code="AWAY"))
    assert isinstance(told, PairPredictionsFailed | PairsRefreshed)
    assert (told.sharing, told.code) == (DeviceSharing.MPS, "AWAY")


@pytest.mark.parametrize(
    ("ways", "asked"),
    [((MPS, MPS), {MPS}), ((TURNS,), {TURNS}), ((MPS, TURNS), {MPS, TURNS}), ((MPS, UNSTATED), {MPS, UNSTATED})],
)
def test_decide_asks_every_way_that_gpus_of_a_device_type_say(
    ways: tuple[resources_pb2.DeviceSharing.ValueType, ...], asked: set[resources_pb2.DeviceSharing.ValueType]
) -> None:
    async def run(address: str) -> scheduling_pb2.DecideResponse:
        client = PredictorClient(open_channel(address), deadline_s=20)
        try:
            request = scheduling_pb2.DecideRequest(policy="sjf_bsbf", snapshot=snapshot(*ways))
            return await decide(request, predictor=client, seconds_left=60)
        finally:
            await client.close()

    with FakePredictor() as predictor:
        asyncio.run(run(predictor.address))
        questions: list[prediction_pb2.PredictPairsRequest] = predictor.pair_questions
    assert len(questions) == len(asked)
    assert {question.sharing for question in questions} == asked

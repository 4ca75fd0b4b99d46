"""Calibrations come with a node's inventory, are kept as facts, and go with every question about the device type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.device_calibration import DeviceCalibration
from cotenant.device_calibration_message import calibration_message, read_calibration_message
from cotenant.job_settings import JobSettings
from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_messages import node_joined
from scheduler_service.adapters.predictor.prediction_messages import job_question, pairs_question
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.commands import PairMember, RequestPairPredictions, RequestPrediction
from tests.support.calibrations import NOW_MS, calibration

GPU = node_agent_pb2.AgentGpu(gpu_id="gpu-0", device="cpu-standin", memory_bytes=1 << 30, healthy=True)


def hello(
    measured: DeviceCalibration | None = None, cause: str = "", device: str = "cpu-standin"
) -> node_agent_pb2.Hello:
    gpu = node_agent_pb2.AgentGpu()
    gpu.CopyFrom(GPU)
    gpu.device, gpu.not_calibrated = device, cause
    if measured is not None:
        gpu.calibration.CopyFrom(calibration_message(measured))
    return node_agent_pb2.Hello(node_id="node-a", gpus=[gpu])


def test_a_calibration_survives_hello_event_and_log() -> None:
    event = node_joined(hello(calibration()))
    assert event.node.gpus[0].calibration == calibration()
    stored = decode_event(encode_event(event))
    assert stored == event


def test_why_a_device_is_not_calibrated_is_kept() -> None:
    (gpu,) = node_joined(hello(cause="torch is not installed there")).node.gpus
    assert (gpu.calibration, gpu.not_calibrated) == (None, "torch is not installed there")


@pytest.mark.parametrize(
    ("hostile", "device", "said"),
    [
        (replace(calibration(), launch_ms=float("inf")), "cpu-standin", "launch_ms is inf"),
        (replace(calibration(), measured_at_ms=1 << 60), "cpu-standin", "in the future"),
        (calibration(), "NVIDIA H200", "calibration of a cpu-standin"),
        (replace(calibration(), device="x" * 100_000), "cpu-standin", "larger than any"),
    ],
)
def test_a_calibration_that_cannot_be_is_left_out_and_the_node_joins(
    hostile: DeviceCalibration, device: str, said: str
) -> None:
    (gpu,) = node_joined(hello(hostile, device=device)).node.gpus
    assert gpu.calibration is None
    assert said in gpu.not_calibrated
    assert len(gpu.not_calibrated) <= 200


def test_a_pass_of_a_part_of_the_batch_waits_for_its_part_of_the_samples() -> None:
    settings = JobSettings(global_batch_size=8, input_wait_ms=20.0)
    members = (
        PairMember(key="k", graph_sha256="a" * 64, settings=settings),
        PairMember(key="k", graph_sha256="a" * 64, settings=settings, micro_batch_size=2),
    )
    asked = [one.settings for one in pairs_question(RequestPairPredictions(device="cpu-standin", members=members)).jobs]
    assert [(one.global_batch_size, one.input_wait_ms) for one in asked] == [(8, 20.0), (2, 5.0)]


def test_questions_about_jobs_and_pairs_carry_the_calibration() -> None:
    settings = JobSettings(global_batch_size=8)
    job = RequestPrediction(
        key="k",
        device="cpu-standin",
        device_memory_bytes=1,
        graph_sha256="a" * 64,
        settings=settings,
        calibration=calibration(),
    )
    pairs = RequestPairPredictions(
        device="cpu-standin",
        members=(PairMember(key="k", graph_sha256="a" * 64, settings=settings),),
        calibration=calibration(),
    )
    for question in (job_question(job), pairs_question(pairs)):
        assert read_calibration_message(question.calibration, NOW_MS) == calibration()
    assert not job_question(replace(job, calibration=None)).HasField("calibration")

"""What a driver says of a device travels with it, all of it or nothing."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from cotenant.device_facts import DeviceFacts
from cotenant_agent.devices.nvml_inventory import _read_facts
from cotenant_agent.protocol import gpu_to_message
from cotenant_agent.records import GpuDescription
from scheduler_service.adapters.agents.agent_messages import _gpu
from scheduler_service.adapters.predictor.prediction_messages import job_question, pairs_question
from scheduler_service.core import commands, events
from tests.support.engine_play import Play
from tests.support.scheduling import gpu, node, prediction

FACTS = DeviceFacts(cores=16_896, clock_mhz=1_980, memory_bus_bits=6_144, memory_clock_mhz=3_201, compute_capability=90)


def _drive(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    answers = {
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetNumGpuCores": lambda _: 16_896,
        "nvmlDeviceGetMemoryBusWidth": lambda _: 6_144,
        "nvmlDeviceGetMaxClockInfo": lambda _, clock: {pynvml.NVML_CLOCK_SM: 1_980, pynvml.NVML_CLOCK_MEM: 3_201}[
            clock
        ],
    }
    for name, answer in (answers | changes).items():
        monkeypatch.setattr(pynvml, name, answer)


def test_a_driver_that_says_everything_tells_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    _drive(monkeypatch)
    assert _read_facts(None) == FACTS


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMaxClockInfo"]
)
def test_a_driver_that_leaves_something_out_tells_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    _drive(monkeypatch, **{name: refuse})
    assert _read_facts(None) is None


def test_the_facts_of_a_device_reach_every_question_about_its_type() -> None:
    told = gpu_to_message(GpuDescription(gpu_id="g0", device="NVIDIA X990", memory_bytes=1 << 37, index=0, facts=FACTS))
    known = _gpu(told)
    assert known.facts == FACTS
    scene = Play("horus", nodes=0)
    scene.tell(events.NodeJoined, node=node("n0", [known]))
    scene.tell(events.NodeJoined, node=node("n1", [gpu("g1", device="NVIDIA X991")]))
    orders = [*scene.submit("a", graph="f" * 64), *scene.submit("b", graph="e" * 64)]
    questions = [one for one in orders if isinstance(one, commands.RequestPrediction)]
    asked = {one.device: job_question(one) for one in questions}
    assert asked["NVIDIA X990"].device_facts == told.facts
    assert not asked["NVIDIA X991"].HasField("device_facts")
    for key in ("key-a", "key-b"):
        orders += scene.tell(events.PredictionArrived, prediction=prediction(key, device="NVIDIA X990"))
    pairs = [one for one in orders if isinstance(one, commands.RequestPairPredictions)]
    assert [pairs_question(one).device_facts for one in pairs if one.device == "NVIDIA X990"] == [told.facts] * len(
        [one for one in pairs if one.device == "NVIDIA X990"]
    )
    assert any(one.device == "NVIDIA X990" for one in pairs)

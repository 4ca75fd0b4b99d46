"""Peaks of a type that no table knows follow from what its driver says; known types are left out once to judge it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

import pytest

from cotenant.device_facts import DeviceFacts
from cotenant.device_facts_message import facts_message, read_facts_message
from cotenant.job_settings import JobSettings
from predictor_service.features import device_names
from predictor_service.features.device_names import generic_by_facts, resolve_device
from predictor_service.features.devices import DEVICE_TYPES, GIBIBYTE, DeviceType, Generation
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion
from tests.support.measured_dataset import graphs
from tests.support.predictor_service import open_predictor

NEW = "NVIDIA X990"
H200 = DeviceFacts(cores=16_896, clock_mhz=1_980, memory_bus_bits=6_144, memory_clock_mhz=3_201, compute_capability=90)
# Cores, highest clock, width of the bus, clock of the memory, capability: of pages about the cards.
PUBLISHED = {
    "Tesla V100-SXM2-16GB": (5_120, 1_530, 4_096, 877, 70),
    "Tesla T4": (2_560, 1_590, 256, 5_001, 75),
    "NVIDIA A100-SXM4-40GB": (6_912, 1_410, 5_120, 1_215, 80),
    "NVIDIA GeForce RTX 3090": (10_496, 1_695, 384, 9_751, 86),
    "NVIDIA L4": (7_424, 2_040, 192, 6_251, 89),
    "NVIDIA H100 80GB HBM3": (16_896, 1_980, 5_120, 2_619, 90),
    "NVIDIA GeForce RTX 5090": (21_760, 2_407, 512, 14_001, 120),
}
_CAPABILITIES = {
    Generation.KEPLER: 37, Generation.MAXWELL: 52, Generation.PASCAL: 61, Generation.VOLTA: 70, Generation.TURING: 75,
    Generation.AMPERE: 86, Generation.ADA: 89, Generation.HOPPER: 90, Generation.BLACKWELL: 120,
}  # fmt: skip
KNOWN = [device for device in DEVICE_TYPES.values() if device.generation in _CAPABILITIES]


def facts_of(name: str) -> DeviceFacts:
    cores, clock_mhz, bus_bits, memory_clock_mhz, capability = PUBLISHED[name]
    return DeviceFacts(
        cores=cores,
        clock_mhz=clock_mhz,
        memory_bus_bits=bus_bits,
        memory_clock_mhz=memory_clock_mhz,
        compute_capability=capability,
    )


def said_of(device: DeviceType) -> DeviceFacts:
    """What a driver would say by which the peak for 32 bits and the bandwidth are those of the table."""
    return DeviceFacts(
        cores=round(device.peak("fp32") / 2e9),
        clock_mhz=1_000,
        memory_bus_bits=8_000,
        memory_clock_mhz=round(device.memory_bytes_per_s / 2e9),
        compute_capability=_CAPABILITIES[device.generation],
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_peak_and_bandwidth_follow_from_what_is_published_of_a_card(name: str) -> None:
    known = DEVICE_TYPES[name]
    made = generic_by_facts(NEW, known.memory_bytes, facts_of(name), left_out=name)
    assert made.peak("fp32") == pytest.approx(known.peak("fp32"), rel=0.05)
    assert made.memory_bytes_per_s == pytest.approx(known.memory_bytes_per_s, rel=0.02)
    assert (made.generation, made.multiprocessors) == (known.generation, known.multiprocessors)


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_rates_of_matrix_units_of_a_type_left_out_are_nearer_than_the_middle_of_its_generation(precision: str) -> None:
    by_facts, by_generation = [], []
    for known in KNOWN:
        others = [one for one in KNOWN if one.generation is known.generation and one is not known]
        made = generic_by_facts(known.name, known.memory_bytes, said_of(known), left_out=known.name)
        middle = median(one.peak(precision) for one in others)
        by_facts.append(abs(math.log(made.peak(precision) / known.peak(precision))))
        by_generation.append(abs(math.log(middle / known.peak(precision))))
    assert (
        fmean(error < math.log(1.1) for error in by_facts)
        > 0.75
        > fmean(error < math.log(1.1) for error in by_generation)
    )
    assert fmean(by_facts) < fmean(by_generation) / 2


def test_a_type_with_facts_is_as_generic_as_one_without_and_a_known_one_is_as_it_was() -> None:
    found = resolve_device(NEW, 140 * GIBIBYTE, H200)
    assert (found.is_generic, found.has_facts) == (True, True)
    assert found.device.context_bytes == resolve_device(NEW, 140 * GIBIBYTE).device.context_bytes
    assert not resolve_device(NEW, 140 * GIBIBYTE).has_facts
    assert resolve_device("NVIDIA A10", 0, H200) == resolve_device("NVIDIA A10")


def test_a_capability_that_is_newer_than_any_known_one_is_of_the_newest_generation() -> None:
    made = generic_by_facts(NEW, GIBIBYTE, replace(H200, compute_capability=150))
    assert made.generation is Generation.BLACKWELL
    assert device_names._generation_of_capability(20) is Generation.KEPLER


@pytest.mark.parametrize("changes", [{"cores": 0}, {"clock_mhz": 100_001}, {"compute_capability": -1}])
def test_facts_of_which_one_is_missing_or_cannot_be_are_none(changes: dict[str, int]) -> None:
    assert not replace(H200, **changes).is_possible
    message = facts_message(replace(H200, **changes))
    assert message is not None
    assert read_facts_message(message) is None


def test_facts_are_the_same_behind_a_message() -> None:
    message = facts_message(H200)
    assert message is not None
    assert read_facts_message(message) == H200
    assert facts_message(None) is None


def _ask(predictor: Predictor, facts: DeviceFacts | None) -> JobAnswer:
    settings = JobSettings(global_batch_size=4_096, optimizer="adam")
    graph = graphs()["wide"]
    question = JobQuestion(settings=settings, device=NEW, onnx_graph=graph, device_memory_bytes=140 * GIBIBYTE)
    return predictor.predict_job(replace(question, device_facts=facts))


def test_a_faster_device_of_no_known_type_is_answered_with_a_shorter_step_and_said_to_be_generic() -> None:
    predictor = open_predictor()
    slow = replace(H200, cores=1_024, clock_mhz=1_000, memory_bus_bits=64, memory_clock_mhz=3_000)
    answers = [_ask(predictor, facts) for facts in (H200, slow, None)]
    assert answers[0].step_ms.value < answers[1].step_ms.value
    for answer in answers:
        assert answer.device_is_generic
        assert not answer.step_ms.in_domain
    told = [next(one.message for one in answer.warnings if one.code == "GENERIC_DEVICE") for answer in answers]
    assert ["its driver states" in one for one in told] == [True, True, False]

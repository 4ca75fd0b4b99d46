"""Answers about devices of which nothing was measured: memory that processes really hold, and no promise of a range."""

from __future__ import annotations

import dataclasses

import pytest
from onnx import TensorProto

from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import MemoryBreakdown, count_memory
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE, DeviceType, Generation
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.job_features import build_features
from predictor_service.features.uncalibrated_memory import BOUND, CONTEXT_SEEN_BYTES, EXPECTED, estimate_uncalibrated
from predictor_service.grpc_api.translate_answers import job_response
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobAnswer, JobQuestion, Level
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from tests.support.cases import for_each
from tests.support.measured_dataset import DEVICE, graphs
from tests.support.onnx_graphs import GraphBuilder, mobilenet_v2, perceptron
from tests.support.predictor_service import open_predictor

GIB = 1 << 30
A100 = "NVIDIA A100-SXM4-40GB"
DENSE = perceptron("batch").SerializeToString()
CONVOLVING = mobilenet_v2("batch").SerializeToString()
GPUS = sorted(set(DEVICE_TYPES) - {STANDIN_DEVICE})
COUNTED = MemoryBreakdown(
    weights_bytes=1e9,
    gradients_bytes=1e9,
    optimizer_state_bytes=2e9,
    activations_bytes=4e9,
    workspace_bytes=2e8,
    context_bytes=5e8,
    unfolded_bytes=1e8,
)


@pytest.fixture
def untrained(tmp_path: object) -> Predictor:
    versions = VersionHolder(VersionStore(tmp_path / "models"))  # type: ignore[operator]
    versions.reload()
    return Predictor(GraphLibrary(InProcessDescriber(), None), versions)


def ask(predictor: Predictor, graph: bytes, device: str, batch: int = 32, **settings: str) -> JobAnswer:
    job = JobSettings(global_batch_size=batch, **{"optimizer": "adam", **settings})  # type: ignore[arg-type]
    question = JobQuestion(
        settings=job, device=device, onnx_graph=graph, micro_batch_sizes=(1, batch), find_largest_batch=True
    )
    return predictor.predict_job(question)


def estimates(answer: JobAnswer) -> list[Estimate]:
    of_micro_batches = [each for point in answer.micro_batches for each in (point.memory_bytes, point.step_ms)]
    return [answer.memory_bytes, answer.utilization_ratio, answer.step_ms, *of_micro_batches]


@pytest.mark.parametrize("device", [STANDIN_DEVICE, f"{A100} MIG 3g.20gb", "NVIDIA H200", "AMD Instinct MI300X"])
def test_without_a_model_no_range_is_called_calibrated(untrained: Predictor, device: str) -> None:
    answer = ask(untrained, DENSE, device)
    assert {each.level for each in estimates(answer)} == {Level.FALLBACK}
    assert all(each.range_not_calibrated for each in estimates(answer))
    message = job_response(answer)
    assert message.memory_bytes.range_not_calibrated
    assert message.utilization_ratio.range_not_calibrated
    assert message.step_ms.range_not_calibrated
    assert all(point.memory_bytes.range_not_calibrated for point in message.micro_batches)


def test_a_slice_is_busier_slower_and_sooner_full_than_its_card(untrained: Predictor) -> None:
    """By its own peaks and memory: nothing that was learned of whole cards is taken for it."""
    whole, part = (ask(untrained, CONVOLVING, device, batch=8) for device in (A100, f"{A100} MIG 1g.5gb"))
    assert part.utilization_ratio.value > 1.05 * whole.utilization_ratio.value
    assert part.step_ms.value > 1.2 * whole.step_ms.value
    assert part.step_ms.upper / part.step_ms.lower > 1.2 * whole.step_ms.upper / whole.step_ms.lower
    assert part.memory_bytes.value == whole.memory_bytes.value
    assert None not in (part.largest_batch_that_fits, whole.largest_batch_that_fits)
    assert 4 * (part.largest_batch_that_fits or 0) < (whole.largest_batch_that_fits or 0)


def test_step_times_of_a_whole_device_of_a_measured_generation_have_ranges_that_held_on_devices_left_out(
    untrained: Predictor,
) -> None:
    answer = ask(untrained, DENSE, A100)
    assert (answer.step_ms.level, answer.step_ms.in_domain) == (Level.FALLBACK, False)
    assert not answer.step_ms.range_not_calibrated
    assert answer.step_ms.lower < answer.step_ms.value < answer.step_ms.upper
    assert answer.memory_bytes.range_not_calibrated
    assert answer.utilization_ratio.range_not_calibrated


def test_steps_are_timed_by_all_measured_devices_and_not_by_the_bare_peaks(untrained: Predictor) -> None:
    ratios = []
    for device in ("Tesla K80", A100, "NVIDIA B200"):
        graph = describe_graph(CONVOLVING).at_batch(8)
        peaks_ms = build_features(graph, JobSettings(global_batch_size=8, optimizer="adam"), DEVICE_TYPES[device])
        ratios.append(ask(untrained, CONVOLVING, device, batch=8).step_ms.value / peaks_ms.roofline_ms)
    assert min(ratios) > 1.2  # nobody reaches peaks, and hosts launch a small step no faster on a fast device
    assert ratios == sorted(ratios)


def test_a_job_that_waits_for_half_of_its_step_takes_twice_as_long(untrained: Predictor) -> None:
    job = JobSettings(global_batch_size=32, optimizer="adam")
    busy, waiting = (
        untrained.predict_job(
            JobQuestion(settings=dataclasses.replace(job, input_wait_ratio=wait), device=A100, onnx_graph=DENSE)
        ).step_ms
        for wait in (0.0, 0.5)
    )
    assert waiting.value == pytest.approx(2 * busy.value)
    assert waiting.upper == pytest.approx(2 * busy.upper)


def test_a_trained_device_has_calibrated_ranges() -> None:
    answer = ask(open_predictor(), graphs()["wide"], DEVICE)
    at_measured_batch = (answer.memory_bytes, answer.utilization_ratio, answer.step_ms)
    assert not any(each.range_not_calibrated for each in at_measured_batch)
    assert not job_response(answer).memory_bytes.range_not_calibrated


def test_the_model_of_one_device_calibrates_no_other() -> None:
    answer = ask(open_predictor(), graphs()["wide"], "NVIDIA H200")
    assert all(each.range_not_calibrated for each in estimates(answer))


def test_a_measured_peak_does_not_calibrate_the_bound_above_it(untrained: Predictor) -> None:
    first = ask(untrained, DENSE, A100)
    entry = PredictionEntry(
        prediction_id="p", at_ms=0, kind="job", device=A100, model_version="v", content={"job_key": first.job_key}
    )
    untrained.learn_outcomes([(entry, {"memory_peak_bytes": 2 * GIB, "window_ms": 60_000})])
    memory = ask(untrained, DENSE, A100).memory_bytes
    assert (memory.level, memory.value) == (Level.OBSERVED, 2 * GIB)
    assert memory.range_not_calibrated


@for_each("device", GPUS)
def test_the_smallest_network_holds_what_the_smallest_process_of_the_public_rows_held(
    untrained: Predictor, device: str
) -> None:
    memory = ask(untrained, DENSE, device, batch=1).memory_bytes
    assert 1443 / 1024 * GIB <= memory.value < 1.6 * GIB
    assert memory.upper_99 is not None
    assert memory.upper_99 >= memory.value


def test_a_process_that_convolves_holds_more_libraries(untrained: Predictor) -> None:
    counted = {
        name: count_memory(
            describe_graph(graph).at_batch(32), JobSettings(global_batch_size=32, optimizer="adam"), DEVICE_TYPES[A100]
        )
        for name, graph in (("dense", DENSE), ("convolving", CONVOLVING))
    }
    dense, convolving = ask(untrained, DENSE, A100).memory_bytes, ask(untrained, CONVOLVING, A100).memory_bytes
    assert dense.value == pytest.approx(EXPECTED.total_bytes(counted["dense"], convolves=False))
    assert convolving.value == pytest.approx(EXPECTED.total_bytes(counted["convolving"], convolves=True))
    learned_bytes = BOUND.total_bytes(counted["convolving"], convolves=True)
    more_context_bytes = CONTEXT_SEEN_BYTES[1] - BOUND.context_bytes
    assert convolving.upper_99 == pytest.approx(learned_bytes + more_context_bytes)


@for_each("mode", ["train", "infer"])
@for_each("precision", ["fp32", "fp16"])
@for_each("device", [A100, "NVIDIA GeForce RTX 4090", "NVIDIA B200", STANDIN_DEVICE])
def test_a_larger_batch_never_needs_less_and_bounds_stay_in_order(
    untrained: Predictor, device: str, precision: str, mode: str
) -> None:
    batches = (1, 2, 3, 7, 64, 100, 5_000, 1_000_000)
    found = [
        ask(untrained, CONVOLVING, device, batch, precision=precision, mode=mode).memory_bytes for batch in batches
    ]
    for memory in found:
        assert memory.upper_99 is not None
        assert 0 < memory.lower <= memory.value <= memory.upper <= memory.upper_99
    assert [each.value for each in found] == sorted(each.value for each in found)
    assert [each.upper_99 or 0 for each in found] == sorted(each.upper_99 or 0 for each in found)


def test_the_largest_batch_that_fits_fits_and_the_next_one_does_not(untrained: Predictor) -> None:
    largest = ask(untrained, CONVOLVING, A100).largest_batch_that_fits
    assert largest
    assert ask(untrained, CONVOLVING, A100, largest).fits
    assert not ask(untrained, CONVOLVING, A100, largest + 1).fits


def test_the_stand_in_keeps_its_measured_context(untrained: Predictor) -> None:
    settings = JobSettings(global_batch_size=32, optimizer="adam")
    counted = count_memory(describe_graph(CONVOLVING).at_batch(32), settings, DEVICE_TYPES[STANDIN_DEVICE])
    memory = ask(untrained, CONVOLVING, STANDIN_DEVICE).memory_bytes
    assert memory.value == pytest.approx(counted.total_bytes)
    assert memory.upper_99 == pytest.approx(2 * counted.total_bytes)


def test_every_device_of_the_table_has_a_generation() -> None:
    assert {name for name, device in DEVICE_TYPES.items() if device.generation is Generation.UNKNOWN} == set()


def of_generation(generation: Generation) -> DeviceType:
    return dataclasses.replace(DEVICE_TYPES[A100], name="some card", generation=generation)


@for_each("generation", sorted(set(Generation) - {Generation.AMPERE, Generation.PROCESSOR}))
def test_a_generation_without_rows_expects_the_same_with_a_wider_range(generation: Generation) -> None:
    known = estimate_uncalibrated(COUNTED, of_generation(Generation.AMPERE), convolves=True)
    found = estimate_uncalibrated(COUNTED, of_generation(generation), convolves=True)
    assert found.expected_bytes == known.expected_bytes
    assert found.lower_bytes < known.lower_bytes
    # The context is the largest that was seen on either; what a job holds beside it is a quarter more.
    beside_context = known.bound_bytes - CONTEXT_SEEN_BYTES[1]
    assert found.bound_bytes == pytest.approx(CONTEXT_SEEN_BYTES[1] + 1.25 * beside_context)
    assert found.upper_bytes > known.upper_bytes


def test_a_small_job_may_hold_any_context_that_was_seen(untrained: Predictor) -> None:
    for device in ("NVIDIA GeForce RTX 4090", "NVIDIA H200", "NVIDIA GeForce RTX 3090", A100):
        memory = ask(untrained, DENSE, device, batch=1).memory_bytes
        assert memory.lower < 0.55 * GIB
        assert memory.upper > 2 * GIB
        assert (memory.upper_99 or 0.0) > 2 * GIB


def test_what_is_counted_narrows_the_range_of_a_large_job_more_than_a_factor_would(untrained: Predictor) -> None:
    memory = ask(untrained, CONVOLVING, A100, batch=512).memory_bytes
    assert memory.value > 16 * GIB
    assert memory.upper / memory.lower < 2.8


def test_workspaces_stop_growing_with_what_a_convolution_unfolds() -> None:
    def bound(unfolded_bytes: float) -> float:
        counted = COUNTED._replace(unfolded_bytes=unfolded_bytes)
        return estimate_uncalibrated(counted, DEVICE_TYPES[A100], convolves=True).bound_bytes

    assert bound(1e8) < bound(5e8) < bound(2e9) == bound(1e12)


@for_each("device", [A100, "NVIDIA GeForce RTX 4090", STANDIN_DEVICE])
@for_each("batch", [1, 100, 4096])
def test_without_measurements_a_share_is_expected_inside_a_range_and_not_all_of_it(
    untrained: Predictor, device: str, batch: int
) -> None:
    share = ask(untrained, DENSE, device, batch).utilization_ratio
    assert 0 < share.lower < share.value < share.upper < 1
    assert share.range_not_calibrated
    assert not share.in_domain


def test_a_busier_step_is_expected_to_use_more_of_the_device_and_a_waiting_one_less(untrained: Predictor) -> None:
    shares = [ask(untrained, CONVOLVING, A100, batch).utilization_ratio.value for batch in (1, 2, 3, 64, 100, 5_000)]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.2
    settings = JobSettings(global_batch_size=64, optimizer="adam", input_wait_ratio=0.5)
    waiting = untrained.predict_job(JobQuestion(settings=settings, device=A100, onnx_graph=CONVOLVING))
    assert waiting.utilization_ratio.value == pytest.approx(0.5 * shares[3])
    assert waiting.utilization_ratio.upper <= 0.5


def embedding_of(rows: int) -> bytes:
    """A table of so many rows of 64 numbers, looked up and added up by one small layer."""
    net = GraphBuilder()
    rows_looked_up = net.node("Gather", [net.weight([rows, 64]), net.input("ids", ["batch", 26], TensorProto.INT64)])
    return net.model(net.dense(net.node("Flatten", [rows_looked_up]), 26 * 64, 1)).SerializeToString()


def test_a_step_that_is_mostly_the_update_of_a_large_table_keeps_the_device_busy(untrained: Predictor) -> None:
    small, large = (ask(untrained, embedding_of(rows), A100).utilization_ratio for rows in (1_000, 40_000_000))
    assert small.value < 0.1
    assert large.value > 0.7
    inference = ask(untrained, embedding_of(40_000_000), A100, mode="infer").utilization_ratio
    assert inference.value < 0.1


def test_several_passes_hold_their_gradients_in_between(untrained: Predictor) -> None:
    one = ask(untrained, CONVOLVING, A100, batch=1).memory_bytes
    divided = {point.micro_batch_size: point for point in ask(untrained, CONVOLVING, A100, batch=32).micro_batches}
    gradients_bytes = describe_graph(CONVOLVING).at_batch(1).parameter_bytes

    assert one.value < divided[1].memory_bytes.value <= one.value + gradients_bytes
    assert divided[1].memory_bytes.upper_99 == one.upper_99
    assert divided[32].memory_bytes == ask(untrained, CONVOLVING, A100, batch=32).memory_bytes

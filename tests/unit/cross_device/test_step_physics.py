"""What peaks and coefficients say of the time of a step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from predictor_service.cross_device.step_model import answers_for, load_step_model
from predictor_service.cross_device.step_physics import (
    COEFFICIENTS,
    GENERATIONS,
    PRIORS,
    PRODUCT_EFFICIENCY_MAX,
    StepKind,
    clocks_per_ms,
    is_gaming_board,
    log_derivatives,
    number_format,
    products_at_peak_ms,
    step_parts,
    terms_of,
)
from predictor_service.cross_device.step_work import StepWork, work_of_facts
from predictor_service.features.devices import DEVICE_TYPES, STANDIN_DEVICE, DeviceType, Generation
from tests.support.cases import for_each

A100 = DEVICE_TYPES["NVIDIA A100-SXM4-40GB"]
TITAN_RTX = DEVICE_TYPES["NVIDIA TITAN RTX"]
TYPICAL = np.log([prior.typical for prior in PRIORS.values()])
FACTS = {
    "forward_macs_per_sample": 4e9, "convolution_macs_per_sample": 3.5e9, "depthwise_convolution_macs_per_sample": 1e8,
    "nodes": 170.0, "parameters": 25e6, "traffic_bytes_per_sample": 2e8, "traffic_bytes_constant": 1e8,
}  # fmt: skip


def step_work(*batches: int, **facts: float) -> StepWork:
    found = work_of_facts([({**FACTS, **facts}, batch) for batch in batches])
    assert found is not None
    return found


def time_ms(job: StepWork, kind: StepKind, logs: np.ndarray = TYPICAL) -> np.ndarray:
    return step_parts(terms_of(job, [kind]), logs).total_ms


@for_each("is_training", [True, False])
@for_each("precision", ["fp32", "tf32", "bf16", "fp16", "fp64"])
@for_each("device", [A100, TITAN_RTX, DEVICE_TYPES["AMD Instinct MI300X"]])
def test_the_time_never_falls_as_the_batch_grows(device: DeviceType, precision: str, is_training: bool) -> None:
    times = time_ms(step_work(1, 2, 8, 64, 1024), StepKind(device=device, precision=precision, is_training=is_training))
    assert (np.diff(times) >= 0).all()
    assert (times > 0).all()


def test_training_takes_longer_than_inference_and_a_slower_device_longer_than_a_fast_one() -> None:
    train, infer = (StepKind(device=A100, precision="fp32", is_training=each) for each in (True, False))
    assert time_ms(step_work(64), train)[0] > 2 * time_ms(step_work(64), infer)[0]
    slow = StepKind(device=DEVICE_TYPES["Tesla K80"], precision="fp32", is_training=True)
    assert time_ms(step_work(64), slow)[0] > 5 * time_ms(step_work(64), train)[0]


def test_a_step_that_updates_nothing_is_shorter_than_one_of_the_leanest_optimizer_by_what_weights_take() -> None:
    idle, lean, adam = (
        StepKind(device=A100, precision="fp32", is_training=True, optimizer_slots=slots) for slots in (-1.0, 0.0, 2.0)
    )
    times = [time_ms(step_work(512), kind)[0] for kind in (idle, lean, adam)]
    weights_ms = 1e3 * 4 * FACTS["parameters"] / (A100.memory_bytes_per_s * PRIORS["optimizer"].typical)
    assert times[1] - times[0] == pytest.approx(2 * weights_ms, rel=0.01)
    assert times[2] - times[1] == pytest.approx(4 * weights_ms, rel=0.01)


def test_convolutions_in_32_bits_run_in_tf32_on_ampere_and_products_do_not() -> None:
    plain, tf32 = (StepKind(device=A100, precision=each, is_training=True) for each in ("fp32", "tf32"))
    convolving = step_work(256, convolution_macs_per_sample=4e9, depthwise_convolution_macs_per_sample=0.0)
    multiplying = step_work(256, convolution_macs_per_sample=0.0, depthwise_convolution_macs_per_sample=0.0)
    assert time_ms(convolving, plain)[0] == pytest.approx(time_ms(convolving, tf32)[0])
    assert time_ms(multiplying, plain)[0] > 1.5 * time_ms(multiplying, tf32)[0]
    tensorflow = dataclasses.replace(plain, framework="tensorflow-2")
    assert time_ms(multiplying, tensorflow)[0] == pytest.approx(time_ms(multiplying, tf32)[0])


def test_a_small_batch_waits_for_its_host_whatever_the_device() -> None:
    fast, faster = (
        StepKind(device=DEVICE_TYPES[name], precision="fp16", is_training=True)
        for name in ("NVIDIA A30", "NVIDIA B200")
    )
    assert time_ms(step_work(1), fast)[0] == pytest.approx(time_ms(step_work(1), faster)[0], rel=0.1)


@for_each(
    ("name", "precision", "form"),
    [
        ("NVIDIA TITAN RTX", "fp16", "tensor"),
        ("NVIDIA GeForce RTX 4090", "fp16", "tensor"),
        ("NVIDIA GeForce GTX 1080 Ti", "fp16", "half"),
        ("Tesla P100-PCIE-16GB", "fp16", "half"),
        ("NVIDIA TITAN V", "fp64", "fp64_full"),
        ("NVIDIA TITAN RTX", "fp64", "fp64"),
        ("NVIDIA A100-SXM4-40GB", "tf32", "tf32"),
        ("NVIDIA TITAN RTX", "tf32", "fp32"),
    ],
)
def test_the_units_of_a_device_decide_which_arithmetic_runs(name: str, precision: str, form: str) -> None:
    assert number_format(DEVICE_TYPES[name], precision) == form


def test_derivatives_are_those_of_the_time() -> None:
    kinds = [
        StepKind(device=A100, precision="fp32", is_training=True),
        StepKind(device=TITAN_RTX, precision="fp16", is_training=False),
        StepKind(device=DEVICE_TYPES["NVIDIA TITAN V"], precision="fp64", is_training=True),
        StepKind(device=dataclasses.replace(A100, generation=Generation.UNKNOWN), precision="bf16", is_training=True),
    ]
    terms = terms_of(step_work(1, 8, 32, 512), kinds)
    exact, by_host = log_derivatives(terms, TYPICAL, step_parts(terms, TYPICAL))
    for place in range(len(COEFFICIENTS)):
        moved = TYPICAL.copy()
        moved[place] += 1e-6
        numeric = np.log(step_parts(terms, moved).total_ms / step_parts(terms, TYPICAL).total_ms) / 1e-6
        assert exact[:, place] == pytest.approx(numeric, abs=1e-5), COEFFICIENTS[place]
    numeric = np.log(step_parts(terms, TYPICAL, 1e-6).total_ms / step_parts(terms, TYPICAL).total_ms) / 1e-6
    assert by_host == pytest.approx(numeric, abs=1e-5)


@for_each(
    ("name", "gigahertz"),
    [
        ("Tesla K80", 0.875),
        ("Tesla P100-PCIE-16GB", 1.303),
        ("NVIDIA GeForce GTX 1080 Ti", 1.582),
        ("Tesla V100-SXM2-16GB", 1.530),
        ("NVIDIA TITAN RTX", 1.770),
        ("NVIDIA A100-SXM4-40GB", 1.410),
        ("NVIDIA GeForce RTX 3090", 1.695),
        ("NVIDIA GeForce RTX 4090", 2.520),
        ("NVIDIA GeForce RTX 5090", 2.407),
    ],
)
def test_clocks_of_multiprocessors_are_those_that_the_published_rates_imply(name: str, gigahertz: float) -> None:
    device = DEVICE_TYPES[name]
    assert clocks_per_ms(device) / device.multiprocessors == pytest.approx(gigahertz * 1e6, rel=0.03)


def test_moving_takes_less_where_more_multiprocessors_handle_it_at_the_same_bandwidth() -> None:
    faster = dataclasses.replace(A100, peak_flops={name: 2 * rate for name, rate in A100.peak_flops.items()})
    moving = step_work(512, forward_macs_per_sample=0.0, convolution_macs_per_sample=0.0,
                       depthwise_convolution_macs_per_sample=0.0)  # fmt: skip
    plain, quick = (
        time_ms(moving, StepKind(device=each, precision="fp32", is_training=True))[0] for each in (A100, faster)
    )
    assert 0.5 * plain < quick < 0.95 * plain


DEPTHWISE = {"convolution_macs_per_sample": 4e9, "depthwise_convolution_macs_per_sample": 4e9,
             "traffic_bytes_per_sample": 0.0, "traffic_bytes_constant": 0.0}  # fmt: skip


@for_each("name", ["NVIDIA TITAN RTX", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090"])
def test_matrix_units_make_no_depthwise_convolution_faster(name: str) -> None:
    half, single = (
        step_parts(terms_of(step_work(64, **DEPTHWISE), [StepKind(device=DEVICE_TYPES[name], precision=each,
                                                                  is_training=True)]), TYPICAL)
        for each in ("fp16", "fp32")
    )  # fmt: skip
    assert half.terms_ms[2, 0] == pytest.approx(single.terms_ms[2, 0])


@for_each(
    ("name", "is_slow"),
    [
        ("NVIDIA TITAN Xp", True),
        ("Tesla P40", True),
        ("Tesla P100-PCIE-16GB", False),
        ("Tesla K80", False),
        ("NVIDIA TITAN V", False),
    ],
)
def test_depthwise_convolutions_in_16_bits_crawl_on_pascal_cards_with_few_lanes_for_them(
    name: str, is_slow: bool
) -> None:
    half, single = (
        time_ms(step_work(64, **DEPTHWISE), StepKind(device=DEVICE_TYPES[name], precision=each, is_training=True))[0]
        for each in ("fp16", "fp32")
    )
    assert bool(half > 5 * single) is is_slow
    dense = {"depthwise_convolution_macs_per_sample": 0.0}
    half, single = (
        time_ms(step_work(64, **dense), StepKind(device=DEVICE_TYPES[name], precision=each, is_training=True))[0]
        for each in ("fp16", "fp32")
    )
    assert half < 1.3 * single


PRODUCTS = {"convolution_macs_per_sample": 0.0, "depthwise_convolution_macs_per_sample": 0.0}


def test_no_coefficient_makes_matrix_products_faster_than_measured_ones_were() -> None:
    kind, logs = StepKind(device=A100, precision="fp32", is_training=True), TYPICAL.copy()
    logs[COEFFICIENTS.index("product_fp32")] = np.log(1.6)
    terms = terms_of(step_work(4096, **PRODUCTS), [kind])
    parts = step_parts(terms, logs)
    at_peak_ms = 1e3 * 3 * 2 * 4e9 * 4096 / A100.peak("fp32")
    assert products_at_peak_ms(terms)[0] == pytest.approx(at_peak_ms)
    assert parts.terms_ms[1, 0] == pytest.approx(at_peak_ms / PRODUCT_EFFICIENCY_MAX)
    assert log_derivatives(terms, logs, parts)[0][0, COEFFICIENTS.index("product_fp32")] == 0.0


def test_convolutions_may_be_faster_than_the_peak_by_what_winograd_saves_and_no_more() -> None:
    kind, logs = StepKind(device=TITAN_RTX, precision="fp32", is_training=True), TYPICAL.copy()
    times = []
    for efficiency in (1.0, 2.0, 2.25, 9.0):
        logs[COEFFICIENTS.index("convolution_fp32")] = np.log(efficiency)
        times.append(time_ms(step_work(1024), kind, logs)[0])
    assert times[0] > times[1] > times[2] == pytest.approx(times[3])


@for_each(
    ("name", "is_gaming"),
    [
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA TITAN V", True),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", False),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False),
        ("Tesla V100-SXM2-16GB", False),
        ("AMD Radeon RX 7900 XTX", False),
    ],
)
def test_boards_of_gaming_cards_alone_run_above_their_published_clock(name: str, is_gaming: bool) -> None:
    board = dataclasses.replace(DEVICE_TYPES["NVIDIA GeForce RTX 3090"], name=name)
    boosted, logs = TYPICAL.copy(), TYPICAL.copy()
    boosted[COEFFICIENTS.index("boost_gaming")] += 0.1
    kind = StepKind(device=board, precision="fp32", is_training=True)
    faster = time_ms(step_work(1024), kind, logs)[0] / time_ms(step_work(1024), kind, boosted)[0]
    assert is_gaming_board(board) is is_gaming
    assert bool(faster > 1.01) is is_gaming
    moving = step_work(1024, forward_macs_per_sample=0.0, convolution_macs_per_sample=0.0,
                       depthwise_convolution_macs_per_sample=0.0)  # fmt: skip
    moved = time_ms(moving, kind, logs)[0] / time_ms(moving, kind, boosted)[0]
    assert bool(moved > 1.01) is is_gaming  # what multiprocessors handle follows their clock as well


def test_what_a_script_does_beside_the_step_adds_to_its_time_and_to_nothing_else() -> None:
    kind = StepKind(device=A100, precision="fp32", is_training=True)
    terms = terms_of(step_work(1, 64), [kind])
    bare, busy = step_parts(terms, TYPICAL), step_parts(terms, TYPICAL, script_ms=5.0)
    assert busy.total_ms - bare.total_ms == pytest.approx(5.0)
    assert busy.joined_ms.tolist() == bare.joined_ms.tolist()


def test_every_generation_of_the_table_has_coefficients_and_the_processor_has_none() -> None:
    assert {device.generation.value for device in DEVICE_TYPES.values()} - {"processor"} <= set(GENERATIONS)
    assert not answers_for(DEVICE_TYPES[STANDIN_DEVICE])
    assert len(load_step_model().logs) == len(COEFFICIENTS)


@pytest.mark.parametrize("missing", ["forward_macs_per_sample", "nodes", "parameters"])
def test_a_job_of_which_a_sum_is_unknown_has_no_work(missing: str) -> None:
    facts = {name: value for name, value in FACTS.items() if name != missing}
    assert work_of_facts([(FACTS, 1), (facts, 1)]) is None
    assert work_of_facts([]) is None


def test_totals_without_families_are_split_by_what_the_network_mostly_is() -> None:
    totals = {"forward_macs_per_sample": 1e9, "nodes": 9.0, "parameters": 1e6, "traffic_bytes_per_sample": 1e6}
    convolving = work_of_facts([({**totals, "convolution_nodes": 20.0, "matrix_multiply_nodes": 1.0}, 2)])
    multiplying = work_of_facts([({**totals, "convolution_nodes": 1.0, "matrix_multiply_nodes": 20.0}, 2)])
    assert convolving is not None
    assert multiplying is not None
    assert (convolving.convolution_flops[0], convolving.product_flops[0]) == (4e9, 0.0)
    assert (multiplying.convolution_flops[0], multiplying.product_flops[0]) == (0.0, 4e9)

"""What a simulated training step says of where its time goes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.step_simulation import ForwardWork, simulate_step

A100 = DEVICE_TYPES["NVIDIA A100-SXM4-40GB"]
V100 = DEVICE_TYPES["Tesla V100-SXM2-16GB"]


def work_of(batch: int, operators: int = 4, flops_per_sample: float = 1e9) -> ForwardWork:
    """Products and other operators in turn."""
    return ForwardWork(
        flops=np.array([batch * flops_per_sample * (place % 2 == 0) for place in range(operators)]),
        traffic_bytes=np.full(operators, batch * 1e6),
        is_product=np.array([place % 2 == 0 for place in range(operators)], dtype=np.bool_),
        product_sizes=np.full((operators, 3), (float(batch), 256.0, flops_per_sample / 512.0)),
        parameters=1e6,
        input_bytes=batch * 6e5,
        batch=batch,
    )


def test_every_product_has_three_kernels_and_every_other_operator_two() -> None:
    simulated = simulate_step(work_of(8, operators=6), A100, "fp32")
    assert simulated["simulated_kernels"] == 3 * 3 + 3 * 2 + 1
    assert simulated["simulated_flops"] == 3 * (3 * 8 * 1e9)


def test_short_kernels_leave_the_device_waiting_for_the_host() -> None:
    short = simulate_step(work_of(1, operators=400, flops_per_sample=1e3), A100, "fp32")
    long = simulate_step(work_of(64, operators=4, flops_per_sample=1e11), A100, "fp32")
    assert short["simulated_busy_ratio"] < 0.2
    assert long["simulated_busy_ratio"] > 0.9
    assert short["simulated_short_kernel_ratio"] > 0.99
    assert long["simulated_compute_bound_ratio"] > 0.9


def test_a_network_without_layers_still_has_figures() -> None:
    nothing = ForwardWork(
        flops=np.zeros(0), traffic_bytes=np.zeros(0), is_product=np.zeros(0, dtype=np.bool_),
        product_sizes=np.zeros((0, 3)), parameters=0.0,
        input_bytes=0.0, batch=1,
    )  # fmt: skip
    simulated = simulate_step(nothing, A100, "fp32")
    assert simulated["simulated_busy_ms"] == 0.0
    assert np.isfinite(list(simulated.values())).all()


def test_a_slower_device_is_busy_longer() -> None:
    fast, slow = (simulate_step(work_of(32), device, "fp32") for device in (A100, V100))
    assert slow["simulated_busy_ms"] > fast["simulated_busy_ms"]


@settings(max_examples=50, deadline=None)
@given(batch=st.integers(1, 512), flops=st.floats(0, 1e12))
@pytest.mark.parametrize(
    "name",
    ["simulated_busy_ms", "simulated_launched_ms", "simulated_input_ms", "simulated_flops"],
)
def test_no_time_falls_as_the_batch_grows(name: str, batch: int, flops: float) -> None:
    smaller, larger = (simulate_step(work_of(size, 4, flops), A100, "fp32")[name] for size in (batch, batch + 1))
    assert smaller <= larger


def test_a_product_too_small_for_all_multiprocessors_is_slower_than_its_arithmetic() -> None:
    small, large = (
        simulate_step(work_of(batch, operators=1, flops_per_sample=512.0 * 4096), A100, "fp32")
        for batch in (32, 32 * 1024)
    )
    at_peak = [figures["simulated_flops"] / A100.peak("fp32") * 1e3 for figures in (small, large)]
    assert small["simulated_tiled_products_ms"] > 3 * at_peak[0]
    assert large["simulated_tiled_products_ms"] < 1.3 * at_peak[1]

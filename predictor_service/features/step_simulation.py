"""Where the time of a training step goes if every kernel ran at the device's peaks: device, launches, host and input.

A roofline of sums hides that a step of a thousand short kernels waits for the host while one of ten long kernels does
not, and this is what utilization is made of. Every operator becomes its forward kernel and its backward kernels, each
as long as its arithmetic or its traffic needs; what is shorter than a launch leaves the device idle. The figures are no
predictions: learned corrections start from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.analytical_memory import ACTIVATION_SCALE
from predictor_service.features.devices import DeviceType
from predictor_service.features.graphs.affine import FloatArray
from predictor_service.features.graphs.batch_figures import figures_at

# A product has two gradients, each as costly as the product; other operators read one more tensor than before.
_BACKWARD_TRAFFIC: Final = 1.5
# Adam reads and writes weight, gradient and both moments in 32 bits.
_OPTIMIZER_BYTES_PER_PARAMETER: Final = 28
_WEIGHT_BYTES: Final = 4
# Calls of a step that belong to no operator: loss, clearing gradients, optimizer.
_FIXED_LAUNCHES: Final = 3
_STEP_HOST_MS: Final = 0.3
# One host process that makes, copies and collates samples; round figures of ordinary loaders.
INPUT_BYTES_PER_MS: Final = 2e6
SAMPLE_HOST_MS: Final = 0.005
# Tiles of matrix libraries, and how far they cut the inner size of a product that has too few tiles.
_TILE: Final = 128
_INNER_CUT: Final = 256
_SHORTEST_KERNEL_MS: Final = 0.0025
# Costs of one call on the host in launches of the device: compiled, plain, and with a slow interpreter.
_LAUNCH_COSTS: Final = (0.8, 1.5, 2.5)
_LOADERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardWork:
    """The forward pass of one step, operator by operator.

    Attributes:
        flops: Operations, shape (operators,).
        traffic_bytes: Read and written, shape (operators,).
        is_product: Whether an operator is a convolution or a matrix product, shape (operators,).
        product_sizes: Rows, columns and inner size of each product, shape (operators, 3); 0 for other operators.
        parameters: Trained numbers.
        input_bytes: Size of the input of the whole batch.
        batch: Samples per step.
    """

    flops: FloatArray
    traffic_bytes: FloatArray
    is_product: np.ndarray[tuple[int], np.dtype[np.bool_]]
    product_sizes: FloatArray
    parameters: float
    input_bytes: float
    batch: int


def simulate_step(work: ForwardWork, device: DeviceType, precision: str) -> Mapping[str, float]:
    """Simulates one training step on an otherwise idle device.

    Args:
        work: What the forward pass does.
        device: Its peaks and its launch time.
        precision: Of the arithmetic.

    Returns:
        Figures by name, all finite; times and sums never fall as the batch grows:
        simulated_busy_ms              kernels, without waiting
        simulated_launched_ms          the same when none is shorter than a launch
        simulated_host_ms              launching them
        simulated_input_ms             preparing the input on the host
        simulated_busy_ratio           busy / the slowest of device, host and input
        simulated_serial_busy_ratio    busy / the sum of the three
        simulated_busy_per_host_log, simulated_busy_per_input_log  ln(busy / host), ln(busy / input)
        simulated_kernels              count
        simulated_short_kernel_ratio   share of kernels shorter than a launch
        simulated_compute_bound_ratio  share of busy time bound by arithmetic
        simulated_longest_kernel_ms, simulated_median_kernel_ms
        simulated_flops, simulated_traffic_bytes  of the whole step
        simulated_tiled_...            the same by tiles instead of peaks, see `_tile_products`
    """
    flops, traffic_bytes = _kernels(work)
    flops_ms = flops * (1e3 / device.peak(precision))
    kernel_ms = np.maximum(flops_ms, traffic_bytes * (1e3 / device.memory_bytes_per_s))
    busy_ms = float(kernel_ms.sum())
    host_ms = device.launch_ms * (len(kernel_ms) + _FIXED_LAUNCHES) + _STEP_HOST_MS
    input_ms = work.input_bytes / INPUT_BYTES_PER_MS + work.batch * SAMPLE_HOST_MS
    return {
        "simulated_busy_ms": busy_ms,
        "simulated_launched_ms": float(np.maximum(kernel_ms, device.launch_ms).sum()),
        "simulated_host_ms": host_ms,
        "simulated_input_ms": input_ms,
        "simulated_busy_ratio": busy_ms / max(busy_ms, host_ms, input_ms),
        "simulated_serial_busy_ratio": busy_ms / (busy_ms + host_ms + input_ms),
        "simulated_busy_per_host_log": _log_ratio(busy_ms, host_ms),
        "simulated_busy_per_input_log": _log_ratio(busy_ms, input_ms),
        "simulated_kernels": float(len(kernel_ms)),
        "simulated_short_kernel_ratio": float((kernel_ms < device.launch_ms).mean()),
        "simulated_compute_bound_ratio": float(kernel_ms[flops_ms >= kernel_ms].sum()) / max(busy_ms, 1e-12),
        "simulated_longest_kernel_ms": float(kernel_ms.max()),
        "simulated_median_kernel_ms": float(np.median(kernel_ms)),
        "simulated_flops": float(flops.sum()),
        "simulated_traffic_bytes": float(traffic_bytes.sum()),
        **_simulate_tiled(work, device, precision, input_ms),
    }


def _simulate_tiled(work: ForwardWork, device: DeviceType, precision: str, input_ms: float) -> dict[str, float]:
    """The step when products are as long as their tiles need, at three costs of a launch."""
    products_ms = _tile_products(work, device, precision)
    others = work.traffic_bytes[~work.is_product]
    others_ms = np.concatenate([others, _BACKWARD_TRAFFIC * others]) * (1e3 / device.memory_bytes_per_s)
    optimizer_ms = _OPTIMIZER_BYTES_PER_PARAMETER * work.parameters * 1e3 / device.memory_bytes_per_s
    kernel_ms = np.concatenate([products_ms, others_ms, np.array([optimizer_ms])])
    busy_ms = float(np.maximum(kernel_ms, _SHORTEST_KERNEL_MS).sum())
    ratios = {}
    for launches in _LAUNCH_COSTS:
        host_ms = launches * device.launch_ms * len(kernel_ms) + _STEP_HOST_MS
        name = f"simulated_tiled_busy_ratio_{launches:g}_launches"
        ratios[name] = busy_ms / max(busy_ms, host_ms, input_ms / _LOADERS)
        ratios[f"{name}_serial"] = busy_ms / (busy_ms + host_ms + input_ms)
    return {
        "simulated_tiled_busy_ms": busy_ms,
        "simulated_tiled_products_ms": float(products_ms.sum()),
        "simulated_tiled_longest_product_ms": float(products_ms.max(initial=0.0)),
        "simulated_tiled_median_product_ms": float(np.median(products_ms)) if len(products_ms) else 0.0,
        "simulated_tiled_busy_per_kernel_log": _log_ratio(busy_ms, len(kernel_ms)),
        "simulated_tiled_busy_per_input_log": _log_ratio(busy_ms, max(input_ms, 1e-9)),
        **ratios,
    }


def _tile_products(work: ForwardWork, device: DeviceType, precision: str) -> FloatArray:
    """Milliseconds of the three products of each product of the forward pass.

    A product is cut into square tiles, one multiprocessor computes one at a time, and a wave is as long as its last
    tile: small products leave multiprocessors idle however fast these are. Where tiles are fewer than multiprocessors
    the inner size is cut as well. Shape (3 * products,).
    """
    rows, columns, inner = np.maximum(work.product_sizes[work.is_product], 1.0).T
    rates = device.peak(precision) / device.multiprocessors
    parts = []
    for m, n, k in ((rows, columns, inner), (rows, inner, columns), (inner, columns, rows)):
        tiles = np.ceil(m / _TILE) * np.ceil(n / _TILE)
        cuts = np.clip(np.minimum(device.multiprocessors // tiles, k // _INNER_CUT), 1, None)
        waves = np.ceil(tiles * cuts / device.multiprocessors)
        arithmetic_ms = waves * (2e3 * _TILE**2) * (k / cuts) / rates
        traffic_ms = _WEIGHT_BYTES * (m * n + m * k + n * k) * (1e3 / device.memory_bytes_per_s)
        parts.append(np.maximum(arithmetic_ms, traffic_ms))
    return np.concatenate(parts)


STEP_PART_NAMES: Final = ("fixed", "arithmetic", "traffic", "launches", "sequence", "weights")
"""Parts of the step time of a job that is known by figures in a table."""


def described_step_parts(
    facts: Mapping[str, float], batch: int, device: DeviceType, precision: str, mode: str
) -> Mapping[str, float] | None:
    """Splits the time of a step into what the device's peaks predict for each kind of work.

    Args:
        facts: `parameters` and `forward_macs_per_sample`; where known also what is allocated over a step and the number
            of its operators, by the naming of `batch_figures`.
        batch: Samples held at a time.
        device: Its peaks and its launch time.
        precision: Of the arithmetic; one that the device lacks runs at the fp32 rate.
        mode: train | infer.

    Returns:
        Milliseconds by `STEP_PART_NAMES`; they overlap in time, their coefficients are fitted. None where the first two
        facts are missing.
    """
    figures = figures_at(facts, batch)
    if "parameters" not in figures or "forward_macs" not in figures:
        return None
    passes = 3.0 if mode == "train" else 1.0
    kept = figures.get("allocated_bytes", figures.get("saved_for_backward_bytes", 0.0)) * passes / 3.0
    launches = figures.get("step_nodes", passes * figures.get("nodes", 0.0))
    weight_bytes = _OPTIMIZER_BYTES_PER_PARAMETER if mode == "train" else _WEIGHT_BYTES
    return {
        "fixed": _STEP_HOST_MS,
        "arithmetic": 2e3 * passes * figures["forward_macs"] / device.peak(precision),
        "traffic": 2e3 * kept * ACTIVATION_SCALE.get(precision, 1.0) / device.memory_bytes_per_s,
        "launches": launches * device.launch_ms,
        "sequence": passes * device.sequence_ms(figures.get("recurrent_steps", 0.0), figures.get("lstm_steps", 0.0)),
        "weights": 1e3 * weight_bytes * figures["parameters"] / device.memory_bytes_per_s,
    }


def _kernels(work: ForwardWork) -> tuple[FloatArray, FloatArray]:
    """Operations and traffic of every kernel: forward, backward, second gradient of products, optimizer."""
    product = work.is_product
    backward_traffic = np.where(product, work.traffic_bytes, _BACKWARD_TRAFFIC * work.traffic_bytes)
    optimizer_bytes = _OPTIMIZER_BYTES_PER_PARAMETER * work.parameters
    flops = (work.flops, work.flops, work.flops[product], np.zeros(1))
    traffic = (work.traffic_bytes, backward_traffic, work.traffic_bytes[product], np.array([optimizer_bytes]))
    return np.concatenate(flops), np.concatenate(traffic)


def _log_ratio(part: float, whole: float) -> float:
    return math.log(max(part, 1e-9) / whole)

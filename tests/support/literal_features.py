"""The vector of one job at one batch, spelled out value by value: the yardstick of vectors made for many at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import ACTIVATION_SCALE, count_memory
from predictor_service.features.devices import DeviceType
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import OperatorFamily as Family
from predictor_service.features.job_settings import OPTIMIZER_SLOTS

FAMILIES: Final = tuple(Family)
CONVOLUTIONS: Final = (Family.CONVOLUTION, Family.DEPTHWISE_CONVOLUTION)
WORK: Final = (Family.CONVOLUTION, Family.MATRIX_MULTIPLY, Family.RECURRENT, Family.NORMALIZATION)


def literal_step_ms(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> float:
    """Time of a step at the device's peaks, without waiting."""
    return float(family_ms(graph, settings, device).sum()) + optimizer_ms(graph, settings, device) + device.launch_ms


def literal_values(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> dict[str, float]:
    """All values by name."""
    memory_bytes = count_memory(graph, settings, device).total_bytes
    return {
        **dict(sizes(graph)),
        "log_roofline_ms": math.log(literal_step_ms(graph, settings, device)),
        **dict(shares(graph, settings, device)),
        **{f"log_{family.value}_nodes": math.log1p(graph.operator_counts[family]) for family in FAMILIES},
        "log_memory_bytes": math.log(memory_bytes),
        "activation_memory_ratio": min(1.0, graph.activation_bytes_saved / memory_bytes),
        "unfolded_memory_ratio": min(1.0, graph.largest_unfolded_bytes / memory_bytes),
        **dict(choices(settings)),
        "log_peak_flops": math.log(device.peak(settings.precision)),
        "log_memory_bandwidth": math.log(device.memory_bytes_per_s),
        "log_device_memory": math.log(device.memory_bytes),
        "log_multiprocessors": math.log(device.multiprocessors),
    }


def sizes(graph: GraphFeatures) -> Iterator[tuple[str, float]]:
    yield "log_batch", math.log(graph.batch)
    yield "log_parameters", math.log1p(graph.parameters)
    yield "log_flops_per_sample", math.log1p(graph.forward_flops / graph.batch)
    yield "log_flops", math.log1p(graph.forward_flops)
    yield "log_activation_bytes", math.log1p(graph.activation_bytes_saved)
    yield "log_input_bytes", math.log1p(graph.input_bytes)
    yield "log_output_bytes", math.log1p(graph.output_bytes)
    yield "log_traffic_bytes", math.log1p(graph.traffic_bytes)
    yield "log_widest_activation_bytes", math.log1p(graph.widest_activation_bytes)
    yield "log_unfolded_bytes", math.log1p(graph.largest_unfolded_bytes)
    yield "log_intensity", math.log1p(graph.forward_flops / max(graph.traffic_bytes, 1))
    yield "log_flops_per_node", math.log1p(graph.forward_flops / max(graph.nodes, 1))
    yield "log_nodes", math.log1p(graph.nodes)
    yield "log_depth", math.log1p(graph.depth)
    yield "log_recurrent_steps", math.log1p(graph.recurrent_steps)
    yield "unshaped_ratio", graph.unshaped_nodes / max(graph.nodes, 1)


def shares(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> Iterator[tuple[str, float]]:
    flops_ms, traffic_ms, each_ms = operator_ms(graph, settings, device)
    times, work = family_ms(graph, settings, device), work_ms(graph, each_ms)
    sum_ms = max(float(times.sum()), 1e-12)
    yield "compute_bound_ratio", float(each_ms[flops_ms >= traffic_ms].sum()) / sum_ms
    for family, time_ms in zip(FAMILIES, times, strict=True):
        yield f"{family.value}_time_ratio", time_ms / sum_ms
    for family in WORK:
        yield f"{family.value}_work_ratio", work[FAMILIES.index(family)] / max(float(work.sum()), 1e-12)


def choices(settings: JobSettings) -> Iterator[tuple[str, float]]:
    yield "is_training", float(settings.mode == "train")
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        yield f"precision_is_{precision}", float(settings.precision == precision)
    for optimizer in ("sgd", "momentum", "adam", "adamw"):
        yield f"optimizer_is_{optimizer}", float(settings.optimizer == optimizer)
    yield "optimizer_slots", float(OPTIMIZER_SLOTS[settings.optimizer])
    yield "input_wait_ratio", settings.input_wait_ratio
    for name in ("host_memory_bytes", "disk_read_bytes_per_s", "network_bytes_per_s"):
        value = getattr(settings, name)
        yield f"log_{name}", math.log(value or 1.0)
        yield f"{name}_is_known", float(value is not None)


def passes_of(settings: JobSettings) -> float:
    return 3.0 if settings.mode == "train" else 1.0


def operator_ms(
    graph: GraphFeatures, settings: JobSettings, device: DeviceType
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    passes = passes_of(settings)
    convolutional = np.array([family in CONVOLUTIONS for family in graph.operator_families], dtype=bool)
    convolution_peak = device.peak(device.convolution_precision(settings.precision))
    peaks = np.where(convolutional, convolution_peak, device.peak(settings.precision))
    flops_ms = graph.operator_flops * (1e3 * passes / peaks)
    scale = 1e3 * passes * ACTIVATION_SCALE[settings.precision] / device.memory_bytes_per_s
    traffic_ms = graph.operator_traffic_bytes * scale
    return flops_ms, traffic_ms, np.maximum(np.maximum(flops_ms, traffic_ms), device.launch_ms * passes)


def work_ms(graph: GraphFeatures, each_ms: np.ndarray) -> np.ndarray:
    sums = np.zeros(len(FAMILIES))
    for family, time_ms in zip(graph.operator_families, each_ms, strict=True):
        sums[FAMILIES.index(family)] += time_ms
    return sums


def family_ms(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> np.ndarray:
    times = work_ms(graph, operator_ms(graph, settings, device)[2])
    recurrent = FAMILIES.index(Family.RECURRENT)
    times[FAMILIES.index(Family.MATRIX_MULTIPLY)] += times[recurrent]
    times[recurrent] = passes_of(settings) * device.sequence_ms(graph.recurrent_steps, graph.lstm_steps)
    return times


def optimizer_ms(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> float:
    if settings.mode != "train":
        return 0.0
    slots = 2.0 * (2 + OPTIMIZER_SLOTS[settings.optimizer])
    return 1e3 * slots * graph.parameter_bytes / device.memory_bytes_per_s

"""From graph, settings and device to one named vector: the only function that does so, for training and serving alike.

Sizes enter as natural logarithms because they span ten orders of magnitude; shares of the roofline time say what kind
of work fills a step. What is unknown enters as 0 beside a flag that says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from cotenant.job_settings import OPTIMIZERS, PRECISIONS, JobSettings
from predictor_service.features.analytical_memory import ACTIVATION_SCALE, MemoryBreakdown, count_memory
from predictor_service.features.devices import DeviceType
from predictor_service.features.graph_features import GraphFeatures
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.operator_families import OperatorFamily

FEATURE_VERSION: Final = 4
"""Raise it with every change of names, order or meaning: models of another version are not served."""

FloatArray = npt.NDArray[np.float64]

# A backward pass costs about two forward passes: gradients by input and by weight.
_TRAINING_PASSES: Final = 3.0
# Each optimizer slot is read and written once a step, as are weight and gradient.
_TRAFFIC_PER_SLOT: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A place in the vector."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFeatures:
    """What the regressors see of a job, and the physical figures that anchor them.

    Attributes:
        values: Shape (len(FEATURES),), in the order of `FEATURES`.
        roofline_ms: Time of one step if every operator ran at the device's peaks, waiting included.
        optimizer_ratio: Share of that time which the optimizer takes, however many passes the step has; 0 to 1.
        analytical_memory_bytes: Counted memory.
        counted_memory: Its parts.
        convolves: Whether the graph has a convolution.
        utilization_ceiling_ratio: Share of a step not spent waiting for input.
    """

    values: FloatArray
    roofline_ms: float
    optimizer_ratio: float
    analytical_memory_bytes: float
    counted_memory: MemoryBreakdown
    convolves: bool
    utilization_ceiling_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roofline:
    """Where the time of a step goes at the device's peaks."""

    step_ms: float
    compute_bound_ratio: float
    family_ratios: tuple[float, ...]
    work_ratios: tuple[float, ...]


def build_features(
    graph: GraphFeatures,
    settings: JobSettings,
    device: DeviceType,
    codes: npt.NDArray[np.intp] | None = None,
) -> JobFeatures:
    """Builds the vector of one job on one device type.

    Args:
        graph: Features at the batch of interest; it may differ from `settings.batch_size` (sub-batches).
        settings: How the job runs.
        device: What it runs on.
        codes: `family_codes` of the graph, where they are at hand; they do not depend on the batch.

    Returns:
        The vector with its anchors.
    """
    if codes is None:
        codes = family_codes(graph.operator_families)
    roofline = _measure_roofline(graph, settings, device, codes)
    counted = count_memory(graph, settings, device)
    memory_bytes = counted.total_bytes
    values = [value for _, _, value in _named_values(graph, settings, device, roofline, memory_bytes)]
    ceiling_ratio = 1.0 - settings.input_wait_ratio
    return JobFeatures(
        values=np.array(values, dtype=np.float64),
        roofline_ms=roofline.step_ms / ceiling_ratio,
        optimizer_ratio=_optimizer_ms(graph, settings, device) * ceiling_ratio / roofline.step_ms,
        analytical_memory_bytes=memory_bytes,
        counted_memory=counted,
        convolves=any(graph.operator_counts[family] for family in _CONVOLUTIONS),
        utilization_ceiling_ratio=ceiling_ratio,
    )


def family_codes(families: Sequence[OperatorFamily]) -> npt.NDArray[np.intp]:
    """Numbers the family of each operator, shape (operators,)."""
    return np.fromiter((_FAMILY_CODES[family] for family in families), dtype=np.intp, count=len(families))


def _measure_roofline(
    graph: GraphFeatures, settings: JobSettings, device: DeviceType, codes: npt.NDArray[np.intp]
) -> _Roofline:
    passes = _TRAINING_PASSES if settings.mode == "train" else 1.0
    flops_ms = graph.operator_flops * (1e3 * passes / device.peak(settings.precision))
    bytes_to_ms = 1e3 * passes * ACTIVATION_SCALE[settings.precision] / device.memory_bytes_per_s
    traffic_ms = graph.operator_traffic_bytes * bytes_to_ms
    operator_ms = np.maximum(np.maximum(flops_ms, traffic_ms), device.launch_ms * passes)
    work_ms = np.bincount(codes, weights=operator_ms, minlength=len(_FAMILY_CODES))
    family_ms = work_ms.copy()
    # What a recurrent layer multiplies is a product like any other; what makes it recurrent is waiting.
    family_ms[_FAMILY_CODES[OperatorFamily.MATRIX_MULTIPLY]] += work_ms[_FAMILY_CODES[OperatorFamily.RECURRENT]]
    family_ms[_FAMILY_CODES[OperatorFamily.RECURRENT]] = passes * device.sequence_ms(
        graph.recurrent_steps, graph.lstm_steps
    )
    sum_ms = float(family_ms.sum())
    return _Roofline(
        step_ms=sum_ms + _optimizer_ms(graph, settings, device) + device.launch_ms,
        compute_bound_ratio=float(operator_ms[flops_ms >= traffic_ms].sum()) / max(sum_ms, 1e-12),
        family_ratios=tuple((family_ms / max(sum_ms, 1e-12)).tolist()),
        work_ratios=tuple((work_ms / max(float(work_ms.sum()), 1e-12)).tolist()),
    )


def _optimizer_ms(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> float:
    if settings.mode != "train":
        return 0.0
    slots = _TRAFFIC_PER_SLOT * (2 + OPTIMIZER_SLOTS[settings.optimizer])
    return 1e3 * slots * graph.parameter_bytes / device.memory_bytes_per_s


def _named_values(
    graph: GraphFeatures, settings: JobSettings, device: DeviceType, roofline: _Roofline, memory_bytes: float
) -> Iterator[tuple[str, str, float]]:
    """Yields (name, unit, value) in the order of the vector."""
    batch = graph.batch
    yield "log_batch", "ln(samples)", math.log(batch)
    yield "log_parameters", "ln(count)", math.log1p(graph.parameters)
    yield "log_flops_per_sample", "ln(operations)", math.log1p(graph.forward_flops / batch)
    yield "log_flops", "ln(operations)", math.log1p(graph.forward_flops)
    yield "log_activation_bytes", "ln(bytes)", math.log1p(graph.activation_bytes_saved)
    yield "log_input_bytes", "ln(bytes)", math.log1p(graph.input_bytes)
    yield "log_output_bytes", "ln(bytes)", math.log1p(graph.output_bytes)
    yield "log_traffic_bytes", "ln(bytes)", math.log1p(graph.traffic_bytes)
    yield "log_widest_activation_bytes", "ln(bytes)", math.log1p(graph.widest_activation_bytes)
    yield "log_intensity", "ln(operations/byte)", math.log1p(graph.forward_flops / max(graph.traffic_bytes, 1))
    yield "log_flops_per_node", "ln(operations)", math.log1p(graph.forward_flops / max(graph.nodes, 1))
    yield "log_nodes", "ln(count)", math.log1p(graph.nodes)
    yield "log_depth", "ln(count)", math.log1p(graph.depth)
    yield "log_recurrent_steps", "ln(count)", math.log1p(graph.recurrent_steps)
    yield "unshaped_ratio", "share of nodes", graph.unshaped_nodes / max(graph.nodes, 1)
    yield "log_roofline_ms", "ln(ms)", math.log(roofline.step_ms)
    yield "compute_bound_ratio", "share of roofline time", roofline.compute_bound_ratio
    for name, ratio in zip(_TIME_NAMES, roofline.family_ratios, strict=True):
        yield name, "share of roofline time", ratio
    for family, name in _WORK_NAMES.items():
        yield name, "share of roofline time without waiting", roofline.work_ratios[_FAMILY_CODES[family]]
    for family, name in _COUNT_NAMES.items():
        yield name, "ln(count)", math.log1p(graph.operator_counts[family])
    yield "log_memory_bytes", "ln(bytes)", math.log(memory_bytes)
    yield "activation_memory_ratio", "share of counted memory", min(1.0, graph.activation_bytes_saved / memory_bytes)
    yield from _setting_values(settings)
    yield "log_peak_flops", "ln(operations/s)", math.log(device.peak(settings.precision))
    yield "log_memory_bandwidth", "ln(bytes/s)", math.log(device.memory_bytes_per_s)
    yield "log_device_memory", "ln(bytes)", math.log(device.memory_bytes)
    yield "log_multiprocessors", "ln(count)", math.log(device.multiprocessors)


def _setting_values(settings: JobSettings) -> Iterator[tuple[str, str, float]]:
    yield "is_training", "0 | 1", float(settings.mode == "train")
    for precision in PRECISIONS:
        yield f"precision_is_{precision}", "0 | 1", float(settings.precision == precision)
    for optimizer in OPTIMIZERS:
        yield f"optimizer_is_{optimizer}", "0 | 1", float(settings.optimizer == optimizer)
    yield "optimizer_slots", "count", float(OPTIMIZER_SLOTS[settings.optimizer])
    yield "input_wait_ratio", "share of a step", settings.input_wait_ratio
    for name in ("host_memory_bytes", "disk_read_bytes_per_s", "network_bytes_per_s"):
        value = getattr(settings, name)
        yield f"log_{name}", "ln(bytes)" if name == "host_memory_bytes" else "ln(bytes/s)", math.log(value or 1.0)
        yield f"{name}_is_known", "0 | 1", float(value is not None)


_TIME_NAMES: Final = tuple(f"{family.value}_time_ratio" for family in OperatorFamily)
_WORK_NAMES: Final = {
    family: f"{family.value}_work_ratio"
    for family in (
        OperatorFamily.CONVOLUTION,
        OperatorFamily.MATRIX_MULTIPLY,
        OperatorFamily.RECURRENT,
        OperatorFamily.NORMALIZATION,
    )
}
"""Memory knows what kind of work a step does, not how long it waits."""
_NO_RATIOS: Final = (0.0,) * len(OperatorFamily)
_CONVOLUTIONS: Final = (OperatorFamily.CONVOLUTION, OperatorFamily.DEPTHWISE_CONVOLUTION)
_COUNT_NAMES: Final = {family: f"log_{family.value}_nodes" for family in OperatorFamily}
_FAMILY_CODES: Final = {family: code for code, family in enumerate(OperatorFamily)}


def _list_features() -> tuple[Feature, ...]:
    """Names and units, read from the values of an empty graph so that they cannot drift apart."""
    empty = np.zeros(0)
    graph = GraphFeatures(
        batch=1, parameters=0, parameter_bytes=0, buffers=0, buffer_bytes=0, forward_macs=0, forward_flops=0,
        activation_bytes_saved=0, input_bytes=0, output_bytes=0, traffic_bytes=0, widest_activation_bytes=0, depth=0,
        recurrent_steps=0, lstm_steps=0, nodes=0, unshaped_nodes=0, operator_counts=dict.fromkeys(OperatorFamily, 0),
        operator_families=(), operator_flops=empty, operator_traffic_bytes=empty,
    )  # fmt: skip
    device = DeviceType(
        name="none", memory_bytes=1, peak_flops={"fp32": 1.0}, memory_bytes_per_s=1.0, multiprocessors=1
    )
    roofline = _Roofline(step_ms=1.0, compute_bound_ratio=0.0, family_ratios=_NO_RATIOS, work_ratios=_NO_RATIOS)
    named = _named_values(graph, JobSettings(global_batch_size=1), device, roofline, 1.0)
    return tuple(Feature(name=name, unit=unit) for name, unit, _ in named)


FEATURES: Final = _list_features()
FEATURE_INDEX: Final = {feature.name: index for index, feature in enumerate(FEATURES)}

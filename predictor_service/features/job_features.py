"""From graph, settings and device to one named vector: the only code that does so, for training and serving alike.

Sizes enter as natural logarithms because they span ten orders of magnitude; shares of the roofline time show what kind
of work fills a step. What is unknown enters as 0 with a flag of its own.

A question asks models at a dozen batches of one job, so that vectors are made for all of them at once. Rows do not
depend on each other: a table of one batch has, bit for bit, the row that any larger one has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cotenant.job_settings import OPTIMIZERS, PRECISIONS, JobSettings
from predictor_service.features.analytical_memory import MemoryBreakdown, count_memory
from predictor_service.features.devices import DeviceType
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.graph_table import (
    GraphTable,
    count_values,
    size_values,
    tabulate_graph,
)
from predictor_service.features.graphs.operator_families import OperatorFamily
from predictor_service.features.job_settings import OPTIMIZER_SLOTS
from predictor_service.features.operator_times import (
    CONVOLUTIONS,
    TIME_NAMES,
    WORK_NAMES,
    FloatArray,
    OperatorTimes,
    rates_of,
    time_operators,
)

FEATURE_VERSION: Final = 7
"""Raise it with every change of names, order or meaning, and say in `feature_meaning` what older models still read."""

# Each optimizer slot is read and written once a step, as are weight and gradient.
_TRAFFIC_PER_SLOT: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A place in the vector."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFeatures:
    """What the regressors see of a job, and the analytical estimates that they correct.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTable:
    """The same of one job at several batches; what differs between them has a row or an element for each.

    Attributes:
        values: Shape (batches, len(FEATURES)).
        roofline_ms: Shape (batches,).
        optimizer_ratio: Shape (batches,).
        analytical_memory_bytes: Shape (batches,).
        counted_memory: Its parts at each batch.
        convolves: Whether the graph has a convolution.
        utilization_ceiling_ratio: Share of a step not spent waiting for input.
    """

    values: FloatArray
    roofline_ms: FloatArray
    optimizer_ratio: FloatArray
    analytical_memory_bytes: FloatArray
    counted_memory: tuple[MemoryBreakdown, ...]
    convolves: bool
    utilization_ceiling_ratio: float

    def __len__(self) -> int:
        """Batches."""
        return len(self.counted_memory)

    def row(self, place: int) -> JobFeatures:
        """The features at one of the batches, by its place."""
        return JobFeatures(
            values=self.values[place],
            roofline_ms=float(self.roofline_ms[place]),
            optimizer_ratio=float(self.optimizer_ratio[place]),
            analytical_memory_bytes=float(self.analytical_memory_bytes[place]),
            counted_memory=self.counted_memory[place],
            convolves=self.convolves,
            utilization_ceiling_ratio=self.utilization_ceiling_ratio,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkTable:
    """What jobs share at several batches that differ in how long they wait for input only.

    Attributes:
        values: As of `JobTable`, whatever the wait.
        step_ms: Roofline time without waiting, shape (batches,).
        optimizer_ms: The optimizer's part of it.
        analytical_memory_bytes: As of `JobTable`.
        counted_memory: As of `JobTable`.
        convolves: As of `JobTable`.
    """

    values: FloatArray
    step_ms: FloatArray
    optimizer_ms: float
    analytical_memory_bytes: FloatArray
    counted_memory: tuple[MemoryBreakdown, ...]
    convolves: bool

    def __len__(self) -> int:
        """Batches."""
        return len(self.counted_memory)

    def waiting(self, input_wait_ratio: float) -> JobTable:
        """The features of the job that waits for its input during this share of a step, below 1."""
        values, ceiling_ratio = self.values.copy(), 1.0 - input_wait_ratio
        values[:, _INPUT_WAIT_PLACE] = input_wait_ratio
        return JobTable(
            values=values,
            roofline_ms=self.step_ms / ceiling_ratio,
            optimizer_ratio=self.optimizer_ms * ceiling_ratio / self.step_ms,
            analytical_memory_bytes=self.analytical_memory_bytes,
            counted_memory=self.counted_memory,
            convolves=self.convolves,
            utilization_ceiling_ratio=ceiling_ratio,
        )


def build_features(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> JobFeatures:
    """Builds the vector of one job on one device type.

    Args:
        graph: Features at the batch of interest; it may differ from `settings.global_batch_size` (micro-batches).
        settings: How the job runs.
        device: What it runs on.

    Returns:
        The vector with its analytical estimates.
    """
    return tabulate_job(tabulate_graph([graph]), settings, device).row(0)


def tabulate_job(
    graph: GraphTable, settings: JobSettings, device: DeviceType, times: OperatorTimes | None = None
) -> JobTable:
    """Builds the vectors of one job on one device type at several batches.

    Args:
        graph: Features at these batches.
        settings: How the job runs; its batch is not looked at.
        device: What it runs on.
        times: `time_operators` of the graph at the job's rates, where they are at hand.
    """
    return tabulate_work(graph, settings, device, times).waiting(settings.input_wait_ratio)


def tabulate_work(
    graph: GraphTable, settings: JobSettings, device: DeviceType, times: OperatorTimes | None = None
) -> WorkTable:
    """Builds what all jobs share that differ in how long they wait for input only; arguments as of `tabulate_job`."""
    times = times or time_operators(graph, rates_of(settings, device))
    update_ms = _optimizer_ms(graph, settings, device)
    step_ms = times.sum_ms + update_ms + device.launch_ms
    counted = tuple([count_memory(row, settings, device) for row in graph.rows])
    memory_bytes = [parts.total_bytes for parts in counted]
    values = np.empty((len(counted), len(FEATURES)))
    values[:, _SIZES] = graph.size_values
    values[:, _STEP_TIME] = [math.log(each) for each in step_ms.tolist()]
    values[:, _RATIOS] = times.ratios
    values[:, _COUNTS] = graph.count_values
    values[:, _MEMORY] = [
        (math.log(each), min(1.0, row.activation_bytes_saved / each), min(1.0, row.largest_unfolded_bytes / each))
        for each, row in zip(memory_bytes, graph.rows, strict=True)
    ]
    values[:, _SETTINGS] = [value for _, _, value in _setting_values(settings)]
    values[:, _DEVICE] = [value for _, _, value in _device_values(device, settings.precision)]
    return WorkTable(
        values=values,
        step_ms=step_ms,
        optimizer_ms=update_ms,
        analytical_memory_bytes=np.array(memory_bytes),
        counted_memory=counted,
        convolves=any(graph.rows[0].operator_counts[family] for family in CONVOLUTIONS),
    )


def optimizer_ms(parameter_bytes: float, slots: float, device: DeviceType) -> float:
    """Time of one update of all weights at a device's bandwidth, milliseconds.

    Args:
        parameter_bytes: Of the weights.
        slots: Numbers that the optimizer keeps per parameter.
        device: Gives the bandwidth.
    """
    return 1e3 * _TRAFFIC_PER_SLOT * (2 + slots) * parameter_bytes / device.memory_bytes_per_s


def _optimizer_ms(graph: GraphTable, settings: JobSettings, device: DeviceType) -> float:
    if settings.mode != "train":
        return 0.0
    return optimizer_ms(graph.rows[0].parameter_bytes, OPTIMIZER_SLOTS[settings.optimizer], device)


def _setting_values(settings: JobSettings) -> Iterator[tuple[str, str, float]]:
    yield "is_training", "0 | 1", float(settings.mode == "train")
    for precision, name in _PRECISION_NAMES:
        yield name, "0 | 1", float(settings.precision == precision)
    for optimizer, name in _OPTIMIZER_NAMES:
        yield name, "0 | 1", float(settings.optimizer == optimizer)
    yield "optimizer_slots", "count", float(OPTIMIZER_SLOTS[settings.optimizer])
    yield "input_wait_ratio", "share of a step", settings.input_wait_ratio
    offers = (settings.host_memory_bytes, settings.disk_read_bytes_per_s, settings.network_bytes_per_s)
    for (name, known_name, unit), value in zip(_OFFER_NAMES, offers, strict=True):
        yield name, unit, math.log(value or 1.0)
        yield known_name, "0 | 1", float(value is not None)


def _device_values(device: DeviceType, precision: str) -> Iterator[tuple[str, str, float]]:
    yield "log_peak_flops", "ln(operations/s)", math.log(device.peak(precision))
    yield "log_memory_bandwidth", "ln(bytes/s)", math.log(device.memory_bytes_per_s)
    yield "log_device_memory", "ln(bytes)", math.log(device.memory_bytes)
    yield "log_multiprocessors", "ln(count)", math.log(device.multiprocessors)


_PRECISION_NAMES: Final = tuple((precision, f"precision_is_{precision}") for precision in PRECISIONS)
_OPTIMIZER_NAMES: Final = tuple((optimizer, f"optimizer_is_{optimizer}") for optimizer in OPTIMIZERS)
_OFFER_NAMES: Final = tuple(
    (f"log_{name}", f"{name}_is_known", unit)
    for name, unit in (
        ("host_memory_bytes", "ln(bytes)"),
        ("disk_read_bytes_per_s", "ln(bytes/s)"),
        ("network_bytes_per_s", "ln(bytes/s)"),
    )
)
"""Memory knows what kind of work a step does, not how long it waits."""


def _list_features() -> Iterator[tuple[Feature, ...]]:
    """Names and units by part; most are read from the values of an empty graph so that they cannot drift apart."""
    empty = np.zeros(0)
    graph = GraphFeatures(
        batch=1, parameters=0, parameter_bytes=0, buffers=0, buffer_bytes=0, forward_macs=0, forward_flops=0,
        activation_bytes_saved=0, activation_bytes_saved_mixed=0, input_bytes=0, output_bytes=0, traffic_bytes=0,
        largest_unfolded_bytes=0, widest_activation_bytes=0, depth=0, recurrent_steps=0, lstm_steps=0, nodes=0,
        unshaped_nodes=0, operator_counts=dict.fromkeys(OperatorFamily, 0), operator_families=(),
        operator_flops=empty, operator_traffic_bytes=empty,
    )  # fmt: skip
    device = DeviceType(
        name="none", memory_bytes=1, peak_flops={"fp32": 1.0}, memory_bytes_per_s=1.0, multiprocessors=1
    )
    yield _name(size_values(graph))
    yield (Feature(name="log_roofline_ms", unit="ln(ms)"),)
    yield (
        Feature(name="compute_bound_ratio", unit="share of roofline time"),
        *(Feature(name=name, unit="share of roofline time") for name in TIME_NAMES),
        *(Feature(name=name, unit="share of roofline time without waiting") for name in WORK_NAMES.values()),
    )
    yield _name(count_values(graph))
    yield (
        Feature(name="log_memory_bytes", unit="ln(bytes)"),
        Feature(name="activation_memory_ratio", unit="share of counted memory"),
        Feature(name="unfolded_memory_ratio", unit="share of counted memory"),
    )
    yield _name(_setting_values(JobSettings(global_batch_size=1)))
    yield _name(_device_values(device, "fp32"))


def _name(values: Iterator[tuple[str, str, float]]) -> tuple[Feature, ...]:
    return tuple(Feature(name=name, unit=unit) for name, unit, _ in values)


_PARTS: Final = tuple(_list_features())
_ENDS: Final = (0, *itertools.accumulate(len(part) for part in _PARTS))
_SIZES, _ROOFLINE, _RATIOS, _COUNTS, _MEMORY, _SETTINGS, _DEVICE = (
    slice(start, end) for start, end in itertools.pairwise(_ENDS)
)
_STEP_TIME: Final = _ROOFLINE.start
FEATURES: Final = tuple(itertools.chain.from_iterable(_PARTS))
FEATURE_INDEX: Final = {feature.name: index for index, feature in enumerate(FEATURES)}
INPUT_WAIT: Final = "input_wait_ratio"
_INPUT_WAIT_PLACE: Final = FEATURE_INDEX[INPUT_WAIT]

"""Where a step's time goes at a device's peaks: each operator is limited by arithmetic, by memory or by its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import ACTIVATION_SCALE
from predictor_service.features.devices import DeviceType, sequence_ms
from predictor_service.features.graphs.graph_table import FAMILY_CODES, GraphTable, IndexArray
from predictor_service.features.graphs.operator_families import OperatorFamily

FloatArray = npt.NDArray[np.float64]

# A backward pass costs about two forward passes: gradients by input and by weight.
_TRAINING_PASSES: Final = 3.0
LEAST_MS: Final = 1e-12
TIME_NAMES: Final = tuple(f"{family.value}_time_ratio" for family in OperatorFamily)
WORK_NAMES: Final = {
    family: f"{family.value}_work_ratio"
    for family in (
        OperatorFamily.CONVOLUTION,
        OperatorFamily.MATRIX_MULTIPLY,
        OperatorFamily.RECURRENT,
        OperatorFamily.NORMALIZATION,
    )
}
_WORK_CODES: Final = [FAMILY_CODES[family] for family in WORK_NAMES]
CONVOLUTIONS: Final = (OperatorFamily.CONVOLUTION, OperatorFamily.DEPTHWISE_CONVOLUTION)
_CONVOLUTION_CODES: Final = [FAMILY_CODES[family] for family in CONVOLUTIONS]


class Rates(NamedTuple):
    """All that the time of a graph's operators depends on apart from the graph.

    Attributes:
        flops_per_s: The device's peak at the precision.
        convolution_flops_per_s: The same of convolutions, which run in TF32 by default where a device has it.
        memory_bytes_per_s: Its bandwidth.
        launch_ms: Least time of one operator.
        fuses_lstm: See `DeviceType`.
        passes: Forward passes that a step is worth.
        activation_scale: Bytes moved per byte of the export.
    """

    flops_per_s: float
    convolution_flops_per_s: float
    memory_bytes_per_s: float
    launch_ms: float
    fuses_lstm: bool
    passes: float
    activation_scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorTimes:
    """Where the time of a step goes at a device's peaks, but for the optimizer and waiting.

    Attributes:
        sum_ms: Shape (batches,).
        ratios: Shares of it, as `FEATURES` lists them, shape (batches, ratios).
    """

    sum_ms: FloatArray
    ratios: FloatArray


def rates_of(settings: JobSettings, device: DeviceType) -> Rates:
    """What a device type offers a job with these settings."""
    return Rates(
        device.peak(device.product_precision(settings.precision)),
        device.peak(device.convolution_precision(settings.precision)),
        device.memory_bytes_per_s,
        device.launch_ms,
        device.fuses_lstm,
        _TRAINING_PASSES if settings.mode == "train" else 1.0,
        ACTIVATION_SCALE[settings.precision],
    )


def time_operators(graph: GraphTable, rates: Rates) -> OperatorTimes:
    """Times the operators of a graph at a device's peaks, at each of the table's batches."""
    passes = rates.passes
    flops_ms = graph.operator_flops * _ms_per_operation(graph.families, rates)
    bytes_to_ms = 1e3 * passes * rates.activation_scale / rates.memory_bytes_per_s
    traffic_ms = graph.operator_traffic_bytes * bytes_to_ms
    operator_ms = np.maximum(np.maximum(flops_ms, traffic_ms), rates.launch_ms * passes)
    work_ms = _sum_families(operator_ms, graph.families)
    family_ms = work_ms.copy()
    # What a recurrent layer multiplies is a product like any other; what makes it recurrent is waiting.
    family_ms[:, FAMILY_CODES[OperatorFamily.MATRIX_MULTIPLY]] += work_ms[:, FAMILY_CODES[OperatorFamily.RECURRENT]]
    family_ms[:, FAMILY_CODES[OperatorFamily.RECURRENT]] = [
        passes * sequence_ms(rates.launch_ms, rates.fuses_lstm, row.recurrent_steps, row.lstm_steps)
        for row in graph.rows
    ]
    sum_ms = family_ms.sum(axis=1)
    least_sum_ms = np.maximum(sum_ms, LEAST_MS)
    ratios = np.empty((len(graph.rows), 1 + len(TIME_NAMES) + len(WORK_NAMES)))
    # Row by row, because a sum over other rows' zeros would be rounded elsewhere.
    compute_bound = zip(operator_ms, flops_ms >= traffic_ms, strict=True)
    ratios[:, 0] = [np.add.reduce(row_ms[is_bound]) for row_ms, is_bound in compute_bound] / least_sum_ms
    ratios[:, 1 : 1 + len(TIME_NAMES)] = family_ms / least_sum_ms[:, None]
    work_sum_ms = np.maximum(work_ms.sum(axis=1), LEAST_MS)
    ratios[:, 1 + len(TIME_NAMES) :] = work_ms[:, _WORK_CODES] / work_sum_ms[:, None]
    return OperatorTimes(sum_ms=sum_ms, ratios=ratios)


def _ms_per_operation(families: IndexArray, rates: Rates) -> FloatArray:
    """Milliseconds that one operation of each operator takes in all passes at the peak of its kind."""
    each_ms = np.full(len(families), 1e3 * rates.passes / rates.flops_per_s)
    each_ms[np.isin(families, _CONVOLUTION_CODES)] = 1e3 * rates.passes / rates.convolution_flops_per_s
    return each_ms


def _sum_families(operator_ms: FloatArray, families: IndexArray) -> FloatArray:
    """Time of each family of operators, shape (batches, families)."""
    batches, count = len(operator_ms), len(FAMILY_CODES)
    places = (np.arange(0, batches * count, count)[:, None] + families).reshape(-1)
    sums = np.bincount(places, weights=operator_ms.reshape(-1), minlength=batches * count)
    return np.asarray(sums.reshape(batches, count), dtype=np.float64)

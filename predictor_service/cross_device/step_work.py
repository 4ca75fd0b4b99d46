"""What a step does, in the few sums that every source of graphs can state: user graphs, our zoo, timm's traced models.

The same sums at training and at serving, so that coefficients mean the same; batches are rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from predictor_service.features.graphs.affine import AffineArray, FloatArray
from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.features.graphs.graph_table import FAMILY_CODES, GraphTable
from predictor_service.features.graphs.operator_families import OperatorFamily as Family

_KINDS: Final[Mapping[str, tuple[Family, ...]]] = {
    "convolution_flops": (Family.CONVOLUTION,),
    "depthwise_flops": (Family.DEPTHWISE_CONVOLUTION,),
    "product_flops": (Family.MATRIX_MULTIPLY, Family.RECURRENT, Family.ATTENTION),
}
# Allocated bytes of a traced forward pass are written once and read about once; some are read twice.
_TRAFFIC_PER_ALLOCATED: Final = 2.2
# Tables of totals do not say which share of multiply-accumulates is depthwise; mobile networks have about that.
_DEPTHWISE_RATIO: Final = 0.07
_FAR_BATCHES: Final = (1 << 20, 1 << 21)
"""Between these a figure grows by what each sample adds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """Forward passes, one row per job and batch; all arrays have shape (rows,).

    Attributes:
        convolution_flops: Of dense and grouped convolutions.
        depthwise_flops: Of convolutions of one channel each.
        product_flops: Of matrix products, recurrent layers and attention.
        traffic_bytes: Read and written by all operators, in 32-bit numbers.
        nodes: Operators that run on the device.
        waiting_steps: Of recurrent layers, see `GraphFeatures.recurrent_steps`.
        parameters: Trained numbers.
        batch: Samples held at a time.
        convolution_flops_per_sample: What a further sample adds; the same at every batch of a job, as the next three.
        depthwise_flops_per_sample: Of these convolutions.
        product_flops_per_sample: Of these products.
        traffic_bytes_per_sample: Without what is read once for all samples: weights, embeddings, states.
    """

    convolution_flops: FloatArray
    depthwise_flops: FloatArray
    product_flops: FloatArray
    traffic_bytes: FloatArray
    nodes: FloatArray
    waiting_steps: FloatArray
    parameters: FloatArray
    batch: FloatArray
    convolution_flops_per_sample: FloatArray
    depthwise_flops_per_sample: FloatArray
    product_flops_per_sample: FloatArray
    traffic_bytes_per_sample: FloatArray

    def __len__(self) -> int:
        """Rows."""
        return len(self.batch)

    def rows(self, places: slice) -> StepWork:
        """The work of consecutive rows."""
        return StepWork(**{item.name: getattr(self, item.name)[places] for item in fields(self)})


def work_of_table(graph: GraphTable, lines: Mapping[str, AffineArray]) -> StepWork:
    """Sums the operators of a graph at each batch of its table; a row is the same in any table, to the last bit.

    Args:
        graph: The table.
        lines: Counts of the operators over the batch, see `GraphDescription.arrays`.
    """
    chosen = {
        name: np.isin(graph.families, [FAMILY_CODES[each] for each in each_of]) for name, each_of in _KINDS.items()
    }
    each_flops, each_bytes = (lines[f"operator_{name}"].per_sample for name in ("flops", "traffic_bytes"))

    def sums_of(operators: FloatArray) -> FloatArray:
        return np.array([float(np.add.reduce(np.ascontiguousarray(row))) for row in operators])

    def column(name: str) -> FloatArray:
        return np.array([getattr(row, name) for row in graph.rows], dtype=np.float64)

    def at_every_batch(operators: FloatArray) -> FloatArray:
        return np.full(len(graph.rows), float(operators.sum()))

    return StepWork(
        **{name: sums_of(graph.operator_flops[:, which]) for name, which in chosen.items()},
        traffic_bytes=sums_of(graph.operator_traffic_bytes),
        nodes=column("nodes"),
        waiting_steps=column("recurrent_steps"),
        parameters=column("parameters"),
        batch=column("batch"),
        **{f"{name}_per_sample": at_every_batch(each_flops[which]) for name, which in chosen.items()},
        traffic_bytes_per_sample=at_every_batch(each_bytes),
    )


def work_of_facts(jobs: Sequence[tuple[Mapping[str, float], int]]) -> StepWork | None:
    """The same from figures in tables.

    Args:
        jobs: Figures of a graph by the naming of `batch_figures`, and the samples held at a time.

    Returns:
        One row for each; None where a job lacks what a sum needs.
    """
    rows = [_row_of_facts(facts, batch) for facts, batch in jobs]
    if not rows or any(row is None for row in rows):
        return None
    columns = np.array(rows, dtype=np.float64).T
    return StepWork(**dict(zip((item.name for item in fields(StepWork)), columns, strict=True)))


def _row_of_facts(facts: Mapping[str, float], batch: int) -> tuple[float, ...] | None:
    figures = figures_at(facts, batch)
    if not {"forward_macs", "nodes", "parameters"} <= figures.keys():
        return None
    steps, parameters, nodes = figures.get("recurrent_steps", 0.0), figures["parameters"], figures["nodes"]
    here, far, farther = (_sums_of(each) for each in (figures, *(figures_at(facts, each) for each in _FAR_BATCHES)))
    apart = _FAR_BATCHES[1] - _FAR_BATCHES[0]
    added = [
        max(last - first, 0.0) / apart or sum_here / batch
        for sum_here, first, last in zip(here, far, farther, strict=True)
    ]
    return *here, nodes, steps, parameters, float(batch), *added


def _sums_of(figures: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Operations of convolutions, depthwise ones and products, and traffic."""
    convolution, depthwise, product = _split_macs(figures)
    traffic_bytes = figures.get("traffic_bytes")
    if traffic_bytes is None:
        allocated_bytes = figures.get("allocated_bytes", figures.get("saved_for_backward_bytes", 0.0))
        traffic_bytes = _TRAFFIC_PER_ALLOCATED * allocated_bytes + 4.0 * figures["parameters"]
    return 2 * convolution, 2 * depthwise, 2 * product, traffic_bytes


def _split_macs(figures: Mapping[str, float]) -> tuple[float, float, float]:
    """Multiply-accumulates of convolutions, depthwise ones and products; by counts of operators where only they are."""
    total = figures["forward_macs"]
    if "convolution_macs" in figures:
        convolution, depthwise = figures["convolution_macs"], figures.get("depthwise_convolution_macs", 0.0)
        return convolution, depthwise, max(total - convolution - depthwise, 0.0)
    products = figures.get("matrix_multiply_nodes", 0.0) + figures.get("recurrent_nodes", 0.0)
    if figures.get("convolution_nodes", 0.0) <= products:
        return 0.0, 0.0, total
    depthwise_ratio = _DEPTHWISE_RATIO if figures.get("depthwise_convolution_nodes", 0.0) else 0.0
    return (1 - depthwise_ratio) * total, depthwise_ratio * total, 0.0

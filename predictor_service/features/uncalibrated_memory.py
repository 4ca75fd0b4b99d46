"""Memory of a job on a device type of which nothing was measured here: expected, and a bound.

Counted memory leaves out what libraries take: the context of the process, the handles and kernels of cuBLAS and cuDNN,
the workspaces of convolutions and what the allocator keeps back. Here they are constants per architecture generation,
learned from public rows, so that the sum is near to what a process holds and the bound above it. How often the
bound holds on the device that is asked about was not checked: such answers carry `range_not_calibrated`.

    memory = context + convolution libraries, where the graph has any convolution
             + held x (weights, gradients, optimizer state, activations, input, what the loss holds)
             + workspace x the widest tensor, up to 512 MiB of it, where the graph has any convolution

`python -m benchmarks.uncalibrated_memory` learns the constants and judges them with the family of networks left out.

Where they come from. Ampere: the A100 rows of GPUMemNet (generated CNNs and MLPs, timm's networks; fp32, Adam,
training), the only public rows of memory with graphs. Every other generation has Ampere's, which is the nearest one
with rows, its bound a quarter and its range by the same factor wider. Contexts were seen from 0.5 to 2 GiB: the ends of
ranges have these, and the bound the larger one, whatever the generation. Half precision counts activations at half
their width, as everywhere; the largest batches that fitted on an RTX 3090 in mixed precision agree (see the benchmark).
Inference has no rows at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from predictor_service.features.analytical_memory import MemoryBreakdown
from predictor_service.features.devices import DeviceType, Generation

WIDEST_BYTES_MAX: Final = 512 << 20
"""Beyond it libraries choose algorithms that need no more: workspaces stop growing with the batch."""
CONTEXT_SEEN_BYTES: Final = (512 << 20, 2048 << 20)
"""Least and most that processes on GPUs were seen to hold before their tensors. It differs by card, driver and release
of the libraries, and public rows have one machine only, so ends of ranges and bounds have these contexts, not learned
ones: its rows say nothing of another A100 with another driver."""
UNSEEN_SET_FACTOR: Final = 1.25
"""Ends lie so many times farther than quantiles of the rows: of each of the three sets, where it taught nothing, they
hold .90 and more of its rows, and .73 and more without the factor."""
STANDIN_FACTOR: Final = 2.0
"""Ends of the range, and the bound, where only the context was measured."""
_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """What libraries add to counted memory.

    Attributes:
        context_bytes: Held by every process.
        convolution_bytes: Held in addition by a process that computes convolutions.
        held_ratio: Of the counted parts other than the workspace.
        workspace_ratio: Of the widest tensor, in a graph with convolutions.
    """

    context_bytes: float
    convolution_bytes: float
    held_ratio: float
    workspace_ratio: float

    def total_bytes(self, counted: MemoryBreakdown, *, convolves: bool) -> float:
        """The sum for one job.

        Args:
            counted: Its counted memory at the batch of interest.
            convolves: Whether its graph has a convolution.
        """
        context, convolution, held, widest = memory_parts(counted, convolves=convolves)
        workspace_bytes = self.workspace_ratio * widest
        return (
            context * self.context_bytes
            + convolution * self.convolution_bytes
            + self.held_ratio * held
            + workspace_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMemory:
    """Constants of one generation.

    Attributes:
        expected: Of the least mean relative error.
        low: The same with an excess 19 times as dear as a shortfall; 1 row in 20 holds less.
        high: The same with a shortfall 19 times as dear.
        bound: The same with a shortfall some 670 times as dear as an excess, which covers 99.5 % of families left out,
            with no less than the largest context that was seen.
        widening: Ends and bound are those of the generation that was measured, so many times as far; at least 1.
    """

    expected: MemoryConstants
    low: MemoryConstants
    high: MemoryConstants
    bound: MemoryConstants
    widening: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UncalibratedMemory:
    """Memory of one job, bytes; lower <= expected <= upper <= bound."""

    expected_bytes: float
    lower_bytes: float
    upper_bytes: float
    bound_bytes: float


def memory_parts(counted: MemoryBreakdown, *, convolves: bool) -> tuple[float, float, float, float]:
    """What the four constants multiply: 1, 1 or 0, bytes held, bytes of the widest tensor."""
    stored_bytes = counted.weights_bytes + counted.gradients_bytes + counted.optimizer_state_bytes
    held_bytes = stored_bytes + counted.activations_bytes + counted.loss_bytes
    widest_bytes = min(counted.widest_bytes, WIDEST_BYTES_MAX)
    return 1.0, float(convolves), held_bytes, widest_bytes if convolves else 0.0


def estimate_uncalibrated(counted: MemoryBreakdown, device: DeviceType, *, convolves: bool) -> UncalibratedMemory:
    """Estimates the memory of a job where its device type was not measured.

    Args:
        counted: What is counted of the job at the batch of interest.
        device: Its generation decides the constants; of one that is unknown they are the widest.
        convolves: Whether its graph has a convolution.
    """
    known = GENERATION_MEMORY.get(device.generation)
    if known is None:  # the stand-in's context was measured; libraries take nothing in addition
        total = counted.total_bytes
        bound = STANDIN_FACTOR * total
        return UncalibratedMemory(
            expected_bytes=total, lower_bytes=total / STANDIN_FACTOR, upper_bytes=bound, bound_bytes=bound
        )
    expected, low, high, bound = (
        each.total_bytes(counted, convolves=convolves) for each in (known.expected, known.low, known.high, known.bound)
    )
    bound = max(expected, known.widening * bound)
    return UncalibratedMemory(
        expected_bytes=expected,
        lower_bytes=min(expected, low / (UNSEEN_SET_FACTOR * known.widening)),
        upper_bytes=min(max(expected, UNSEEN_SET_FACTOR * known.widening * high), bound),
        bound_bytes=bound,
    )


EXPECTED: Final = MemoryConstants(
    context_bytes=1472 * _MEBIBYTE, convolution_bytes=234 * _MEBIBYTE, held_ratio=1.014, workspace_ratio=5.82
)
BOUND: Final = MemoryConstants(
    context_bytes=1463 * _MEBIBYTE, convolution_bytes=1169 * _MEBIBYTE, held_ratio=1.736, workspace_ratio=44.37
)
LOW: Final = MemoryConstants(
    context_bytes=1451 * _MEBIBYTE, convolution_bytes=242 * _MEBIBYTE, held_ratio=0.886, workspace_ratio=2.53
)
HIGH: Final = MemoryConstants(
    context_bytes=1495 * _MEBIBYTE, convolution_bytes=289 * _MEBIBYTE, held_ratio=1.227, workspace_ratio=18.56
)
_LOW_SEEN: Final = replace(LOW, context_bytes=CONTEXT_SEEN_BYTES[0], convolution_bytes=0.0)
_HIGH_SEEN: Final = replace(HIGH, context_bytes=CONTEXT_SEEN_BYTES[1])
_BOUND_SEEN: Final = replace(BOUND, context_bytes=max(BOUND.context_bytes, CONTEXT_SEEN_BYTES[1]))
_WIDENING: Final = 1.25
_AMPERE: Final = GenerationMemory(expected=EXPECTED, low=_LOW_SEEN, high=_HIGH_SEEN, bound=_BOUND_SEEN)
_WITHOUT_ROWS: Final = replace(
    _AMPERE, bound=replace(BOUND, context_bytes=CONTEXT_SEEN_BYTES[1] / _WIDENING), widening=_WIDENING
)
GENERATION_MEMORY: Final[Mapping[Generation, GenerationMemory]] = {
    generation: _AMPERE if generation is Generation.AMPERE else _WITHOUT_ROWS
    for generation in Generation
    if generation is not Generation.PROCESSOR
}
"""By generation; the stand-in has none."""

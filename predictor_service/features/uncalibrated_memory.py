"""Memory of a job on a device type of which nothing was measured here: expected, and a bound.

Counted memory leaves out what libraries take: the context of the process, the handles and kernels of cuBLAS and cuDNN,
the workspaces of convolutions and what the allocator keeps back. Here they are constants per architecture generation,
learned from public rows, so that the sum is near to what a process holds and the bound above it. How often the
bound holds on the device that is asked about was not checked: such answers carry `range_not_calibrated`.

    memory = context + convolution libraries, where the graph has any convolution
             + held x (weights, optimizer state, the larger of activations with the loss and gradients with an update)
             + workspace x the largest input of a convolution as it is unfolded to one matrix product, up to a most

`python -m benchmarks.uncalibrated_memory` learns the constants and judges them with the family of networks left out.

Where they come from. Ampere: the A100 rows of GPUMemNet (generated CNNs and MLPs, timm's networks; fp32, Adam,
training), the only public rows of memory with graphs. Every other generation has Ampere's, which is the nearest one
with rows, and mixed precision has those of fp32: for each of both, bound and range are a quarter wider. Contexts were
seen from 0.5 to 2 GiB: the ends of ranges have these, and the bound the larger one, whatever the generation. The
largest batches that fitted on an RTX 3090 in mixed precision agree (see the benchmark). Inference has no rows at all.
Upper ends and bounds count gradients as if the script kept them, as PyTorch before 2.0 did on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from predictor_service.features.analytical_memory import MIXED_PRECISIONS, MemoryBreakdown
from predictor_service.features.devices import DeviceType, Generation

_TAKEN_BYTES_MAX: Final = 8 << 30
_TRIED_BYTES_MAX: Final = 1 << 30
"""Beyond it libraries choose algorithms that need no more: workspaces stop growing with the batch. What they take as a
rule grows longer; what they are seen to try out at small batches, many times as much, ends sooner."""
CONTEXT_SEEN_BYTES: Final = (512 << 20, 2048 << 20)
"""Least and most that processes on GPUs were seen to hold before their tensors. It differs by card, driver and release
of the libraries, and public rows have one machine only, so ends of ranges and bounds have these contexts, not learned
ones: its rows say nothing of another A100 with another driver."""
UNSEEN_SET_FACTOR: Final = 1.25
"""Ends lie so many times farther than quantiles of the rows: of each of the three sets, where it taught nothing, they
hold .90 and more of its rows, and .73 and more without the factor."""
UNMEASURED_FACTOR: Final = 1.25
"""Ends and bound lie so many times farther for a generation without rows, and again for mixed precision."""
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
        workspace_ratio: Of the largest unfolded input of a convolution.
        unfolded_bytes_max: As much of that counts.
        keeps_gradients: Whether gradients count as if they were never dropped, which a script may not do.
    """

    context_bytes: float
    convolution_bytes: float
    held_ratio: float
    workspace_ratio: float
    unfolded_bytes_max: float
    keeps_gradients: bool = False

    def total_bytes(self, counted: MemoryBreakdown, *, convolves: bool) -> float:
        """The sum for one job.

        Args:
            counted: Its counted memory at the batch of interest.
            convolves: Whether its graph has a convolution.
        """
        context, convolution, held, unfolded = memory_parts(
            counted, convolves=convolves, keeps_gradients=self.keeps_gradients
        )
        workspace_bytes = self.workspace_ratio * min(unfolded, self.unfolded_bytes_max)
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
        bound: The same with a shortfall 124 times as dear as an excess, which covers 98.5 % of each set where its
            families were left out, with no less than the largest context that was seen.
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


def memory_parts(
    counted: MemoryBreakdown, *, convolves: bool, keeps_gradients: bool
) -> tuple[float, float, float, float]:
    """What the four constants multiply: 1, 1 or 0, bytes held, bytes of the largest unfolded input."""
    tensors = counted._replace(workspace_bytes=0.0, context_bytes=0.0)  # libraries' own has a constant of its own
    held_bytes = tensors.accumulated_bytes if keeps_gradients else tensors.total_bytes
    return 1.0, float(convolves), held_bytes, counted.unfolded_bytes


def estimate_uncalibrated(
    counted: MemoryBreakdown, device: DeviceType, *, convolves: bool, precision: str = "fp32"
) -> UncalibratedMemory:
    """Estimates the memory of a job where its device type was not measured.

    Args:
        counted: What is counted of the job at the batch of interest.
        device: Its generation decides the constants; of one that is unknown they are the widest.
        convolves: Whether its graph has a convolution.
        precision: Of the job.
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
    widening = known.widening * (UNMEASURED_FACTOR if precision in MIXED_PRECISIONS else 1.0)
    context_bytes = known.bound.context_bytes
    bound = max(expected, context_bytes + widening * (bound - context_bytes))
    return UncalibratedMemory(
        expected_bytes=expected,
        lower_bytes=min(expected, low / (UNSEEN_SET_FACTOR * widening)),
        upper_bytes=min(max(expected, UNSEEN_SET_FACTOR * widening * high), bound),
        bound_bytes=bound,
    )


def do_bounds_keep_gradients(device: DeviceType) -> bool:
    """Whether upper end and bound of such an estimate count gradients as if the script kept them."""
    known = GENERATION_MEMORY.get(device.generation)
    return known is not None and known.high.keeps_gradients and known.bound.keeps_gradients


EXPECTED: Final = MemoryConstants(
    context_bytes=1461 * _MEBIBYTE,
    convolution_bytes=270 * _MEBIBYTE,
    held_ratio=1.09,
    workspace_ratio=0.73,
    unfolded_bytes_max=_TAKEN_BYTES_MAX,
)
BOUND: Final = MemoryConstants(
    context_bytes=1454 * _MEBIBYTE,
    convolution_bytes=285 * _MEBIBYTE,
    held_ratio=1.981,
    workspace_ratio=3.08,
    unfolded_bytes_max=_TRIED_BYTES_MAX,
    keeps_gradients=True,
)
LOW: Final = MemoryConstants(
    context_bytes=1451 * _MEBIBYTE,
    convolution_bytes=254 * _MEBIBYTE,
    held_ratio=0.973,
    workspace_ratio=0.5,
    unfolded_bytes_max=_TAKEN_BYTES_MAX,
)
HIGH: Final = MemoryConstants(
    context_bytes=1453 * _MEBIBYTE,
    convolution_bytes=272 * _MEBIBYTE,
    held_ratio=1.513,
    workspace_ratio=1.42,
    unfolded_bytes_max=_TRIED_BYTES_MAX,
    keeps_gradients=True,
)
_LOW_SEEN: Final = replace(LOW, context_bytes=CONTEXT_SEEN_BYTES[0], convolution_bytes=0.0)
_HIGH_SEEN: Final = replace(HIGH, context_bytes=CONTEXT_SEEN_BYTES[1])
_BOUND_SEEN: Final = replace(BOUND, context_bytes=max(BOUND.context_bytes, CONTEXT_SEEN_BYTES[1]))
_AMPERE: Final = GenerationMemory(expected=EXPECTED, low=_LOW_SEEN, high=_HIGH_SEEN, bound=_BOUND_SEEN)
_WITHOUT_ROWS: Final = replace(_AMPERE, widening=UNMEASURED_FACTOR)
GENERATION_MEMORY: Final[Mapping[Generation, GenerationMemory]] = {
    generation: _AMPERE if generation is Generation.AMPERE else _WITHOUT_ROWS
    for generation in Generation
    if generation is not Generation.PROCESSOR
}
"""By generation; the stand-in has none."""

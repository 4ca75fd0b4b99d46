"""Device memory of a job, counted instead of learned. The learned part only corrects this figure.

    peak = weights + optimizer state + the larger of
             activations + what the loss, or the gradient of the widest tensor, takes
             gradients + what an update of the weights takes

A step frees activations while gradients come to be, and scripts drop gradients after the update, as `zero_grad` does on
its own: both are never there as a whole. Where several passes make one step gradients stay (`accumulated_bytes`).

Source: `_multi_tensor_adam` and `_multi_tensor_sgd` of torch/optim (2.13), which GPUs run by default: all weights are
updated at once, with one more tensor for each (of SGD if it decays weights). GPUMemNet's networks on an A100 agree: 953
MLPs that are mostly weights held 1.1 times their gradients more than weights, gradients and state; 116 timm models of
which half is weights held about their gradients less than the sum of all parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cotenant.job_settings import JobSettings
from predictor_service.features.devices import DeviceType, Generation
from predictor_service.features.graphs.batch_figures import figures_at
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.job_settings import OPTIMIZER_SLOTS

# Activations of mixed precision are half as wide as those of the 32-bit export, but for what `autocast_widths` knows;
# weights stay 32 bits wide, and their copies of 16 bits are kept for the backward pass.
ACTIVATION_SCALE: Final = {"fp64": 2.0, "fp32": 1.0, "tf32": 1.0, "bf16": 0.5, "fp16": 0.5}
# The gradient of the widest tensor and the tensor that it is computed from are in memory together.
_WIDEST_TENSORS_ALIVE: Final = 2
_WEIGHT_BYTES: Final = 4
MIXED_PRECISIONS: Final = frozenset({"bf16", "fp16"})
_HALF_COPY: Final = 0.5
_HALF_BYTES: Final = 2
# A loss over the outputs holds its logarithms and two gradients as large, in 32 bits whatever the precision.
_LOSS_TENSORS: Final = 3
UPDATE_COPIES: Final = {"sgd": 0, "momentum": 1, "adam": 1, "adamw": 1}
"""Tensors per weight that an update takes for a moment on a GPU; momentum comes with decay of weights as a rule."""


class MemoryBreakdown(NamedTuple):
    """Parts of a job's peak memory, bytes.

    `unfolded_bytes`, no part of the sum, decides what libraries of convolutions take. `loss_bytes` are held when all
    activations are, before there is any gradient; `update_bytes` when only gradients are.

    A tuple, because a question counts memory at a dozen batches: made in a third of the time of a frozen dataclass.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_state_bytes: float
    activations_bytes: float
    workspace_bytes: float
    context_bytes: float
    unfolded_bytes: float = 0.0
    loss_bytes: float = 0.0
    update_bytes: float = 0.0

    @property
    def passing_bytes(self) -> float:
        """What comes and goes within a step."""
        computing = self.activations_bytes + max(self.loss_bytes, self.workspace_bytes)
        return max(computing, self.gradients_bytes + self.update_bytes)

    @property
    def total_bytes(self) -> float:
        """The peak of a step of one pass; never below 1."""
        return max(1.0, self.weights_bytes + self.optimizer_state_bytes + self.passing_bytes + self.context_bytes)

    @property
    def accumulated_bytes(self) -> float:
        """The peak of a step of several passes: gradients stay from the first to the last."""
        one = self._replace(gradients_bytes=0.0, weights_bytes=self.weights_bytes + self.gradients_bytes)
        return one.total_bytes

    def gradients_left_bytes(self, computing_ratio: float) -> float:
        """What a step of several passes holds at its peak beyond one of a single pass; at most all gradients.

        Args:
            computing_ratio: What is held while a pass computes, over what is counted of it.
        """
        scaled = self._replace(
            activations_bytes=computing_ratio * self.activations_bytes,
            loss_bytes=computing_ratio * self.loss_bytes,
            workspace_bytes=computing_ratio * self.workspace_bytes,
        )
        return scaled.accumulated_bytes - scaled.total_bytes


def count_memory(graph: GraphFeatures, settings: JobSettings, device: DeviceType) -> MemoryBreakdown:
    """Counts what a step keeps on the device at its peak.

    Args:
        graph: Features at the batch of interest.
        settings: Mode, precision and optimizer decide what is kept.
        device: Gives the size of the context; processors update one weight after the other.

    Returns:
        Bytes by purpose; grows with the batch.
    """
    training, precision = settings.mode == "train", _cast_to(graph, settings.precision)
    on_gpu = device.generation is not Generation.PROCESSOR
    is_mixed, scale = precision in MIXED_PRECISIONS, ACTIVATION_SCALE[precision]
    kept_bytes = graph.activation_bytes_saved_mixed if is_mixed else scale * graph.activation_bytes_saved
    gradients_bytes = graph.parameter_bytes if training else 0
    widest_bytes = scale * _WIDEST_TENSORS_ALIVE * graph.widest_activation_bytes
    return MemoryBreakdown(
        weights_bytes=weights_bytes(graph.parameter_bytes, precision) + graph.buffer_bytes,
        gradients_bytes=gradients_bytes,
        optimizer_state_bytes=graph.parameter_bytes * OPTIMIZER_SLOTS[settings.optimizer] if training else 0,
        activations_bytes=(kept_bytes if training else 0) + scale * graph.output_bytes + graph.input_bytes,
        workspace_bytes=max(widest_bytes, scale * graph.reserved_bytes - kept_bytes if training and on_gpu else 0.0),
        context_bytes=device.context_bytes,
        unfolded_bytes=scale * graph.largest_unfolded_bytes,
        loss_bytes=loss_bytes(graph.output_bytes) if training else 0,
        update_bytes=update_bytes(gradients_bytes, settings.optimizer) if on_gpu else 0,
    )


def _cast_to(graph: GraphFeatures, precision: str) -> str:
    """The precision that tensors are cast to; a network whose weights have 16 bits computes with them as they are."""
    is_narrow = 0 < graph.parameter_bytes <= _HALF_BYTES * graph.parameters
    return "fp32" if is_narrow and precision in MIXED_PRECISIONS else precision


def weights_bytes(parameter_bytes: float, precision: str) -> float:
    """Bytes of the weights, with the copies that mixed precision makes of them."""
    return parameter_bytes * (1.0 + _HALF_COPY) if precision in MIXED_PRECISIONS else parameter_bytes


def loss_bytes(output_bytes: float) -> float:
    """Bytes that a loss over all outputs holds."""
    return _LOSS_TENSORS * output_bytes


def update_bytes(gradients_bytes: float, optimizer: str) -> float:
    """Bytes that an update of all weights takes on a GPU; an unknown optimizer is taken for adam."""
    return gradients_bytes * UPDATE_COPIES.get(optimizer, UPDATE_COPIES["adam"])


PART_NAMES: Final = ("context", "weights", "saved", "widest", "input", "peak")
"""Parts of the memory of a job that is known by figures in a table instead of by its graph."""


def described_parts(
    facts: Mapping[str, float], batch: int, optimizer: str, precision: str
) -> Mapping[str, float] | None:
    """Splits memory into parts.

    Args:
        facts: `parameters` and `saved_for_backward_bytes_per_sample`; where known also the largest transient or widest
            activation, the input and the peak of live tensors over a step (`step_peak_bytes`), each by the naming of
            `batch_figures`.
        batch: Samples held at a time.
        optimizer: Decides the numbers kept per parameter; an unknown one is taken for adam.
        precision: Of the activations; an unknown one is taken for fp32.

    Returns:
        Bytes by `PART_NAMES`, the context as 1 GiB; parts overlap, their coefficients are fitted. None where the first
        two facts are missing.
    """
    figures = figures_at(facts, batch)
    parameters, saved = figures.get("parameters"), figures.get("saved_for_backward_bytes")
    if parameters is None or saved is None:
        return None
    scale = ACTIVATION_SCALE.get(precision, 1.0)
    copies = 2 + OPTIMIZER_SLOTS.get(optimizer, OPTIMIZER_SLOTS["adam"])
    return {
        "context": float(1 << 30),
        "weights": _WEIGHT_BYTES * copies * parameters,
        "saved": scale * saved,
        "widest": scale * figures.get("largest_transient_bytes", figures.get("widest_activation_bytes", 0.0)),
        "input": figures.get("input_bytes", 0.0),
        "peak": scale * figures.get("step_peak_bytes", 0.0),
    }

"""What settings change that no model sees: activation checkpointing, DDP's buckets, sharded weights, channels-last.

No row of a job with one of the first three was measured, so that physics says what they change, and answers carry
`range_not_calibrated`:

- Activation checkpointing over equal segments of n layers keeps about 2 / sqrt(n) of what backward needs, and runs the
  forward pass twice. Scripts checkpoint some blocks only: the bound keeps half of what might be saved.
- DDP copies gradients into buckets that hold as much as all gradients, unless they are views of the buckets, divides
  what is in them by the number of ranks, and copies it back. The exchange between devices is not in any answer.
- Sharding (fully_shard) divides what learns, its gradients and the optimizer's state among devices. What computes is
  gathered meanwhile: what a capture has seen, else of equal segments of n layers two in sqrt(n), the present one and
  the next. A script may wrap nothing but the whole network: then the bound gathers all weights and gradients. Frozen
  weights are counted whole. The exchange between devices is not in any answer.
- Channels-last spares the tensor cores' transposes in half precision. 593 networks trained and 1,324 run on RTX 3090
  and 4090 (timm, mixed precision, both layouts) took .91 and .92 of the time in the median; nine in ten lie between
  .69 and 2.4 when trained (grouped convolutions are slow). Other precisions and networks without convolutions keep
  their time.

Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174 (section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cotenant.job_settings import JobSettings
from predictor_service.features.analytical_memory import MemoryBreakdown, weights_bytes

FloatArray = npt.NDArray[np.float64]

_FORWARD_AGAIN: Final = 4.0 / 3.0
"""A backward pass costs about two forward passes; one is added to the three."""
_CHANNELS_LAST: Final = (0.91, 0.69, 2.43)
"""Time over that of the usual layout, trained in half precision: median, and what one network in twenty is beyond."""
_OTHER_LAYOUT: Final = (1.0, 0.85, 1.15)
"""The same in other precisions, of which there are no rows."""
_HALF: Final = frozenset({"fp16", "bf16"})
_BUCKET_PASSES: Final = (2, 0, 6)
"""Times that all gradients pass the device's memory: copied, which is reading and writing; views; copied, divided and
copied back."""


class Factors(NamedTuple):
    """What an estimate is multiplied by; each shape (points,) or one for all."""

    value: FloatArray | float
    lower: FloatArray | float
    upper: FloatArray | float
    upper_99: FloatArray | float


def name_untaught(settings: JobSettings) -> tuple[str, ...]:
    """Which settings of a job no model sees, in words; empty where models see all of them."""
    is_training = settings.mode == "train"
    said = {
        "activation checkpointing": settings.activation_checkpointing and is_training,
        "DDP's buckets": settings.ddp_bucket_bytes is not None and is_training,
        "weights in parts": settings.sharded_ranks > 1 and is_training,
        "channels-last": settings.channels_last,
    }
    return tuple(f"{name}, never measured here" for name, is_set in said.items() if is_set)


def memory_factors(settings: JobSettings, counted: Sequence[MemoryBreakdown], layers: float) -> Factors:
    """What memory is multiplied by.

    Args:
        settings: Of the job.
        counted: Its memory at each batch, as if it had none of these settings.
        layers: One after the other.
    """
    one = Factors(1.0, 1.0, 1.0, 1.0)
    if settings.mode != "train":
        return one
    total = np.array([each.total_bytes for each in counted])
    if settings.activation_checkpointing or settings.sharded_ranks:
        some = min(1.0, 2.0 / max(layers, 1.0) ** 0.5)
        keeps = (some, some / 2, (1.0 + some) / 2) if settings.activation_checkpointing else (1.0, 1.0, 1.0)
        gathers = (
            (settings.gathered_ratio, 0.0, settings.gathered_ratio) if settings.gathered_ratio else (some, 0.0, 1.0)
        )
        value, lower, bound = (
            np.array([_reduced(each, settings, kept, gathered).total_bytes for each in counted]) / total
            for kept, gathered in zip(keeps, gathers, strict=True)
        )
        one = Factors(value, lower, bound, bound)
    if settings.ddp_bucket_bytes is None:
        return one
    gradients = np.array([each.gradients_bytes for each in counted])
    copied, most = 1.0 + gradients / total, 1.0 + (gradients + settings.ddp_bucket_bytes) / total
    return Factors(one.value * copied, one.lower, one.upper * most, one.upper_99 * most)


def bucket_copies_ms(
    settings: JobSettings, gradients_bytes: float, memory_bytes_per_s: float
) -> tuple[float, float, float]:
    """What DDP's buckets add to the time of a step: value, lower and upper end, ms; 0 where there are none.

    Args:
        settings: Of the job.
        gradients_bytes: Of all parameters, at least 0.
        memory_bytes_per_s: Bandwidth of the device's memory, above 0.
    """
    if settings.ddp_bucket_bytes is None or settings.mode != "train":
        return 0.0, 0.0, 0.0
    value, lower, upper = (passes * 1e3 * gradients_bytes / memory_bytes_per_s for passes in _BUCKET_PASSES)
    return value, lower, upper


def _reduced(counted: MemoryBreakdown, settings: JobSettings, kept: float, gathered: float) -> MemoryBreakdown:
    """Memory where a share of the activations is kept, and of what is divided among ranks a share is gathered."""
    counted = counted._replace(activations_bytes=kept * counted.activations_bytes)
    if not settings.sharded_ranks:
        return counted
    own = 1.0 / settings.sharded_ranks
    here = own + (1.0 - own) * gathered
    learning_bytes = min(weights_bytes(counted.gradients_bytes, settings.precision), counted.weights_bytes)
    return counted._replace(
        weights_bytes=counted.weights_bytes - (1.0 - here) * learning_bytes,
        gradients_bytes=here * counted.gradients_bytes,
        optimizer_state_bytes=own * counted.optimizer_state_bytes,
        update_bytes=own * counted.update_bytes,
    )


def step_factors(settings: JobSettings, *, convolves: bool) -> Factors:
    """What the time of a step is multiplied by.

    Args:
        settings: Of the job.
        convolves: Whether its graph has a convolution.
    """
    value = lower = upper = 1.0
    if settings.activation_checkpointing and settings.mode == "train":
        value, upper = _FORWARD_AGAIN, _FORWARD_AGAIN
    if settings.channels_last and convolves:
        layout = _CHANNELS_LAST if settings.precision in _HALF else _OTHER_LAYOUT
        value, lower, upper = (each * factor for each, factor in zip((value, lower, upper), layout, strict=True))
    return Factors(value, lower, upper, upper)

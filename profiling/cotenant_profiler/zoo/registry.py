"""The one registry of architectures that this repository defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.errors import UnknownArchitectureError

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How to build, feed and train one architecture.

    Attributes:
        name: Unique, lower case with underscores.
        family: Group of architectures that resemble each other: mlp, cnn, rnn, transformer, recommender ...
        build: Makes the network with torch's current random state.
        make_batch: Makes (inputs, targets) for a number of samples with torch's current random state.
        loss: Mean loss over the samples of (output, targets).
        batches: Batch sizes worth measuring, smallest first.
        optimizer: sgd, momentum, adam or adamw.
        scale: "small" where one CPU core trains it in milliseconds a step, "full" for the size that its authors
            published, which needs a GPU.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    batches: tuple[int, ...]
    loss: Loss = functional.cross_entropy
    optimizer: str = "momentum"
    scale: str = "small"


_architectures: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Add an architecture; its name must be new."""
    if architecture.name in _architectures:
        raise ValueError(f"the zoo has {architecture.name} already")
    _architectures[architecture.name] = architecture


def find(name: str) -> Architecture:
    """Return the architecture called `name`.

    Raises:
        UnknownArchitectureError: There is none; the message lists the names.
    """
    try:
        return _architectures[name]
    except KeyError:
        raise UnknownArchitectureError(name, names()) from None


def names(scale: str = "all") -> tuple[str, ...]:
    """Return the names of a scale (small, full or all) in alphabetical order."""
    return tuple(sorted(name for name, item in _architectures.items() if scale in {"all", item.scale}))

"""Generated inputs and targets; what a network is fed, not what it should learn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from cotenant_profiler.zoo.registry import Batch


def images(channels: int, size: int, classes: int = 10) -> Callable[[int], Batch]:
    """Return a maker of square images, (batch, channels, size, size), with a class each."""

    def make(batch: int) -> Batch:
        return torch.randn(batch, channels, size, size), torch.randint(0, classes, (batch,))

    return make


def vectors(width: int) -> Callable[[int], Batch]:
    """Return a maker of vectors, (batch, width), with one of ten classes each."""

    def make(batch: int) -> Batch:
        return torch.randn(batch, width), torch.randint(0, 10, (batch,))

    return make


def tokens(vocabulary: int, time: int) -> Callable[[int], Batch]:
    """Return a maker of symbol sequences, (batch, time), with the next symbol at every position."""

    def make(batch: int) -> Batch:
        text = torch.randint(0, vocabulary, (batch, time + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return make


def translations(vocabulary: int, time: int) -> Callable[[int], Batch]:
    """Return a maker of sources with shifted targets, (batch, 2, time), with the next symbol of the target."""

    def make(batch: int) -> Batch:
        text = torch.randint(0, vocabulary, (batch, 2, time + 1))
        return text[:, :, :-1].contiguous(), text[:, 1, 1:].contiguous()

    return make


def identifiers(size: int, fields: int) -> Callable[[int], Batch]:
    """Return a maker of rows of `fields` identifiers below `size`, with one of two classes each."""

    def make(batch: int) -> Batch:
        return torch.randint(0, size, (batch, fields)), torch.randint(0, 2, (batch,))

    return make


def pictures(channels: int, size: int) -> Callable[[int], Batch]:
    """Return a maker of images that are their own target."""

    def make(batch: int) -> Batch:
        content = torch.randn(batch, channels, size, size)
        return content, content

    return make


def token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions of (batch, positions, classes) scores."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

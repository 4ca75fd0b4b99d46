"""What the example trainings learn: generated data sets, losses and sample order. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.training import models

SAMPLES = 512
VOCABULARY = 200
TOKENS = 24


@dataclass(frozen=True, slots=True)
class Data:
    """Inputs and targets with the sample in dimension 0."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training: network, data, loss and its usual settings.

    Attributes:
        build: Makes the network with torch's current random state.
        generate: Makes the data from a seeded generator.
        loss: Mean loss over the samples of (output, targets).
        batch_size: Samples per optimizer step by default.
        optimizer: sgd, momentum, adam or adamw.
        learning_rate: Step size of that optimizer.
    """

    build: Callable[[], nn.Module]
    generate: Callable[[torch.Generator], Data]
    loss: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    optimizer: str
    learning_rate: float


def sample_order(seed: int, epoch: int, samples: int) -> Tensor:
    """Return the order of the samples in one epoch, a function of its arguments only."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(samples, generator=generator)


def batch_indices(seed: int, step: int, batch_size: int, samples: int) -> Tensor:
    """Return the samples of optimizer step `step` (from 0).

    They depend on the seed and the position in the stream of samples alone, neither on the sub-batch nor on a restart;
    a batch may reach into the next epoch.
    """
    first = step * batch_size
    parts = []
    taken = 0
    while taken < batch_size:
        epoch, position = divmod(first + taken, samples)
        part = sample_order(seed, epoch, samples)[position : position + batch_size - taken]
        parts.append(part)
        taken += len(part)
    return torch.cat(parts)


def _images(generator: torch.Generator, channels: int, size: int) -> Data:
    """Ten random patterns under noise; the class is the pattern."""
    patterns = torch.randn(10, channels, size, size, generator=generator)
    classes = torch.randint(0, 10, (SAMPLES,), generator=generator)
    noise = torch.randn(SAMPLES, channels, size, size, generator=generator)
    return Data(patterns[classes] + 1.5 * noise, classes)


def _flat_images(generator: torch.Generator) -> Data:
    data = _images(generator, 1, 28)
    return Data(data.inputs.flatten(1), data.targets)


def _symbols(generator: torch.Generator) -> Data:
    """Sequences in which every symbol follows from the one before, four times out of five."""
    rows = [torch.randint(0, VOCABULARY, (SAMPLES,), generator=generator)]
    for _ in range(TOKENS):
        random = torch.randint(0, VOCABULARY, (SAMPLES,), generator=generator)
        regular = torch.rand(SAMPLES, generator=generator) < 0.8
        rows.append(torch.where(regular, (5 * rows[-1] + 7) % VOCABULARY, random))
    text = torch.stack(rows, dim=1)
    return Data(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def _histories(generator: torch.Generator) -> Data:
    """A user likes an item history when their hidden groups agree."""
    users = torch.randint(0, 6_000, (SAMPLES, 1), generator=generator)
    items = torch.randint(0, 15_000, (SAMPLES, 16), generator=generator)
    liked = ((items % 7).float().mean(1) > (users[:, 0] % 7).float()).long()
    return Data(torch.cat((users, items), dim=1), liked)


def _pictures(generator: torch.Generator) -> Data:
    images = _images(generator, 3, 32).inputs
    return Data(images, images)


def _token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


TASKS = {
    "mlp": Task(
        build=models.Mlp,
        generate=_flat_images,
        loss=functional.cross_entropy,
        batch_size=128,
        optimizer="adam",
        learning_rate=1e-3,
    ),
    "cnn": Task(
        build=models.Cnn,
        generate=lambda generator: _images(generator, 1, 28),
        loss=functional.cross_entropy,
        batch_size=64,
        optimizer="momentum",
        learning_rate=1e-2,
    ),
    "resnet": Task(
        build=models.ResNet,
        generate=lambda generator: _images(generator, 3, 32),
        loss=functional.cross_entropy,
        batch_size=32,
        optimizer="momentum",
        learning_rate=1e-2,
    ),
    "lstm": Task(
        build=models.LstmLanguageModel,
        generate=_symbols,
        loss=_token_loss,
        batch_size=16,
        optimizer="adam",
        learning_rate=2e-3,
    ),
    "transformer": Task(
        build=models.TransformerLanguageModel,
        generate=_symbols,
        loss=_token_loss,
        batch_size=16,
        optimizer="adamw",
        learning_rate=1e-3,
    ),
    "recommender": Task(
        build=models.Recommender,
        generate=_histories,
        loss=functional.cross_entropy,
        batch_size=256,
        optimizer="adam",
        learning_rate=2e-3,
    ),
    "autoencoder": Task(
        build=models.Autoencoder,
        generate=_pictures,
        loss=functional.mse_loss,
        batch_size=32,
        optimizer="adam",
        learning_rate=1e-3,
    ),
}

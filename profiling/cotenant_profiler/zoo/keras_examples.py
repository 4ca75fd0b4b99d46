"""Networks of the Keras examples as MISO trained them: the sizes of their inputs are those of its training scripts.

Images of CIFAR-10 (32 x 32 pixels, 10 classes) go through networks made for ImageNet, unchanged. Texts have 512
symbols, padded. Speech is that of LJ Speech, whose mean clip has 905 windows. Molecules are those of BBBP at their mean
size: 24 atoms, 26 bonds in both directions and a loop at every atom. A time series has 500 instants of one number.

Source: https://github.com/boringlee24/socc22-miso, mps/models (the training scripts).
Source: https://keras.io/examples/graph/mpnn-molecular-graphs and
https://keras.io/examples/timeseries/timeseries_transformer_classification (the networks).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.attention_networks import SpanTransformer, span_loss
from cotenant_profiler.zoo.batches import images, token_loss, tokens
from cotenant_profiler.zoo.mobile_networks import mobilenet_v2
from cotenant_profiler.zoo.registry import Architecture, Batch, Loss, register
from cotenant_profiler.zoo.residual_networks import bottleneck_resnet
from cotenant_profiler.zoo.speech_networks import SpeechRecognizer, spectrograms

_ATOMS: Final = 24
_BONDS: Final = 26
_ATOM_FEATURES: Final = 29
_BOND_FEATURES: Final = 7
_INSTANTS: Final = 500
_CLASSES: Final = 2


class MessagePassing(nn.Module):
    """Atoms and bonds, (batch, atoms, features) and (batch, pairs, features) -> states of atoms, (batch, atoms, width).

    A message goes through a matrix made of the features of its bond; a GRU takes the sum of an atom's messages.
    """

    sources: Tensor
    incidence: Tensor

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.width = width
        self.steps = steps
        atoms = torch.arange(_ATOMS)
        bonds = torch.arange(_BONDS) % _ATOMS
        targets = torch.cat((atoms, bonds, (bonds + 1) % _ATOMS))
        self.register_buffer("sources", torch.cat((atoms, (bonds + 1) % _ATOMS, bonds)))
        self.register_buffer("incidence", functional.one_hot(targets, _ATOMS).float().T)
        self.matrices = nn.Linear(_BOND_FEATURES, width * width)
        self.gates = nn.Linear(2 * width, 2 * width)
        self.candidate = nn.Linear(2 * width, width)

    def forward(self, atoms: Tensor, bonds: Tensor) -> Tensor:
        """Return the state of every atom after all steps."""
        states = functional.pad(atoms, (0, self.width - _ATOM_FEATURES))
        for _ in range(self.steps):
            matrices = self.matrices(bonds).unflatten(-1, (self.width, self.width))
            messages = torch.matmul(matrices, states[:, self.sources].unsqueeze(-1)).squeeze(-1)
            states = self._update(torch.matmul(self.incidence, messages), states)
        return states

    def _update(self, messages: Tensor, states: Tensor) -> Tensor:
        reset, kept = torch.sigmoid(self.gates(torch.cat((messages, states), -1))).chunk(2, -1)
        candidate = torch.tanh(self.candidate(torch.cat((messages, reset * states), -1)))
        return kept * states + (1 - kept) * candidate


class WideAttention(nn.Module):
    """Attention of heads whose width is free of that of the sequence: (batch, time, width) -> the same."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.projection = nn.Linear(width, 3 * heads * head_width)
        self.output = nn.Linear(heads * head_width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what every position attends to."""
        projected = self.projection(hidden).unflatten(-1, (3 * self.heads, -1))
        query, key, value = projected.transpose(1, 2).chunk(3, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value)
        found: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return found


class MoleculeClassifier(nn.Module):
    """Messages between atoms, attention over them, two dense layers: (batch, atoms + pairs, features) -> (batch, 2)."""

    def __init__(self, width: int, heads: int, dense: int) -> None:
        super().__init__()
        self.messages = MessagePassing(width, steps=4)
        self.attention = WideAttention(width, heads, width)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, dense), nn.ReLU(), nn.Linear(dense, width))
        self.head = nn.Sequential(nn.Linear(width, dense), nn.ReLU(), nn.Linear(dense, _CLASSES))

    def forward(self, molecules: Tensor) -> Tensor:
        """Return scores of both classes; the first rows of a molecule are its atoms, the others its pairs."""
        states = self.messages(molecules[:, :_ATOMS], molecules[:, _ATOMS:, :_BOND_FEATURES])
        states = self.first_norm(states + self.attention(states))
        states = self.second_norm(states + self.feed_forward(states))
        scores: Tensor = self.head(states.mean(dim=1))
        return scores


class _SeriesBlock(nn.Module):
    """Attention over the instants and a feed-forward layer, each before a LayerNorm and a shortcut."""

    def __init__(self, heads: int, head_width: int, dense: int) -> None:
        super().__init__()
        self.attention = WideAttention(1, heads, head_width)
        self.first_norm, self.second_norm = nn.LayerNorm(1), nn.LayerNorm(1)
        self.feed_forward = nn.Sequential(nn.Linear(1, dense), nn.ReLU(), nn.Linear(dense, 1))

    def forward(self, series: Tensor) -> Tensor:
        """Return (batch, time, 1)."""
        attended = self.first_norm(self.attention(series)) + series
        fed: Tensor = self.second_norm(self.feed_forward(attended)) + attended
        return fed


def series_transformer(blocks: int) -> nn.Module:
    """Return the classifier of time series: (batch, 500, 1) -> (batch, 2)."""
    body = [_SeriesBlock(heads=4, head_width=256, dense=4) for _ in range(blocks)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(_INSTANTS, 128), nn.ReLU(), nn.Linear(128, _CLASSES))


def _series(batch: int) -> Batch:
    return torch.randn(batch, _INSTANTS, 1), torch.randint(0, _CLASSES, (batch,))


def _molecules(batch: int) -> Batch:
    rows = 2 * _ATOMS + 2 * _BONDS
    return torch.randn(batch, rows, _ATOM_FEATURES), torch.randint(0, _CLASSES, (batch,))


Maker = Callable[[int], Batch]


def _register(name: str, family: str, build: Callable[[], nn.Module], make_batch: Maker, loss: Loss) -> None:
    register(
        Architecture(
            name=name,
            family=family,
            build=build,
            make_batch=make_batch,
            batches=_BATCHES[family],
            loss=loss,
            optimizer="adam",
            scale="full",
        )
    )


_BATCHES: Final = {
    "resnet": (64, 128, 256, 512),
    "mobilenet": (64, 128, 256, 512),
    "graph": (64, 128, 256, 512),
    "transformer": (2, 4, 8, 16, 32, 64, 128),
    "speech": (2, 4, 8, 16),
}
_resnet50 = partial(bottleneck_resnet, (3, 4, 6, 3), classes=10)
_bert = partial(SpanTransformer, vocabulary=28_996, width=768, heads=12, time=512, blocks=12)
_deep_speech = partial(SpeechRecognizer, frequencies=193, channels=32, width=512, layers=5, symbols=32)
_register("resnet50_32px", "resnet", _resnet50, images(3, 32), functional.cross_entropy)
_register("mobilenet_v2_32px", "mobilenet", partial(mobilenet_v2, 10), images(3, 32), functional.cross_entropy)
_register("mpnn_molecules", "graph", partial(MoleculeClassifier, 64, 8, 512), _molecules, functional.cross_entropy)
_register("transformer_series", "transformer", partial(series_transformer, 4), _series, functional.cross_entropy)
_register("bert_base_512", "transformer", _bert, tokens(28_996, 512), span_loss)
_register("deepspeech2_ljspeech", "speech", _deep_speech, spectrograms(193, 906, 32), token_loss)

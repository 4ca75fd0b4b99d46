"""Recurrent and attention networks on sequences of symbols."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import token_loss, tokens
from cotenant_profiler.zoo.registry import Architecture, register


class RecurrentLanguageModel(nn.Module):
    """An embedding, recurrent layers and a head: (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, layers: int, cell: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = cell(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of the next symbol at every position."""
        scores: Tensor = self.head(self.recurrent(self.embedding(text))[0])
        return scores


class AttentionBlock(nn.Module):
    """Self-attention and a feed-forward layer, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states, (batch, time, width)."""
        projected = self.projection(self.norm(hidden)).unflatten(-1, (3 * self.heads, -1))
        query, key, value = projected.transpose(1, 2).chunk(3, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        fed: Tensor = hidden + self.feed_forward(hidden)
        return fed


class TransformerLanguageModel(nn.Module):
    """Attention blocks between an embedding and a head: (batch, time) -> (batch, time, vocabulary)."""

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int,
        time: int,
        blocks: int,
        causal: bool,
        heads: int = 4,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads, causal=causal) for _ in range(blocks)))
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of a symbol at every position."""
        scores: Tensor = self.head(self.blocks(self.embedding(text) + self.position))
        return scores


class SequenceConvolution(nn.Module):
    """Dilated convolutions over a sequence (the shape of WaveNet): (batch, time) -> (batch, time, vocabulary)."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2**index, dilation=2**index) for index in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        """Return scores of a symbol at every position."""
        hidden = self.embedding(text).transpose(1, 2)
        for convolution in self.convolutions:
            hidden = hidden + torch.tanh(convolution(hidden))
        scores: Tensor = self.head(hidden.transpose(1, 2))
        return scores


register(
    Architecture(
        name="lstm",
        family="rnn",
        build=lambda: RecurrentLanguageModel(256, 64, 2, nn.LSTM),
        make_batch=tokens(256, 20),
        batches=(8, 16, 32, 64),
        loss=token_loss,
        optimizer="adam",
    )
)
register(
    Architecture(
        name="gru",
        family="rnn",
        build=lambda: RecurrentLanguageModel(256, 96, 1, nn.GRU),
        make_batch=tokens(256, 24),
        batches=(8, 16, 32, 64),
        loss=token_loss,
    )
)
register(
    Architecture(
        name="transformer",
        family="transformer",
        build=lambda: TransformerLanguageModel(vocabulary=256, width=96, time=32, blocks=2, causal=True),
        make_batch=tokens(256, 32),
        batches=(4, 8, 16, 32),
        loss=token_loss,
        optimizer="adamw",
    )
)
register(
    Architecture(
        name="transformer_encoder",
        family="transformer",
        build=lambda: TransformerLanguageModel(vocabulary=512, width=64, time=48, blocks=3, causal=False),
        make_batch=tokens(512, 48),
        batches=(2, 4, 8, 16),
        loss=token_loss,
        optimizer="adam",
    )
)
register(
    Architecture(
        name="sequence_convolution",
        family="sequence_cnn",
        build=lambda: SequenceConvolution(128, 48, 4),
        make_batch=tokens(128, 64),
        batches=(4, 8, 16, 32),
        loss=token_loss,
    )
)
register(
    Architecture(
        name="lstm_wikitext",
        family="rnn",
        build=lambda: RecurrentLanguageModel(33_278, 200, 2, nn.LSTM),
        make_batch=tokens(33_278, 35),
        batches=(5, 10, 20, 40, 80),
        loss=token_loss,
        optimizer="sgd",
        scale="full",
    )
)
register(
    Architecture(
        name="lstm_large",
        family="rnn",
        build=lambda: RecurrentLanguageModel(10_000, 1_500, 2, nn.LSTM),
        make_batch=tokens(10_000, 35),
        batches=(5, 10, 20, 40, 80),
        loss=token_loss,
        optimizer="sgd",
        scale="full",
    )
)

"""Attention networks at their published size, and networks on pictures and pairs of sequences built from attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import images, token_loss, tokens, translations
from cotenant_profiler.zoo.registry import Architecture, Batch, Loss, register
from cotenant_profiler.zoo.sequences import AttentionBlock, TransformerLanguageModel


class VisionTransformer(nn.Module):
    """Attention over patches of a square image: (batch, 3, size, size) -> (batch, classes)."""

    def __init__(self, *, size: int, patch: int, width: int, heads: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros((size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads, causal=False) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return scores of the classes."""
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        first = self.first.expand(patches.shape[0], -1, -1)
        hidden = self.blocks(torch.cat((first, patches), dim=1) + self.position)
        scores: Tensor = self.head(self.norm(hidden[:, 0]))
        return scores


class SpanTransformer(nn.Module):
    """BERT with a head that marks the start and end of an answer: (batch, time) -> (batch, time, 2)."""

    def __init__(self, *, vocabulary: int, width: int, heads: int, time: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(max(time, 512), width))
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads, causal=False) for _ in range(blocks)))
        self.head = nn.Linear(width, 2)

    def forward(self, text: Tensor) -> Tensor:
        """Return two scores for every position."""
        hidden = self.norm(self.embedding(text) + self.position[: text.shape[1]])
        scores: Tensor = self.head(self.blocks(hidden))
        return scores


class CrossAttention(nn.Module):
    """Attention from one sequence to another, added to the first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Return the hidden states, (batch, time, width)."""
        query = self.query(self.norm(hidden)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(memory).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value)
        added: Tensor = hidden + self.output(attended.transpose(1, 2).flatten(2))
        return added


class TranslationTransformer(nn.Module):
    """Encoder and decoder: (batch, 2, time) of source and shifted target -> (batch, time, vocabulary)."""

    def __init__(self, *, vocabulary: int, width: int, heads: int, blocks: int, time: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(time, width))
        self.encoder = nn.Sequential(*(AttentionBlock(width, heads, causal=False) for _ in range(blocks)))
        self.decoder = nn.ModuleList(AttentionBlock(width, heads, causal=True) for _ in range(blocks))
        self.crossings = nn.ModuleList(CrossAttention(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, texts: Tensor) -> Tensor:
        """Return scores of the next symbol of the target at every position."""
        memory = self.encoder(self.embedding(texts[:, 0]) + self.position)
        hidden = self.embedding(texts[:, 1]) + self.position
        for block, crossing in zip(self.decoder, self.crossings, strict=True):
            hidden = crossing(block(hidden), memory)
        scores: Tensor = self.head(hidden)
        return scores


def span_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of start and end over the positions of (batch, time, 2) scores."""
    last = scores.shape[1] - 1
    start, end = targets[:, 0].clamp(max=last), targets[:, 1].clamp(max=last)
    return (functional.cross_entropy(scores[..., 0], start) + functional.cross_entropy(scores[..., 1], end)) / 2


def _register(
    name: str,
    build: Callable[[], nn.Module],
    make_batch: Callable[[int], Batch],
    loss: Loss,
    *,
    family: str = "transformer",
    batches: tuple[int, ...] = (2, 4, 8, 16, 32),
    scale: str = "full",
) -> None:
    register(
        Architecture(
            name=name,
            family=family,
            build=build,
            make_batch=make_batch,
            batches=batches,
            loss=loss,
            optimizer="adamw",
            scale=scale,
        )
    )


_register(
    "bert_base",
    partial(SpanTransformer, vocabulary=30_522, width=768, heads=12, time=384, blocks=12),
    tokens(30_522, 384),
    span_loss,
)
_register(
    "gpt2",
    partial(
        TransformerLanguageModel, vocabulary=50_257, width=768, time=1024, blocks=12, causal=True, heads=12, tied=True
    ),
    tokens(50_257, 1024),
    token_loss,
    batches=(1, 2, 4, 8, 16),
)
_register(
    "transformer_translation",
    partial(TranslationTransformer, vocabulary=9_521, width=512, heads=8, blocks=6, time=50),
    translations(9_521, 50),
    token_loss,
    batches=(16, 32, 64, 128, 256),
)
_register(
    "vit_b16",
    partial(VisionTransformer, size=224, patch=16, width=768, heads=12, blocks=12, classes=1000),
    images(3, 224, 1000),
    functional.cross_entropy,
    family="vision_transformer",
    batches=(8, 16, 32, 64, 128),
)
_register(
    "vit_small",
    partial(VisionTransformer, size=32, patch=8, width=64, heads=4, blocks=3, classes=10),
    images(3, 32),
    functional.cross_entropy,
    family="vision_transformer",
    batches=(4, 8, 16, 32),
    scale="small",
)
_register(
    "bert_small",
    partial(SpanTransformer, vocabulary=512, width=64, heads=4, time=64, blocks=2),
    tokens(512, 64),
    span_loss,
    batches=(2, 4, 8, 16),
    scale="small",
)
_register(
    "translation_small",
    partial(TranslationTransformer, vocabulary=256, width=48, heads=4, blocks=2, time=24),
    translations(256, 24),
    token_loss,
    family="translation",
    batches=(4, 8, 16, 32),
    scale="small",
)

"""The networks of the example trainings: seven ordinary PyTorch modules.

Every network maps one input tensor to one output tensor, so that one training loop serves them all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    """Four dense layers on flat images: (batch, 784) -> (batch, 10)."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, (batch, 10)."""
        scores: Tensor = self.layers(images)
        return scores


class Cnn(nn.Module):
    """Two convolutions and two dense layers: (batch, 1, 28, 28) -> (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 24, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(24 * 7 * 7, 96), nn.ReLU(), nn.Linear(96, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, (batch, 10)."""
        scores: Tensor = self.head(self.features(images).flatten(1))
        return scores


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, (batch, outputs, height / stride, width / stride)."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


class ResNet(nn.Module):
    """A stem and three residual blocks: (batch, 3, 32, 32) -> (batch, 10).

    BatchNorm sees one sub-batch at a time: training with another sub-batch is close to, but not the same as,
    training with the whole batch.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, 2),
            ResidualBlock(width, 2 * width, 2),
            ResidualBlock(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores, (batch, 10)."""
        scores: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return scores


class LstmLanguageModel(nn.Module):
    """A two-layer LSTM predicting the next of 200 symbols: (batch, time) -> (batch, time, 200)."""

    def __init__(self, vocabulary: int = 200, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next symbol at every position."""
        scores: Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return scores


class TransformerBlock(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden states, (batch, time, width)."""
        projected = self.projection(self.attention_norm(hidden))
        query, key, value = projected.unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        fed: Tensor = hidden + self.feed_forward(hidden)
        return fed


class TransformerLanguageModel(nn.Module):
    """A two-layer transformer predicting the next of 200 symbols: (batch, time) -> (batch, time, 200)."""

    def __init__(self, vocabulary: int = 200, width: int = 96, time: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.Sequential(TransformerBlock(width, 4), TransformerBlock(width, 4))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next symbol at every position."""
        scores: Tensor = self.head(self.blocks(self.embedding(tokens) + self.position))
        return scores


class Recommender(nn.Module):
    """Item histories and a user id to a score: (batch, 1 + history) whole numbers -> (batch, 2)."""

    def __init__(self, users: int = 6_000, items: int = 15_000, width: int = 32) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.tower = nn.Sequential(
            nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of "skipped" and "liked", (batch, 2)."""
        user = self.users(ids[:, 0])
        history = self.items(ids[:, 1:]).mean(1)
        scores: Tensor = self.tower(torch.cat((user, history), dim=1))
        return scores


class Autoencoder(nn.Module):
    """A convolutional autoencoder: (batch, 3, 32, 32) -> the same shape."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.GELU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.GELU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return the reconstruction."""
        restored: Tensor = self.layers(images)
        return restored

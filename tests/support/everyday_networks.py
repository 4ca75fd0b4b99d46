"""Small networks built as people build them; each operator that training keeps something of is in one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

_WORDS, _PLACES, _WIDTH, _HEADS = 100, 12, 16, 2


class ResidualNetwork(nn.Module):
    """Two blocks of convolutions with normalization and ReLU in place, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16))
        self.shortcut = nn.Sequential(nn.Conv2d(8, 16, 1, 2), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(self.stem(image))
        x = torch.relu(self.second(self.first(x)) + self.shortcut(x))
        answer: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return answer


class WrittenOutAttention(nn.Module):
    """An encoder with attention by hand and dropout everywhere, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_PLACES, _WIDTH))
        self.query, self.key, self.value, self.output = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.inner, self.outer = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH) for _ in range(3)])
        self.drops = nn.ModuleList([nn.Dropout(0.1) for _ in range(4)])

    def forward(self, words: Tensor) -> Tensor:
        x = self.drops[0](self.norms[0](self.words(words) + self.places))
        query, key, value = (_by_heads(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(_WIDTH // _HEADS)
        seen = (self.drops[1](torch.softmax(scores, dim=-1)) @ value).transpose(1, 2).flatten(2)
        x = self.norms[1](x + self.drops[2](self.output(seen)))
        answer: Tensor = self.norms[2](x + self.drops[3](self.outer(functional.gelu(self.inner(x)))))
        return answer


class OneCallAttention(nn.Module):
    """A block with attention in one call, as in GPT-2 and vision transformers."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.zeros(_PLACES, _WIDTH))
        self.all_three, self.output = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * _WIDTH, _WIDTH), nn.Dropout(0.1)
        )
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places
        query, key, value = (_by_heads(part) for part in self.all_three(self.first(x)).split(_WIDTH, 2))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        answer: Tensor = self.head(x + self.mlp(self.second(x)))
        return answer


class SkippingNetwork(nn.Module):
    """A U-Net of one level with group normalization, SiLU and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 8) for _ in range(2)])
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = functional.silu(self.norms[0](self.stem(image)))
        y = functional.silu(self.norms[1](self.down(functional.avg_pool2d(x, 2))))
        y = functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=True)
        answer: Tensor = self.head(functional.elu(self.up(torch.cat([x, y], 1))))
        return answer


def mobile_network() -> nn.Module:
    """Inverted bottlenecks with depthwise convolutions and hard swish."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish()),
        *(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.SiLU()),
        *(nn.Conv2d(8, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10)),
    )


def perceptron() -> nn.Module:
    """A classifier of vectors with dropout."""
    return nn.Sequential(
        *(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.0)),
        nn.Linear(32, 10),
    )


def autoencoder() -> nn.Module:
    """Convolutions down and up again."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Sigmoid()),
    )


def _by_heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], _PLACES, _HEADS, _WIDTH // _HEADS).transpose(1, 2)


def images(batch: int) -> Tensor:
    return torch.zeros(batch, 3, 32, 32)


def texts(batch: int) -> Tensor:
    return torch.zeros(batch, _PLACES, dtype=torch.long)


def vectors(batch: int) -> Tensor:
    return torch.zeros(batch, 64)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "residual": (ResidualNetwork, images),
    "attention by hand": (WrittenOutAttention, texts),
    "attention in one call": (lambda: OneCallAttention(is_causal=False), texts),
    "causal attention": (lambda: OneCallAttention(is_causal=True), texts),
    "skipping": (SkippingNetwork, images),
    "mobile": (mobile_network, images),
    "perceptron": (perceptron, vectors),
    "autoencoder": (autoencoder, images),
}
"""By name: what builds the network, and what makes an input of so many samples."""

"""Small networks of which a part is frozen, as fine-tuning leaves it; see `everyday_networks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Part = TypeVar("Part", bound=nn.Module)
_WORDS, _PLACES, _WIDTH, _HEADS, _RANK = 96, 12, 16, 2, 2


def frozen(part: Part) -> Part:
    """Takes its weights out of what is trained."""
    for parameter in part.parameters():
        parameter.requires_grad_(False)
    return part


class LowRank(nn.Module):
    """LoRA: a frozen layer and, next to it, a product of two thin ones that learns."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.base = frozen(nn.Linear(given, made))
        self.down, self.up = nn.Linear(given, _RANK, bias=False), nn.Linear(_RANK, made, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.base(x) + self.up(self.down(x))
        return answer


class AdaptedBlock(nn.Module):
    """Attention and two layers of a transformer, with adapters at the attention only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = frozen(nn.LayerNorm(_WIDTH)), frozen(nn.LayerNorm(_WIDTH))
        self.project, self.join = LowRank(_WIDTH, 3 * _WIDTH), LowRank(_WIDTH, _WIDTH)
        self.wide, self.narrow = frozen(nn.Linear(_WIDTH, 4 * _WIDTH)), frozen(nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.first(x)).view(*x.shape[:2], 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        answer: Tensor = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return answer


class AdaptedDecoder(nn.Module):
    """A language model that was frozen but for its adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = frozen(nn.Embedding(_WORDS, _WIDTH))
        self.blocks = nn.Sequential(AdaptedBlock(), AdaptedBlock())
        self.norm, self.head = frozen(nn.LayerNorm(_WIDTH)), frozen(nn.Linear(_WIDTH, _WORDS, bias=False))

    def forward(self, words: Tensor) -> Tensor:
        answer: Tensor = self.head(self.norm(self.blocks(self.table(words))))
        return answer


class FrozenTrunk(nn.Module):
    """Pictures are described by what was trained elsewhere; one more block and the head learn."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = frozen(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)))
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        answer: Tensor = self.head(self.block(self.trunk(image)).mean([2, 3]))
        return answer


class FrozenMiddle(nn.Module):
    """What comes before frozen layers learns, so that gradients pass through them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = frozen(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()))
        self.head = frozen(nn.Linear(8, 10))

    def forward(self, image: Tensor) -> Tensor:
        answer: Tensor = self.head(self.middle(self.stem(image)).mean([2, 3]))
        return answer


class Prompt(nn.Module):
    """Prompt tuning: a few places in front of every text learn, the network does not."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(2, _WIDTH))
        self.table, self.wide = frozen(nn.Embedding(_WORDS, _WIDTH)), frozen(nn.Linear(_WIDTH, 32))
        self.head = frozen(nn.Linear(32, _WORDS))

    def forward(self, words: Tensor) -> Tensor:
        prompts = self.prompt.unsqueeze(0).expand(words.shape[0], -1, -1)
        x = torch.cat([prompts, self.table(words)], 1)
        answer: Tensor = self.head(functional.gelu(self.wide(x)))
        return answer


def _images(batch: int) -> Tensor:
    return torch.zeros(batch, 3, 16, 16)


def _texts(batch: int) -> Tensor:
    return torch.zeros(batch, _PLACES, dtype=torch.long)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor | tuple[Tensor, ...]]]] = {
    "adapted decoder": (AdaptedDecoder, _texts),
    "frozen trunk": (FrozenTrunk, _images),
    "frozen middle": (FrozenMiddle, _images),
    "prompt": (Prompt, _texts),
}
"""By name: what builds the network, and what makes its inputs of so many samples."""

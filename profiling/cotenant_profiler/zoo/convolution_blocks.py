"""Pieces of which convolutional networks are made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


def convolution(
    inputs: int, outputs: int, kernel: Size = 3, *, stride: int = 1, padding: Size | None = None, groups: int = 1
) -> nn.Sequential:
    """Return a convolution without bias, BatchNorm and ReLU; without `padding` and `stride` the size stays."""
    kept = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kept if padding is None else padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def pointwise(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 1 x 1 convolution with BatchNorm and no activation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


def classifier(inputs: int, classes: int = 1000) -> nn.Sequential:
    """Return global average pooling and a dense layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Branches(nn.Module):
    """Runs modules in parallel on the same input and joins their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, features: Tensor) -> Tensor:
        """Return (batch, sum of channels, height, width)."""
        return torch.cat([branch(features) for branch in self.branches], dim=1)


class Shortcut(nn.Module):
    """Adds a body to its input, or to a projection of it, and applies an activation."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, features: Tensor) -> Tensor:
        """Return activation(body(features) + shortcut(features))."""
        added: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return added


class ChannelGate(nn.Module):
    """Squeeze and excitation: every channel is scaled by a function of the means of all channels."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, reduced, 1),
            nn.SiLU(),
            nn.Conv2d(reduced, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the scaled features."""
        gated: Tensor = features * self.gate(features)
        return gated

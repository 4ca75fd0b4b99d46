"""Convolutional networks on small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import images, pictures
from cotenant_profiler.zoo.registry import Architecture, register

_EXPANSION = 4


class Residual(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        unchanged = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if unchanged else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return features at a `stride`-th of the size."""
        return functional.relu(self.body(features) + self.shortcut(features))


class InvertedResidual(nn.Module):
    """1 x 1 expansion, depthwise 3 x 3, 1 x 1 projection (the block of MobileNetV2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * _EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, features: Tensor) -> Tensor:
        """Return features at a `stride`-th of the size."""
        projected: Tensor = self.body(features)
        return features + projected if self.adds else projected


class DenseLayer(nn.Module):
    """A convolution whose output is appended to its input (the layer of DenseNet)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return features with `growth` more channels."""
        return torch.cat((features, self.body(features)), dim=1)


def lenet() -> nn.Module:
    """Return two 5 x 5 convolutions and three dense layers for 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def resnet(width: int, blocks: tuple[int, ...]) -> nn.Module:
    """Return a residual network for 32 x 32 images; every stage doubles the width and halves the size."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage, count in enumerate(blocks):
        outputs = width * 2**stage
        for block in range(count):
            layers.append(Residual(inputs, outputs, 2 if block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def mobilenet() -> nn.Module:
    """Return four inverted residual blocks for 32 x 32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        InvertedResidual(8, 12, 1), InvertedResidual(12, 12, 1), InvertedResidual(12, 24, 2),
        InvertedResidual(24, 24, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    """Return three pairs of 3 x 3 convolutions and two dense layers for 32 x 32 images."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 12), (12, 24), (24, 48)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 16, 128), nn.ReLU(), nn.Linear(128, 10))


def densenet() -> nn.Module:
    """Return two dense blocks of four layers for 32 x 32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False)]
    layers += [DenseLayer(16 + 8 * index, 8) for index in range(4)]
    layers += [nn.Conv2d(48, 24, 1, bias=False), nn.AvgPool2d(2)]
    layers += [DenseLayer(24 + 8 * index, 8) for index in range(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(56, 10))


def autoencoder() -> nn.Module:
    """Return a convolutional autoencoder for 32 x 32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1),
    )  # fmt: skip


register(Architecture(name="lenet", family="cnn", build=lenet, make_batch=images(1, 28), batches=(16, 32, 64, 128)))
register(
    Architecture(
        name="resnet",
        family="resnet",
        build=lambda: resnet(8, (1, 1, 1)),
        make_batch=images(3, 32),
        batches=(8, 16, 32, 64),
    )
)
register(
    Architecture(
        name="resnet_wide",
        family="resnet",
        build=lambda: resnet(16, (2, 2, 1)),
        make_batch=images(3, 32),
        batches=(4, 8, 16, 32),
    )
)
register(
    Architecture(
        name="mobilenet", family="mobilenet", build=mobilenet, make_batch=images(3, 32), batches=(8, 16, 32, 64)
    )
)
register(Architecture(name="vgg", family="cnn", build=vgg, make_batch=images(3, 32), batches=(4, 8, 16, 32)))
register(
    Architecture(
        name="densenet",
        family="densenet",
        build=densenet,
        make_batch=images(3, 32),
        batches=(8, 16, 32, 64),
        optimizer="adam",
    )
)
register(
    Architecture(
        name="autoencoder",
        family="autoencoder",
        build=autoencoder,
        make_batch=pictures(3, 32),
        batches=(8, 16, 32, 64),
        loss=functional.mse_loss,
        optimizer="adam",
    )
)

"""Inception v3 and v4 for 299 x 299 images, without auxiliary classifiers."""

from __future__ import annotations

from torch import nn

from cotenant_profiler.zoo.batches import images
from cotenant_profiler.zoo.convolution_blocks import Branches, Size, classifier, convolution
from cotenant_profiler.zoo.registry import Architecture, register

WIDE, TALL = (1, 7), (7, 1)


def _chain(inputs: int, *steps: tuple[int, Size], stride: int = 1) -> nn.Sequential:
    """Convolutions one after the other; the last one has the stride and, if it is above 1, no padding."""
    layers = []
    for index, (outputs, kernel) in enumerate(steps):
        last = index == len(steps) - 1 and stride > 1
        layers.append(convolution(inputs, outputs, kernel, stride=stride if last else 1, padding=0 if last else None))
        inputs = outputs
    return nn.Sequential(*layers)


def _averaged(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), convolution(inputs, outputs, 1))


def _split(inputs: int, outputs: int) -> Branches:
    """A 1 x 3 and a 3 x 1 convolution in parallel."""
    return Branches(convolution(inputs, outputs, (1, 3)), convolution(inputs, outputs, (3, 1)))


def inception3() -> nn.Module:
    """Return Inception v3."""
    stem = (
        convolution(3, 32, stride=2, padding=0), convolution(32, 32, padding=0), convolution(32, 64),
        nn.MaxPool2d(3, 2), convolution(64, 80, 1), convolution(80, 192, padding=0), nn.MaxPool2d(3, 2),
    )  # fmt: skip
    fine = [
        Branches(
            convolution(inputs, 64, 1),
            _chain(inputs, (48, 1), (64, 5)),
            _chain(inputs, (64, 1), (96, 3), (96, 3)),
            _averaged(inputs, pooled),
        )
        for inputs, pooled in ((192, 32), (256, 64), (288, 64))
    ]
    middle = [
        Branches(
            convolution(768, 192, 1),
            _chain(768, (width, 1), (width, WIDE), (192, TALL)),
            _chain(768, (width, 1), (width, TALL), (width, WIDE), (width, TALL), (192, WIDE)),
            _averaged(768, 192),
        )
        for width in (128, 160, 160, 192)
    ]
    coarse = [
        Branches(
            convolution(inputs, 320, 1),
            nn.Sequential(convolution(inputs, 384, 1), _split(384, 384)),
            nn.Sequential(_chain(inputs, (448, 1), (384, 3)), _split(384, 384)),
            _averaged(inputs, 192),
        )
        for inputs in (1280, 2048)
    ]
    to_middle = Branches(
        _chain(288, (384, 3), stride=2), _chain(288, (64, 1), (96, 3), (96, 3), stride=2), nn.MaxPool2d(3, 2)
    )
    to_coarse = Branches(
        _chain(768, (192, 1), (320, 3), stride=2),
        _chain(768, (192, 1), (192, WIDE), (192, TALL), (192, 3), stride=2),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(*stem, *fine, to_middle, *middle, to_coarse, *coarse, nn.Dropout(), classifier(2048))


def inception4() -> nn.Module:
    """Return Inception v4."""
    stem = (
        convolution(3, 32, stride=2, padding=0), convolution(32, 32, padding=0), convolution(32, 64),
        Branches(nn.MaxPool2d(3, 2), convolution(64, 96, stride=2, padding=0)),
        Branches(
            nn.Sequential(convolution(160, 64, 1), convolution(64, 96, padding=0)),
            nn.Sequential(_chain(160, (64, 1), (64, WIDE), (64, TALL)), convolution(64, 96, padding=0)),
        ),
        Branches(convolution(192, 192, stride=2, padding=0), nn.MaxPool2d(3, 2)),
    )  # fmt: skip
    fine = [
        Branches(
            convolution(384, 96, 1),
            _chain(384, (64, 1), (96, 3)),
            _chain(384, (64, 1), (96, 3), (96, 3)),
            _averaged(384, 96),
        )
        for _ in range(4)
    ]
    middle = [
        Branches(
            convolution(1024, 384, 1),
            _chain(1024, (192, 1), (224, WIDE), (256, TALL)),
            _chain(1024, (192, 1), (192, TALL), (224, WIDE), (224, TALL), (256, WIDE)),
            _averaged(1024, 128),
        )
        for _ in range(7)
    ]
    coarse = [
        Branches(
            convolution(1536, 256, 1),
            nn.Sequential(convolution(1536, 384, 1), _split(384, 256)),
            nn.Sequential(_chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3))), _split(512, 256)),
            _averaged(1536, 256),
        )
        for _ in range(3)
    ]
    to_middle = Branches(
        _chain(384, (384, 3), stride=2), _chain(384, (192, 1), (224, 3), (256, 3), stride=2), nn.MaxPool2d(3, 2)
    )
    to_coarse = Branches(
        _chain(1024, (192, 1), (192, 3), stride=2),
        _chain(1024, (256, 1), (256, WIDE), (320, TALL), (320, 3), stride=2),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(*stem, *fine, to_middle, *middle, to_coarse, *coarse, nn.Dropout(), classifier(1536))


for _name, _build in (("inception3", inception3), ("inception4", inception4)):
    register(
        Architecture(
            name=_name,
            family="inception",
            build=_build,
            make_batch=images(3, 299, 1000),
            batches=(4, 8, 16, 32, 64),
            scale="full",
        )
    )

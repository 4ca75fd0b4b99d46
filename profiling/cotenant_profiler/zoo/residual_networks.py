"""Residual and densely connected networks at their published sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cotenant_profiler.zoo.batches import images
from cotenant_profiler.zoo.convolution_blocks import Shortcut, classifier, convolution, pointwise
from cotenant_profiler.zoo.convolutional import DenseLayer
from cotenant_profiler.zoo.registry import Architecture, register

Blocks = tuple[int, int, int, int]
DENSENETS: dict[str, tuple[int, int, Blocks]] = {
    "densenet121": (64, 32, (6, 12, 24, 16)),
    "densenet161": (96, 48, (6, 12, 36, 24)),
    "densenet169": (64, 32, (6, 12, 32, 32)),
    "densenet201": (64, 32, (6, 12, 48, 32)),
}


def _stem(width: int) -> list[nn.Module]:
    return [convolution(3, width, 7, stride=2), nn.MaxPool2d(3, 2, 1)]


def basic_resnet(blocks: Blocks, *, tiny_images: bool = False) -> nn.Module:
    """Return a residual network of basic blocks.

    Args:
        blocks: Blocks of each stage.
        tiny_images: For 32 x 32 images and 10 classes: a stem that keeps the size.
    """
    layers: list[nn.Module] = [convolution(3, 64)] if tiny_images else _stem(64)
    inputs = 64
    for stage, count in enumerate(blocks):
        outputs = 64 * 2**stage
        for block in range(count):
            layers.append(_basic(inputs, outputs, 2 if block == 0 and stage > 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, classifier(512, 10 if tiny_images else 1000))


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        convolution(inputs, outputs, stride=stride),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
    )
    return _with_shortcut(body, inputs, outputs, stride)


def _with_shortcut(body: nn.Module, inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return Shortcut(body, activation=nn.ReLU())
    projection = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    return Shortcut(body, projection, nn.ReLU())


def bottleneck_resnet(
    blocks: Blocks, *, groups: int = 1, group_width: int = 64, tiny_images: bool = False, classes: int = 1000
) -> nn.Module:
    """Return a residual network of bottleneck blocks: ResNet, ResNeXt (groups) or Wide ResNet (group_width 128).

    Args:
        blocks: Blocks of each stage.
        groups: Groups of the 3 x 3 convolutions.
        group_width: Channels of each group in the first stage.
        tiny_images: For 32 x 32 images and 10 classes: a stem that keeps the size.
        classes: Of other images.
    """
    layers: list[nn.Module] = [convolution(3, 64)] if tiny_images else _stem(64)
    inputs = 64
    for stage, count in enumerate(blocks):
        outputs = 256 * 2**stage
        hidden = groups * group_width * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            layers.append(_bottleneck(inputs, hidden, outputs, stride, groups))
            inputs = outputs
    return nn.Sequential(*layers, classifier(2048, 10 if tiny_images else classes))


def _bottleneck(inputs: int, hidden: int, outputs: int, stride: int, groups: int) -> nn.Module:
    body = nn.Sequential(
        convolution(inputs, hidden, 1),
        convolution(hidden, hidden, stride=stride, groups=groups),
        pointwise(hidden, outputs),
    )
    return _with_shortcut(body, inputs, outputs, stride)


class _Appended(DenseLayer):
    """The layer of DenseNet-B: a 1 x 1 convolution before the 3 x 3 one."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__(inputs, growth)
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            convolution(inputs, 4 * growth, 1),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )


def densenet(width: int, growth: int, blocks: Blocks) -> nn.Module:
    """Return DenseNet-BC.

    Args:
        width: Channels after the stem.
        growth: Channels that each layer appends.
        blocks: Layers of each block.
    """
    layers = _stem(width)
    channels = width
    for stage, count in enumerate(blocks):
        layers += [_Appended(channels + growth * index, growth) for index in range(count)]
        channels += growth * count
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if stage < len(blocks) - 1:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, classifier(channels))


_DEPTHS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": partial(basic_resnet, (2, 2, 2, 2)),
    "resnet34": partial(basic_resnet, (3, 4, 6, 3)),
    "resnet50": partial(bottleneck_resnet, (3, 4, 6, 3)),
    "resnet101": partial(bottleneck_resnet, (3, 4, 23, 3)),
    "resnet152": partial(bottleneck_resnet, (3, 8, 36, 3)),
    "resnext50_32x4d": partial(bottleneck_resnet, (3, 4, 6, 3), groups=32, group_width=4),
    "resnext101_32x8d": partial(bottleneck_resnet, (3, 4, 23, 3), groups=32, group_width=8),
    "wide_resnet50_2": partial(bottleneck_resnet, (3, 4, 6, 3), group_width=128),
    "wide_resnet101_2": partial(bottleneck_resnet, (3, 4, 23, 3), group_width=128),
}
for _name, _build in _DEPTHS.items():
    register(
        Architecture(
            name=_name,
            family="resnet",
            build=_build,
            make_batch=images(3, 224, 1000),
            batches=(8, 16, 32, 64, 128),
            scale="full",
        )
    )
for _name, _build in (
    ("resnet18_cifar", partial(basic_resnet, (2, 2, 2, 2), tiny_images=True)),
    ("resnet50_cifar", partial(bottleneck_resnet, (3, 4, 6, 3), tiny_images=True)),
):
    register(
        Architecture(
            name=_name,
            family="resnet",
            build=_build,
            make_batch=images(3, 32),
            batches=(16, 32, 64, 128, 256),
            scale="full",
        )
    )
for _name, _shape in DENSENETS.items():
    register(
        Architecture(
            name=_name,
            family="densenet",
            build=partial(densenet, *_shape),
            make_batch=images(3, 224, 1000),
            batches=(8, 16, 32, 64),
            scale="full",
        )
    )

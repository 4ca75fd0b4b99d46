"""Image classifiers without shortcuts at their published size: AlexNet, OverFeat, VGG, SqueezeNet, Inception."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cotenant_profiler.zoo.batches import images
from cotenant_profiler.zoo.convolution_blocks import Branches, classifier, convolution
from cotenant_profiler.zoo.registry import Architecture, register

VGG_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def alexnet(width: float = 1.0, size: int = 224) -> nn.Module:
    """Return five convolutions and three dense layers, the single-GPU form of AlexNet.

    Args:
        width: Multiplies all channels.
        size: Height and width of the images.
    """
    first, second, third, fourth, dense = (int(width * count) for count in (64, 192, 384, 256, 4096))
    left = (((((size + 4 - 11) // 4 + 1) - 3) // 2 + 1) - 3) // 2 + 1
    left = (left - 3) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(3, first, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(second, third, 3, padding=1), nn.ReLU(),
        nn.Conv2d(third, fourth, 3, padding=1), nn.ReLU(),
        nn.Conv2d(fourth, fourth, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Dropout(), nn.Linear(fourth * left * left, dense), nn.ReLU(),
        nn.Dropout(), nn.Linear(dense, dense), nn.ReLU(), nn.Linear(dense, 1000),
    )  # fmt: skip


def overfeat() -> nn.Module:
    """Return the fast OverFeat network for 231 x 231 images."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(96, 256, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(256, 512, 3, padding=1), nn.ReLU(),
        nn.Conv2d(512, 1024, 3, padding=1), nn.ReLU(),
        nn.Conv2d(1024, 1024, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024 * 36, 3072), nn.ReLU(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def vgg(depth: int, *, normalized: bool = False) -> nn.Module:
    """Return VGG for 224 x 224 images.

    Args:
        depth: 11, 13, 16 or 19 layers with weights.
        normalized: With BatchNorm after each convolution.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in zip((64, 128, 256, 512, 512), VGG_STAGES[depth], strict=True):
        for _ in range(count):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            layers += [nn.BatchNorm2d(outputs)] * normalized
            layers.append(nn.ReLU())
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    dense = (nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(4096, 1000))


def squeezenet(*, early_pooling: bool) -> nn.Module:
    """Return SqueezeNet 1.0, or 1.1 with early pooling."""
    stem = nn.Conv2d(3, 64, 3, 2) if early_pooling else nn.Conv2d(3, 96, 7, 2)
    layers: list[nn.Module] = [stem, nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    inputs = 64 if early_pooling else 96
    pooled_after = {1, 3} if early_pooling else {2, 6}
    for index, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        layers.append(_fire(inputs, squeezed))
        inputs = 8 * squeezed
        if index in pooled_after:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(
        *layers, nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def _fire(inputs: int, squeezed: int) -> nn.Module:
    """A 1 x 1 convolution under a 1 x 1 and a 3 x 3 one in parallel."""
    expanded = 4 * squeezed
    return nn.Sequential(
        nn.Conv2d(inputs, squeezed, 1),
        nn.ReLU(),
        Branches(
            nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU()),
        ),
    )


def googlenet() -> nn.Module:
    """Return GoogLeNet with BatchNorm and without its auxiliary classifiers."""
    return nn.Sequential(
        convolution(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, ceil_mode=True),
        convolution(64, 64, 1), convolution(64, 192), nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(192, 64, (96, 128), (16, 32), 32), _inception(256, 128, (128, 192), (32, 96), 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(480, 192, (96, 208), (16, 48), 64), _inception(512, 160, (112, 224), (24, 64), 64),
        _inception(512, 128, (128, 256), (24, 64), 64), _inception(512, 112, (144, 288), (32, 64), 64),
        _inception(528, 256, (160, 320), (32, 128), 128), nn.MaxPool2d(2, 2, ceil_mode=True),
        _inception(832, 256, (160, 320), (32, 128), 128), _inception(832, 384, (192, 384), (48, 128), 128),
        classifier(1024),
    )  # fmt: skip


def _inception(inputs: int, direct: int, middle: tuple[int, int], wide: tuple[int, int], pooled: int) -> nn.Module:
    return Branches(
        convolution(inputs, direct, 1),
        nn.Sequential(convolution(inputs, middle[0], 1), convolution(*middle)),
        nn.Sequential(convolution(inputs, wide[0], 1), convolution(*wide)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inputs, pooled, 1)),
    )


def _register(name: str, family: str, build: Callable[[], nn.Module], size: int = 224) -> None:
    register(
        Architecture(
            name=name,
            family=family,
            build=build,
            make_batch=images(3, size, 1000),
            batches=(8, 16, 32, 64, 128),
            scale="full",
        )
    )


_register("alexnet", "alexnet", alexnet)
_register("overfeat", "alexnet", overfeat, 231)
for _depth in VGG_STAGES:
    _register(f"vgg{_depth}", "vgg", partial(vgg, _depth))
    _register(f"vgg{_depth}_bn", "vgg", partial(vgg, _depth, normalized=True))
_register("squeezenet1_0", "squeezenet", partial(squeezenet, early_pooling=False))
_register("squeezenet1_1", "squeezenet", partial(squeezenet, early_pooling=True))
_register("googlenet", "inception", googlenet)
register(
    Architecture(
        name="alexnet_small",
        family="alexnet",
        build=partial(alexnet, 0.125, 96),
        make_batch=images(3, 96, 1000),
        batches=(2, 4, 8, 16),
        optimizer="sgd",
    )
)

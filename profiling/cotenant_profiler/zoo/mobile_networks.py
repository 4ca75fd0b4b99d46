"""Networks made for phones: MobileNetV2, MNASNet, ShuffleNetV2 and EfficientNet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from cotenant_profiler.zoo.batches import images
from cotenant_profiler.zoo.convolution_blocks import ChannelGate, Shortcut, classifier, convolution, pointwise
from cotenant_profiler.zoo.registry import Architecture, register

# Expansion, channels, blocks, stride and kernel of each stage.
Stage = tuple[int, int, int, int, int]
MOBILENET_V2: Final[tuple[Stage, ...]] = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
MNASNET: Final[tuple[Stage, ...]] = (
    (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET: Final[tuple[Stage, ...]] = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
SHUFFLENET_V2: Final[dict[str, tuple[int, int, int, int]]] = {
    "x0_5": (48, 96, 192, 1024),
    "x1_0": (116, 232, 464, 1024),
    "x1_5": (176, 352, 704, 1024),
    "x2_0": (244, 488, 976, 2048),
}


def _rounded(channels: float) -> int:
    """The next multiple of eight, at most a tenth below."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def _inverted(inputs: int, outputs: int, stage: Stage, stride: int, *, gated: bool = False) -> nn.Module:
    """Expansion, depthwise convolution and projection, with a shortcut where the shape stays."""
    expansion, kernel = stage[0], stage[4]
    hidden = inputs * expansion
    layers: list[nn.Module] = [convolution(inputs, hidden, 1)] if expansion > 1 else []
    layers.append(convolution(hidden, hidden, kernel, stride=stride, groups=hidden))
    if gated:
        layers.append(ChannelGate(hidden, max(1, inputs // 4)))
    body = nn.Sequential(*layers, pointwise(hidden, outputs))
    return Shortcut(body) if stride == 1 and inputs == outputs else body


def _stages(
    inputs: int, stages: tuple[Stage, ...], width: float, *, gated: bool = False
) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = []
    for stage in stages:
        outputs = _rounded(stage[1] * width)
        for block in range(stage[2]):
            layers.append(_inverted(inputs, outputs, stage, stage[3] if block == 0 else 1, gated=gated))
            inputs = outputs
    return layers, inputs


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Return MobileNetV2 at width 1."""
    layers, channels = _stages(32, MOBILENET_V2, 1.0)
    return nn.Sequential(
        convolution(3, 32, stride=2), *layers, convolution(channels, 1280, 1), classifier(1280, classes)
    )


def mnasnet(width: float) -> nn.Module:
    """Return MNASNet-B1 at a width."""
    first, second = _rounded(32 * width), _rounded(16 * width)
    layers, channels = _stages(second, MNASNET, width)
    stem = (convolution(3, first, stride=2), convolution(first, first, groups=first), pointwise(first, second))
    return nn.Sequential(*stem, *layers, convolution(channels, 1280, 1), classifier(1280))


def efficientnet(width: float = 1.0, classes: int = 1000) -> nn.Module:
    """Return the stages of EfficientNet-B0 (ReLU where the original has SiLU) at a width."""
    first = _rounded(32 * width)
    layers, channels = _stages(first, EFFICIENTNET, width, gated=True)
    head = _rounded(1280 * width)
    return nn.Sequential(
        convolution(3, first, stride=2), *layers, convolution(channels, head, 1), classifier(head, classes)
    )


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNetV2: half of the channels pass by, then halves are interleaved; a stride doubles both."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.halves = stride == 1
        half = outputs // 2
        fed = half if self.halves else inputs
        self.main = nn.Sequential(
            convolution(fed, half, 1),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            convolution(half, half, 1),
        )
        self.side: nn.Module = nn.Identity()
        if not self.halves:
            self.side = nn.Sequential(
                nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
                nn.BatchNorm2d(inputs),
                convolution(inputs, half, 1),
            )

    def forward(self, features: Tensor) -> Tensor:
        """Return features at a `stride`-th of the size."""
        passed, fed = features.chunk(2, dim=1) if self.halves else (features, features)
        joined = torch.stack((self.side(passed), self.main(fed)), dim=2)
        return joined.flatten(1, 2)


def shufflenet(widths: tuple[int, int, int, int], *, stem: int = 24, blocks: tuple[int, ...] = (4, 8, 4)) -> nn.Module:
    """Return ShuffleNetV2.

    Args:
        widths: Channels of the three stages and of the last convolution.
        stem: Channels of the first convolution.
        blocks: Units of each stage.
    """
    layers: list[nn.Module] = [convolution(3, stem, stride=2), nn.MaxPool2d(3, 2, 1)]
    inputs = stem
    for outputs, count in zip(widths[:3], blocks, strict=True):
        layers += [
            ShuffleUnit(inputs if index == 0 else outputs, outputs, 2 if index == 0 else 1) for index in range(count)
        ]
        inputs = outputs
    return nn.Sequential(*layers, convolution(inputs, widths[3], 1), classifier(widths[3]))


_FULL: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mobilenet_v2": ("mobilenet", mobilenet_v2),
    "mnasnet0_5": ("mnasnet", partial(mnasnet, 0.5)),
    "mnasnet0_75": ("mnasnet", partial(mnasnet, 0.75)),
    "mnasnet1_0": ("mnasnet", partial(mnasnet, 1.0)),
    "mnasnet1_3": ("mnasnet", partial(mnasnet, 1.3)),
    "efficientnet_b0": ("efficientnet", efficientnet),
    **{f"shufflenet_v2_{name}": ("shufflenet", partial(shufflenet, widths)) for name, widths in SHUFFLENET_V2.items()},
}
for _name, (_family, _build) in _FULL.items():
    register(
        Architecture(
            name=_name,
            family=_family,
            build=_build,
            make_batch=images(3, 224, 1000),
            batches=(16, 32, 64, 128, 256),
            scale="full",
        )
    )
for _name, _family, _build in (
    ("efficientnet_small", "efficientnet", partial(efficientnet, 0.25, 10)),
    ("shufflenet_small", "shufflenet", partial(shufflenet, (24, 48, 96, 128), stem=8, blocks=(2, 3, 2))),
):
    register(
        Architecture(
            name=_name,
            family=_family,
            build=_build,
            make_batch=images(3, 64),
            batches=(2, 4, 8, 16),
        )
    )

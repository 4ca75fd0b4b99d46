"""Networks that make pictures: DCGAN, CycleGAN and the U-Net of a diffusion model.

An adversarial pair is trained here in one step: the generator's picture is judged, and both learn from one loss. The
work per step is that of the generator's step; the separate step of the judge on real pictures is left out.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant_profiler.zoo.batches import pictures
from cotenant_profiler.zoo.convolution_blocks import Shortcut
from cotenant_profiler.zoo.registry import Architecture, Batch, register


class AdversarialPair(nn.Module):
    """A generator and the judge of what it made: the generator's input -> (batch, ...) scores."""

    def __init__(self, generator: nn.Module, judge: nn.Module) -> None:
        super().__init__()
        self.generator = generator
        self.judge = judge

    def forward(self, given: Tensor) -> Tensor:
        """Return the judge's scores."""
        scores: Tensor = self.judge(self.generator(given))
        return scores


class PictureCycle(nn.Module):
    """There and back between two kinds of pictures, judged in between (CycleGAN, one direction)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.there = _translator(width, blocks)
        self.back = _translator(width, blocks)
        self.judge = _judge(3, width, norm=nn.InstanceNorm2d)

    def forward(self, given: Tensor) -> Tensor:
        """Return the pictures that came back, moved by the mean of the judge's scores."""
        made = self.there(given)
        judged: Tensor = self.judge(made).mean((1, 2, 3), keepdim=True)
        returned: Tensor = self.back(made) + judged
        return returned


class NoisePredictor(nn.Module):
    """A U-Net with one time embedding: (batch, channels + 1, size, size), last channel the instant -> the noise."""

    def __init__(self, channels: int, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.stem = nn.Conv2d(channels + 1, width, 3, padding=1)
        self.down = nn.ModuleList(_normed(widths[max(0, level - 1)], widths[level]) for level in range(levels))
        self.middle = _normed(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            _normed(2 * widths[level], widths[max(0, level - 1)]) for level in reversed(range(levels))
        )
        self.head = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, noisy: Tensor) -> Tensor:
        """Return (batch, channels, size, size)."""
        hidden = self.stem(noisy)
        kept = []
        for block in self.down:
            hidden = block(hidden)
            kept.append(hidden)
            hidden = functional.avg_pool2d(hidden, 2)
        hidden = self.middle(hidden)
        for block in self.up:
            hidden = functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = block(torch.cat((hidden, kept.pop()), dim=1))
        noise: Tensor = self.head(hidden)
        return noise


def _normed(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
    )  # fmt: skip


def _judge(inputs: int, width: int, norm: type[nn.Module]) -> nn.Sequential:
    """Four strided convolutions and a score for every patch."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for level in range(3):
        wide = width * 2**level
        layers += [nn.Conv2d(wide, 2 * wide, 4, 2, 1), norm(2 * wide), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 1 if norm is nn.InstanceNorm2d else 0))


def _translator(width: int, blocks: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, padding=3), nn.InstanceNorm2d(width), nn.ReLU()]
    for level in range(2):
        wide = width * 2**level
        layers += [nn.Conv2d(wide, 2 * wide, 3, 2, 1), nn.InstanceNorm2d(2 * wide), nn.ReLU()]
    wide = 4 * width
    for _ in range(blocks):
        body = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1), nn.InstanceNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1), nn.InstanceNorm2d(wide),
        )  # fmt: skip
        layers.append(Shortcut(body))
    for level in (1, 0):
        wide = width * 2**level
        layers += [nn.ConvTranspose2d(2 * wide, wide, 3, 2, 1, 1), nn.InstanceNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 3, 7, padding=3), nn.Tanh())


def dcgan(width: int) -> nn.Module:
    """Return DCGAN for 64 x 64 pictures from 100 random numbers; 64 is its published width."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * width, 4, bias=False), nn.BatchNorm2d(8 * width), nn.ReLU()]
    for level in (2, 1, 0):
        wide = width * 2**level
        layers += [nn.ConvTranspose2d(2 * wide, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    generator = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
    return AdversarialPair(generator, nn.Sequential(_judge(3, width, norm=nn.BatchNorm2d), nn.Flatten()))


def _noise(batch: int) -> Batch:
    return torch.randn(batch, 100, 1, 1), torch.ones(batch, 1)


def _noisy_pictures(channels: int, size: int, batch: int) -> Batch:
    content = torch.randn(batch, channels + 1, size, size)
    return content, content[:, :channels]


for _name, _scale, _width in (("dcgan", "full", 64), ("dcgan_small", "small", 4)):
    register(
        Architecture(
            name=_name,
            family="gan",
            build=partial(dcgan, _width),
            make_batch=_noise,
            batches=(16, 32, 64, 128) if _scale == "full" else (2, 4, 8, 16),
            loss=functional.binary_cross_entropy_with_logits,
            optimizer="adam",
            scale=_scale,
        )
    )
for _name, _scale, _width, _blocks, _size in (("cyclegan", "full", 64, 9, 256), ("cyclegan_small", "small", 4, 2, 32)):
    register(
        Architecture(
            name=_name,
            family="gan",
            build=partial(PictureCycle, _width, _blocks),
            make_batch=pictures(3, _size),
            batches=(1, 2, 4),
            loss=functional.l1_loss,
            optimizer="adam",
            scale=_scale,
        )
    )
for _name, _scale, _width, _levels, _size in (("unet_diffusion", "full", 64, 4, 64), ("unet_small", "small", 8, 3, 16)):
    register(
        Architecture(
            name=_name,
            family="diffusion",
            build=partial(NoisePredictor, 3, _width, _levels),
            make_batch=partial(_noisy_pictures, 3, _size),
            batches=(4, 8, 16, 32) if _scale == "full" else (2, 4, 8, 16),
            loss=functional.mse_loss,
            optimizer="adamw",
            scale=_scale,
        )
    )

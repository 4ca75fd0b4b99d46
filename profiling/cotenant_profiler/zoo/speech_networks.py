"""Speech recognition: convolutions over a spectrogram under recurrent layers (the shape of Deep Speech 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cotenant_profiler.zoo.batches import token_loss
from cotenant_profiler.zoo.registry import Architecture, Batch, register


class SpeechRecognizer(nn.Module):
    """(batch, 1, frequencies, time) -> (batch, time / 2, symbols)."""

    def __init__(self, *, frequencies: int, channels: int, width: int, layers: int, symbols: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), (2, 2), (20, 5), bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5), bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
        )
        heard = channels * -(-frequencies // 4)
        self.recurrent = nn.GRU(heard, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, symbols)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Return scores of the symbols at every second instant."""
        heard = self.convolutions(spectrogram).flatten(1, 2).transpose(1, 2)
        scores: Tensor = self.head(self.recurrent(heard)[0])
        return scores


def spectrograms(frequencies: int, time: int, symbols: int) -> Callable[[int], Batch]:
    """Return a maker of spectrograms with a symbol at every second instant (an alignment instead of a transcript)."""

    def make(batch: int) -> Batch:
        return torch.randn(batch, 1, frequencies, time), torch.randint(0, symbols, (batch, time // 2))

    return make


for _name, _scale, _frequencies, _time, _channels, _width, _layers in (
    ("deepspeech2", "full", 161, 400, 32, 800, 5),
    ("speech_small", "small", 32, 48, 4, 32, 2),
):
    register(
        Architecture(
            name=_name,
            family="speech",
            build=partial(
                SpeechRecognizer,
                frequencies=_frequencies,
                channels=_channels,
                width=_width,
                layers=_layers,
                symbols=29,
            ),
            make_batch=spectrograms(_frequencies, _time, 29),
            batches=(2, 4, 8, 16),
            loss=token_loss,
            scale=_scale,
        )
    )

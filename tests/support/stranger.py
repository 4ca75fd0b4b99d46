"""One training script of a stranger: what it is, how it is run, and what a capture of it must find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

_CONV = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
            self.head = nn.Linear(8 * 16 * 16, 10)

        def forward(self, x):
            return self.head(self.body(x))

    def make():
        return Net(), (torch.randn(4, 3, 16, 16),), {}

    def images(count):
        return torch.randn(count, 3, 16, 16), torch.randint(0, 10, (count,))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """One script.

    Attributes:
        source: Its text.
        arguments: Words behind the script's file; `{python}` in front of it where `starts_with` is empty.
        starts_with: What starts it, instead of `{python} FILE`.
        settings: Batch, optimizer, precision and accumulation that must be found; None = must not be captured.
        refusal: Part of the reason where it must not.
        has_one_network: Whether `make` exports it by hand.
        library: What it imports and our own environment has not.
        recomputes: Whether its backward pass computes activations again.
        steps: What it does to its end where there is no GPU, for what runs it as a job; 0 = it is only captured.
    """

    source: str
    arguments: tuple[str, ...] = ()
    starts_with: tuple[str, ...] = ()
    settings: tuple[int, str, str, int] | None = None
    refusal: str = ""
    has_one_network: bool = True
    library: str = ""
    recomputes: bool = False
    steps: int = 0

    def command(self, python: str, file: Path) -> list[str]:
        """Write the script and return the command that runs it."""
        file.write_text(dedent(self.source), encoding="utf-8")
        words = self.starts_with or ("{python}", "{file}")
        return [word.format(python=python, file=file.name, stem=file.stem) for word in (*words, *self.arguments)]


def conv(training: str) -> str:
    """Returns a script that trains the network of all simple ones."""
    return dedent(_CONV) + dedent(training)

"""Every architecture that this repository defines, once: find(name), names()."""

from __future__ import annotations

from cotenant_profiler.zoo import convolutional, dense, sequences
from cotenant_profiler.zoo.registry import Architecture, find, names

__all__ = ["Architecture", "convolutional", "dense", "find", "names", "sequences"]

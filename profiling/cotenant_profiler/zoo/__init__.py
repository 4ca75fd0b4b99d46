"""Every architecture that this repository defines, once: find(name), names(scale)."""

from __future__ import annotations

from cotenant_profiler.zoo import (
    attention_networks,
    convolutional,
    dense,
    generative_networks,
    image_classifiers,
    inception_networks,
    keras_examples,
    mobile_networks,
    other_networks,
    residual_networks,
    sequences,
    speech_networks,
)
from cotenant_profiler.zoo.registry import Architecture, find, names

__all__ = [
    "Architecture",
    "attention_networks",
    "convolutional",
    "dense",
    "find",
    "generative_networks",
    "image_classifiers",
    "inception_networks",
    "keras_examples",
    "mobile_networks",
    "names",
    "other_networks",
    "residual_networks",
    "sequences",
    "speech_networks",
]

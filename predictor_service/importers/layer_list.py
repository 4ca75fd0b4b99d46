"""Graph features of a network that is published as a list of layers: (type, output elements per sample, parameters).

GPUMemNet describes its generated networks so. A list gives neither channels nor kernel, but both follow: a convolution
with bias has channels * (inputs * kernel^2 + 1) parameters; its inputs are channels that an earlier layer put out or,
where blocks are concatenated, the sum of two; its side is that of its input or a halving of it. Pooling to one element
puts out as many features as its input has channels, which may be concatenated as well. All 1,539 published
convolutional networks resolve so.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor_service.features.devices import DeviceType
from predictor_service.features.graphs.operator_families import OperatorFamily
from predictor_service.features.step_simulation import ForwardWork, simulate_step

ELEMENT_BYTES: Final = 4
MASK_BYTES: Final = 1
MAX_LAYERS: Final = 10_000
_KERNELS: Final = (3, 1, 7, 5)
_HALVINGS: Final = 8

_FAMILIES: Final = {
    "conv2d": OperatorFamily.CONVOLUTION,
    "linear": OperatorFamily.MATRIX_MULTIPLY,
    "batchnorm2d": OperatorFamily.NORMALIZATION,
    "batch_normalization": OperatorFamily.NORMALIZATION,
    "adaptive_avg_pool2d": OperatorFamily.POOLING,
    "dropout": OperatorFamily.ELEMENTWISE,
}
_OTHERS: Final = "ReLU GELU SELU ELU SiLU Mish Tanh Sigmoid Softplus LeakyReLU PReLU Softmax softmax Identity"
_FAMILY_OF: Final = _FAMILIES | dict.fromkeys(_OTHERS.split(), OperatorFamily.ACTIVATION)
# What automatic differentiation of PyTorch keeps: these keep their output, dropout its mask, the rest their input.
KEEPS_OUTPUT: Final = frozenset({"ReLU", "Tanh", "Sigmoid", "Softmax", "softmax"})
KEEPS_NOTHING: Final = frozenset({"Identity", "dropout"})


class UnexplainedLayerError(ValueError):
    """The list is well formed, but what a layer does does not follow from it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as published.

    Attributes:
        kind: Its type.
        elements: Output elements per sample.
        parameters: Trained numbers.
    """

    kind: str
    elements: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one layer does to one sample.

    Attributes:
        layer: The layer.
        input_elements: Elements that it reads.
        is_joined: Whether these are of several layers' outputs, which concatenating them copies.
        macs: Multiply-accumulates of the forward pass.
        channels: Output channels, or features of a dense layer; those of the layer before where the kind has none.
        side: Output height and width; 1 for dense layers.
        unfolded_elements: Elements of the input when a convolution is computed as one matrix product, else 0.
    """

    layer: Layer
    input_elements: int
    macs: int
    channels: int
    side: int
    unfolded_elements: int
    is_joined: bool = False


def parse_layers(text: str) -> list[Layer]:
    """Reads the published cell.

    Raises:
        ValueError: It is not a list of (type, elements, parameters); names the layer.
    """
    try:
        published = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"is not a list of layers: {type(error).__name__}") from None
    if not isinstance(published, list) or not 1 <= len(published) <= MAX_LAYERS:
        raise ValueError(f"is not a list of 1 to {MAX_LAYERS:,} layers")
    return [_layer(place, entry) for place, entry in enumerate(published)]


def _layer(place: int, entry: object) -> Layer:
    match entry:
        case (str(kind), int(elements), int(parameters)) if elements > 0 and parameters >= 0:
            return Layer(kind, elements, parameters)
    raise ValueError(f"layer {place} is {entry!r}, not (type, output elements, parameters)")


def count_work(layers: Sequence[Layer], input_channels: int, input_side: int) -> list[Work]:
    """Follows one sample through the layers.

    Args:
        layers: In order of execution.
        input_channels: Of the image, or the number of features.
        input_side: Height and width of the image; 1 for features.

    Raises:
        UnexplainedLayerError: A layer is of an unknown type, or a convolution that no channels and kernel explain.
    """
    unknown = sorted({layer.kind for layer in layers} - set(_FAMILY_OF))
    if unknown:
        raise UnexplainedLayerError(f"layers of unknown types: {', '.join(unknown)}")
    work: list[Work] = []
    elements, channels, side, previous_inputs = input_channels * input_side**2, input_channels, input_side, 0
    seen = {input_channels}
    for place, layer in enumerate(layers):
        macs, unfolded, is_joined = 0, 0, False
        if layer.kind == "conv2d":
            inputs_allowed, side_read = seen | {channels + previous_inputs}, side
            side, channels, previous_inputs, kernel = _resolve(layers, place, side, inputs_allowed)
            seen.add(channels)
            macs = layer.elements * previous_inputs * kernel**2
            unfolded = side**2 * previous_inputs * kernel**2
            is_joined = previous_inputs * side_read**2 > elements
            elements = max(elements, previous_inputs * side_read**2)
        elif layer.kind in {"linear", "adaptive_avg_pool2d"}:
            if layer.kind != "linear" and layer.elements * side**2 > elements:
                is_joined, elements = True, layer.elements * side**2
            side, channels = 1, layer.elements
            macs = max(layer.parameters - layer.elements, 0) if layer.kind == "linear" else 0
        work.append(Work(layer, elements, macs, channels, side, unfolded, is_joined))
        elements = layer.elements
    return work


def _resolve(layers: Sequence[Layer], place: int, side: int, inputs_allowed: set[int]) -> tuple[int, int, int, int]:
    """Side, channels, input channels and kernel of a convolution."""
    layer = layers[place]
    normalization = layers[place + 1] if place + 1 < len(layers) else None
    for candidate in _sides(side):
        channels, rest = divmod(layer.elements, candidate**2)
        if rest or layer.parameters % channels:
            continue
        if normalization and normalization.kind == "batchnorm2d" and normalization.parameters != 2 * channels:
            continue
        fan_in = layer.parameters // channels - 1
        for kernel in _KERNELS:
            if fan_in % kernel**2 == 0 and fan_in // kernel**2 in inputs_allowed:
                return candidate, channels, fan_in // kernel**2, kernel
    raise UnexplainedLayerError(
        f"layer {place}, {layer.elements} elements and {layer.parameters} parameters, fits no convolution"
    )


def _sides(side: int) -> Iterator[int]:
    """The side itself, then its halvings, rounded down or up, largest first."""
    sides = {side}
    for _ in range(_HALVINGS):
        sides |= {half for item in sides for half in (item // 2, (item + 1) // 2) if half}
    yield from sorted(sides, reverse=True)


def graph_features(work: Sequence[Work]) -> dict[str, float]:
    """Features of the network, per sample where the name states so; sizes in bytes are those of 32-bit numbers."""
    families = Counter(_FAMILY_OF[item.layer.kind] for item in work)
    parameters = sum(item.layer.parameters for item in work)
    outputs = [item.layer.elements for item in work]
    multiplying = [item for item in work if item.macs]
    joined = [item.input_elements for item in work if item.is_joined]
    features: dict[str, float] = {
        "parameters": parameters,
        "largest_layer_parameters": max(item.layer.parameters for item in work),
        "forward_macs_per_sample": sum(item.macs for item in work),
        "largest_forward_macs_per_sample": max(item.macs for item in work),
        "output_elements_per_sample": sum(outputs),
        "multiplying_output_elements_per_sample": sum(item.layer.elements for item in multiplying),
        "widest_activation_bytes_per_sample": ELEMENT_BYTES * max(outputs + joined),
        "largest_transient_bytes_per_sample": ELEMENT_BYTES
        * max(item.input_elements + item.layer.elements for item in work),
        "largest_unfolded_bytes_per_sample": ELEMENT_BYTES * max(item.unfolded_elements for item in work),
        "saved_for_backward_bytes_per_sample": _saved_bytes(work),
        "traffic_bytes_per_sample": ELEMENT_BYTES * sum(item.input_elements + item.layer.elements for item in work),
        "input_bytes_per_sample": ELEMENT_BYTES * work[0].input_elements,
        "output_bytes_per_sample": ELEMENT_BYTES * outputs[-1],
        "depth": len(multiplying),
        "nodes": len(work),
        "widest_channels": max(item.channels for item in work),
        "narrowest_channels": min(item.channels for item in work),
        "largest_side": max(item.side for item in work),
        "smallest_side": min((item.side for item in work if item.side > 1), default=1),
    }
    features.update({f"{family.value}_nodes": families[family] for family in sorted(set(_FAMILY_OF.values()))})
    features["dropout_nodes"] = _count(work, "dropout")
    return features


def step_features(work: Sequence[Work], batch: int, device: DeviceType) -> Mapping[str, float]:
    """Simulates a training step of the network in 32-bit arithmetic.

    Args:
        work: Of one sample; may be empty.
        batch: Samples per step.
        device: What it ran on.
    """
    macs = np.array([item.macs for item in work], dtype=np.float64)
    elements = np.array([item.input_elements + item.layer.elements for item in work], dtype=np.float64)
    parameters = np.array([item.layer.parameters for item in work], dtype=np.float64)
    sizes = [(batch * item.side**2, item.channels, item.macs / item.layer.elements) for item in work]
    forward = ForwardWork(
        flops=2.0 * batch * macs,
        traffic_bytes=ELEMENT_BYTES * (batch * elements + parameters),
        is_product=macs > 0,
        product_sizes=np.array(sizes, dtype=np.float64).reshape(len(work), 3),
        parameters=float(parameters.sum()),
        input_bytes=float(ELEMENT_BYTES * batch * work[0].input_elements) if work else 0.0,
        batch=batch,
    )
    return simulate_step(forward, device, "fp32")


def _count(work: Iterable[Work], kind: str) -> int:
    return sum(item.layer.kind == kind for item in work)


def _saved_bytes(work: Sequence[Work]) -> int:
    """Bytes kept per sample between forward and backward pass; a tensor that two layers keep counts once."""
    kept: dict[int, int] = {}
    masks, joined = 0, 0
    for place, item in enumerate(work):
        if item.layer.kind == "dropout":
            masks += item.layer.elements * MASK_BYTES
        if item.layer.kind in KEEPS_OUTPUT:
            kept[place + 1] = item.layer.elements
        elif item.is_joined:
            joined += item.input_elements
        elif item.layer.kind not in KEEPS_NOTHING:
            kept[place] = item.input_elements
    return ELEMENT_BYTES * (sum(kept.values()) + joined) + masks

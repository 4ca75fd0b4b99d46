"""What published lists of layers reserve, checked by hand: bytes of 32-bit numbers for a sample."""

from __future__ import annotations

from predictor_service.importers.layer_list import Layer, count_work
from predictor_service.importers.layer_operators import reserved_bytes


def convolution(inputs: int, channels: int, side: int, kernel: int = 3) -> Layer:
    return Layer("conv2d", channels * side**2, channels * (inputs * kernel**2 + 1))


def network(*layers: Layer, side: int = 4) -> int:
    return reserved_bytes(count_work([*layers], 3, side))


def test_of_growing_layers_twice_as_much_is_reserved_as_is_kept() -> None:
    widths = (8, 16, 32, 64)
    layers: list[Layer] = []
    for inputs, channels in zip((3, *widths), widths, strict=False):
        layers += [convolution(inputs, channels, 4), Layer("ReLU", channels * 16, 0)]
    kept_bytes = 4 * 16 * sum(widths)
    grown_bytes = network(*layers)
    # ReLU's outputs are kept; none of the convolutions' outputs serves the next, larger one, nor its workspace.
    assert grown_bytes >= 2 * kept_bytes + 4 * 16 * (32 + 64)


def test_a_convolution_takes_room_for_a_copy_of_its_input_and_its_output() -> None:
    output_bytes, input_bytes = 4 * 5 * 16, 4 * 3 * 16
    # The output and a workspace; the output's gradient is cut from the latter, so that backward takes another one.
    assert network(convolution(3, 5, 4)) == output_bytes + 2 * (input_bytes + output_bytes)


def test_tensors_that_are_concatenated_later_are_held_until_then() -> None:
    first = [convolution(3, 4, 4), Layer("GELU", 64, 0)]
    joined = network(*first, convolution(7, 4, 4), Layer("GELU", 64, 0))
    followed = network(*first, convolution(4, 4, 4), Layer("GELU", 64, 0))
    assert joined > followed

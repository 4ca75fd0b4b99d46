"""The nine whole networks that the onnx package carries for its own tests: foreign files, old operator sets."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from cotenant.graph_file import read_graph
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.features.graphs.graph_features import GraphFeatures
from tests.support.cases import for_each

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("*.onnx"))


def describe(network: str) -> GraphDescription:
    return describe_graph(read_graph(FOLDER / f"light_{network}.onnx"))


def features(network: str, batch: int = 1) -> GraphFeatures:
    return describe(network).at_batch(batch)


def squares(side: int, kernel: int, incoming: int, outgoing: int, group: int = 1) -> int:
    """Multiply-accumulates of a convolution with a square output."""
    return side * side * kernel * kernel * incoming // group * outgoing


def inception(side: int, incoming: int, widths: tuple[int, int, int, int, int, int]) -> int:
    """Szegedy et al., Table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection."""
    one, three_reduced, three, five_reduced, five, pool = widths
    pointwise = squares(side, 1, incoming, one + three_reduced + five_reduced + pool)
    return pointwise + squares(side, 3, three_reduced, three) + squares(side, 5, five_reduced, five)


def densenet121() -> int:
    """Huang et al., Table 1: growth 32, bottlenecks of 128, blocks of 6, 12, 24, 16 layers, halving transitions."""
    total, channels, side = squares(112, 7, 3, 64), 64, 56
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            total += squares(side, 1, channels, 128) + squares(side, 3, 128, 32)
            channels += 32
        if side > 7:
            total += squares(side, 1, channels, channels // 2)
            channels, side = channels // 2, side // 2
    return total + channels * 1000


def googlenet() -> int:
    """Szegedy et al., Table 1; the file pools without padding, hence 55, 27, 13 and 6 pixels, not 56, 28, 14 and 7."""
    total = squares(112, 7, 3, 64) + squares(55, 1, 64, 64) + squares(55, 3, 64, 192)
    modules = [
        (27, 192, (64, 96, 128, 16, 32, 32)), (27, 256, (128, 128, 192, 32, 96, 64)),
        (13, 480, (192, 96, 208, 16, 48, 64)), (13, 512, (160, 112, 224, 24, 64, 64)),
        (13, 512, (128, 128, 256, 24, 64, 64)), (13, 512, (112, 144, 288, 32, 64, 64)),
        (13, 528, (256, 160, 320, 32, 128, 128)), (6, 832, (256, 160, 320, 32, 128, 128)),
        (6, 832, (384, 192, 384, 48, 128, 128)),
    ]  # fmt: skip
    return total + sum(inception(*module) for module in modules) + 1024 * 1000


def alexnet() -> int:
    """Krizhevsky et al., two groups, on 224 pixels without padding in front: 54, 26 and 12 pixels."""
    total = squares(54, 11, 3, 96) + squares(26, 5, 96, 256, group=2) + squares(12, 3, 256, 384)
    total += squares(12, 3, 384, 384, group=2) + squares(12, 3, 384, 256, group=2)
    return total + 9216 * 4096 + 4096 * 4096 + 4096 * 1000


def vgg19() -> int:
    """Simonyan and Zisserman, Table 1, configuration E."""
    total, incoming = 0, 3
    for side, width, layers in ((224, 64, 2), (112, 128, 2), (56, 256, 4), (28, 512, 4), (14, 512, 4)):
        for _ in range(layers):
            total += squares(side, 3, incoming, width)
            incoming = width
    return total + 25_088 * 4096 + 4096 * 4096 + 4096 * 1000


BY_HAND = {"densenet121": densenet121, "inception_v1": googlenet, "bvlc_alexnet": alexnet, "vgg19": vgg19}


def test_the_package_carries_nine_networks() -> None:
    assert len(NETWORKS) == 9


@for_each("network", NETWORKS)
def test_no_operator_is_left_without_a_cost(network: str) -> None:
    description = describe(network)

    assert description.unshaped_nodes == 0
    assert {warning.code for warning in description.warnings} <= {"FIXED_BATCH", "WEIGHTS_AS_INPUTS"}
    assert description.at_batch(1).forward_macs > 1e8


@for_each("network", NETWORKS, always=3)
def test_the_fixed_batch_of_the_export_can_be_replaced(network: str) -> None:
    """The exporter wrote batch 1 into every reshape; cost grows with the batch all the same, parameters do not."""
    one, many = features(network, 1), features(network, 32)

    assert many.forward_macs == 32 * one.forward_macs
    assert many.parameters == one.parameters
    assert many.activation_bytes_saved == 32 * one.activation_bytes_saved
    assert many.traffic_bytes < 32 * one.traffic_bytes


@pytest.mark.parametrize("network", sorted(BY_HAND))
def test_macs_are_what_the_layer_table_gives(network: str) -> None:
    assert features(network).forward_macs == BY_HAND[network]()


def test_resnet50_has_the_published_cost_and_parameters() -> None:
    resnet = features("resnet50")

    assert resnet.forward_macs / 1e9 == pytest.approx(4.089, rel=0.005)
    assert resnet.parameters == 25_557_032
    assert resnet.buffers == 53_120


def test_vgg19_has_the_published_parameters_although_they_are_filled_constants() -> None:
    assert features("vgg19").parameters == 143_667_240

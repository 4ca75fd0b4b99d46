"""Multiply-accumulates of well-known networks, against published figures and sums done by hand."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from predictor_service.features.graphs.graph_description import describe_graph
from tests.support import onnx_graphs
from tests.support.cases import for_each

# Published figures, billions of multiply-accumulates per sample.
PUBLISHED = [
    (onnx_graphs.resnet50, 4.089),
    (onnx_graphs.vgg16, 15.47),
    (onnx_graphs.mobilenet_v2, 0.301),
    (onnx_graphs.bert_base, 11.17),
    (onnx_graphs.lstm_language_model, 0.3260),
]
# Published numbers of trained parameters.
PARAMETERS = [
    (onnx_graphs.resnet50, 25_557_032),
    (onnx_graphs.vgg16, 138_357_544),
    (onnx_graphs.mobilenet_v2, 3_504_872),
]


@for_each(("build", "published_g"), PUBLISHED)
def test_macs_are_within_half_a_percent_of_the_published_figure(
    build: Callable[[], onnx.ModelProto], published_g: float
) -> None:
    features = describe_graph(build().SerializeToString()).at_batch(1)

    assert features.unshaped_nodes == 0
    assert features.forward_macs / 1e9 == pytest.approx(published_g, rel=0.005)


@pytest.mark.parametrize(("build", "published"), PARAMETERS, ids=lambda value: getattr(value, "__name__", None))
def test_parameters_are_the_published_number(build: Callable[[], onnx.ModelProto], published: int) -> None:
    features = describe_graph(build().SerializeToString()).at_batch(1)

    assert features.parameters == published
    assert features.parameter_bytes == 4 * published


def test_the_language_model_is_what_a_sum_by_hand_gives() -> None:
    """35 steps; per layer and step 4 gates x 512 units x (512 inputs + 512 states); a decoder of 512 x 10,000."""
    per_step = 2 * 4 * 512 * (512 + 512) + 512 * 10_000

    features = describe_graph(onnx_graphs.lstm_language_model().SerializeToString()).at_batch(8)

    assert features.forward_macs == 8 * 35 * per_step
    assert features.recurrent_steps == 2 * 35
    assert features.parameters == 10_000 * 512 + 2 * (2 * 4 * 512 * 512 + 8 * 512) + 512 * 10_000 + 10_000


def test_bert_is_what_a_sum_by_hand_gives() -> None:
    """Per layer and token: 4 projections of 768 x 768, 2 of 768 x 3,072, and 128 keys met twice at 768 wide."""
    per_token = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 128 * 768

    features = describe_graph(onnx_graphs.bert_base().SerializeToString()).at_batch(4)

    assert features.forward_macs == 4 * 12 * 128 * per_token
    assert features.depth == 12 * 6


def test_vgg16_is_what_a_sum_by_hand_gives() -> None:
    """Thirteen 3 x 3 convolutions at 224, 112, 56, 28 and 14 pixels, then three matrices."""
    convolutions = [
        (224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256), (56, 256, 256), (56, 256, 256),
        (28, 256, 512), (28, 512, 512), (28, 512, 512), (14, 512, 512), (14, 512, 512), (14, 512, 512),
    ]  # fmt: skip
    by_hand = sum(side * side * 9 * incoming * outgoing for side, incoming, outgoing in convolutions)
    by_hand += 25_088 * 4096 + 4096 * 4096 + 4096 * 1000

    assert describe_graph(onnx_graphs.vgg16().SerializeToString()).at_batch(1).forward_macs == by_hand


def test_named_dimensions_take_their_size_from_the_bindings() -> None:
    dynamic = describe_graph(onnx_graphs.bert_base(tokens="tokens").SerializeToString(), {"tokens": 128})
    fixed = describe_graph(onnx_graphs.bert_base().SerializeToString())

    assert dynamic.symbols == {"tokens": 128}
    assert dynamic.at_batch(8).forward_macs == fixed.at_batch(8).forward_macs

"""Channels, sides, multiply-accumulates and kept bytes of published layer lists, checked by hand."""

from __future__ import annotations

import pytest

from predictor_service.importers.layer_list import (
    Layer,
    UnexplainedLayerError,
    count_work,
    graph_features,
    parse_layers,
)
from tests.support.cases import for_each

# 3 channels of 8 x 8; 3x3 to 4 channels; 3x3 with stride 2 to 5 channels of 4 x 4; head of 10.
SMALL = [
    Layer("conv2d", 4 * 64, 4 * (3 * 9 + 1)),
    Layer("batchnorm2d", 4 * 64, 8),
    Layer("ReLU", 4 * 64, 0),
    Layer("dropout", 4 * 64, 0),
    Layer("conv2d", 5 * 16, 5 * (4 * 9 + 1)),
    Layer("GELU", 5 * 16, 0),
    Layer("adaptive_avg_pool2d", 5, 0),
    Layer("linear", 10, 60),
]


def test_channels_and_sides_follow_from_elements_and_parameters() -> None:
    work = count_work(SMALL, 3, 8)
    assert [(item.channels, item.side) for item in work] == [(4, 8)] * 4 + [(5, 4)] * 2 + [(5, 1), (10, 1)]


def test_multiply_accumulates_count_every_weight_at_every_place() -> None:
    features = graph_features(count_work(SMALL, 3, 8))
    assert features["forward_macs_per_sample"] == 64 * 4 * 27 + 16 * 5 * 36 + 50
    assert features["largest_forward_macs_per_sample"] == 64 * 4 * 27
    assert features["parameters"] == 4 * 28 + 8 + 5 * 37 + 60
    assert features["largest_unfolded_bytes_per_sample"] == 4 * 64 * 27
    assert (features["convolution_nodes"], features["normalization_nodes"], features["depth"]) == (2, 1, 3)


def test_a_tensor_that_two_layers_keep_counts_once() -> None:
    # The convolutions keep the image and the dropped tensor, the normalization its input, ReLU its output, GELU its
    # input, pooling and head theirs; dropout a mask of one byte an element.
    features = graph_features(count_work(SMALL, 3, 8))
    kept = 3 * 64 + 256 + 256 + 256 + 80 + 80 + 5
    assert features["saved_for_backward_bytes_per_sample"] == 4 * kept + 256


def test_a_normalization_decides_between_two_readings_of_a_convolution() -> None:
    layers = [Layer("conv2d", 64, 4 * (1 * 9 + 1)), Layer("batchnorm2d", 64, 8)]
    assert count_work(layers, 1, 4)[0].channels == 4


def test_blocks_that_concatenate_sum_their_channels() -> None:
    layers = [
        Layer("conv2d", 8 * 16, 8 * (3 * 9 + 1)),
        Layer("conv2d", 8 * 16, 8 * (11 * 9 + 1)),
    ]
    work = count_work(layers, 3, 4)
    assert [item.channels for item in work] == [8, 8]
    assert [item.input_elements for item in work] == [3 * 16, 11 * 16]
    # The second convolution keeps the copy that concatenating image and first output made.
    features = graph_features(work)
    assert features["saved_for_backward_bytes_per_sample"] == 4 * (3 * 16 + 11 * 16)
    assert features["traffic_bytes_per_sample"] == 4 * (3 * 16 + 11 * 16 + 2 * 8 * 16)
    assert features["widest_activation_bytes_per_sample"] == 4 * 11 * 16


def test_pooling_reads_what_was_concatenated_before_it() -> None:
    layers = [
        Layer("conv2d", 8 * 16, 8 * (3 * 9 + 1)),
        Layer("GELU", 8 * 16, 0),
        Layer("adaptive_avg_pool2d", 11, 0),
        Layer("linear", 10, 120),
    ]
    work = count_work(layers, 3, 4)
    assert [item.input_elements for item in work] == [3 * 16, 8 * 16, 11 * 16, 11]
    features = graph_features(work)
    assert features["saved_for_backward_bytes_per_sample"] == 4 * (3 * 16 + 8 * 16 + 11 * 16 + 11)
    assert features["widest_activation_bytes_per_sample"] == 4 * 11 * 16


def test_dense_layers_have_no_side() -> None:
    work = count_work([Layer("linear", 20, 30 * 20 + 20), Layer("Tanh", 20, 0)], 30, 1)
    assert work[0].macs == 600
    assert graph_features(work)["saved_for_backward_bytes_per_sample"] == 4 * (30 + 20)


def test_a_convolution_that_nothing_explains_is_refused() -> None:
    with pytest.raises(UnexplainedLayerError, match="layer 0, 64 elements and 41 parameters, fits no convolution"):
        count_work([Layer("conv2d", 64, 41)], 1, 4)


def test_a_layer_of_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnexplainedLayerError, match="layers of unknown types: conv9d, warp"):
        count_work([Layer("warp", 3, 4), Layer("conv9d", 3, 4)], 1, 4)


@for_each(
    ("text", "message"),
    [
        ("[('conv2d', 3, 4)", "is not a list of layers"),
        ("{}", "is not a list of 1 to"),
        ("[]", "is not a list of 1 to"),
        ("[('linear', 0, 4)]", "layer 0 is"),
        ("[('linear', 3.5, 4)]", "layer 0 is"),
        ("__import__('os')", "is not a list of layers"),
        ("(" * 5000, "is not a list of layers"),
    ],
)
def test_a_cell_that_is_no_list_of_layers_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_layers(text)

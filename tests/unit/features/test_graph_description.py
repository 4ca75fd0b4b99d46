from __future__ import annotations

import json

import pytest

from cotenant.graph_file import graph_sha256, strip_weights
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.features.graphs.operator_families import OperatorFamily
from tests.support.onnx_graphs import GraphBuilder, bert_base, lstm_language_model, perceptron, resnet50


@pytest.mark.parametrize("build", [resnet50, lstm_language_model, perceptron])
def test_a_description_survives_json_exactly(build: object) -> None:
    assert callable(build)
    description = describe_graph(build().SerializeToString())

    restored = GraphDescription.from_json(description.to_json())

    assert restored == description
    assert restored.to_json() == description.to_json()


def test_another_schema_is_refused() -> None:
    text = describe_graph(perceptron().SerializeToString()).to_json()

    with pytest.raises(ValueError, match="describe the graph again"):
        GraphDescription.from_json(text.replace("graph_description/5", "graph_description/3"))


def test_the_json_is_plain() -> None:
    read = json.loads(describe_graph(perceptron().SerializeToString()).to_json())

    assert read["scalars"]["forward_macs"] == [0, 784 * 512 + 512 * 10]


def test_the_hash_is_the_one_that_the_client_computes() -> None:
    stripped = strip_weights(resnet50().SerializeToString())

    assert describe_graph(stripped).graph_sha256 == graph_sha256(stripped)
    assert describe_graph(resnet50().SerializeToString()).graph_sha256 == graph_sha256(stripped)


def test_operators_add_up_to_the_totals() -> None:
    features = describe_graph(bert_base().SerializeToString()).at_batch(16)

    assert features.operator_flops.sum() == features.forward_flops
    assert features.operator_traffic_bytes.sum() == features.traffic_bytes
    assert features.operator_flops.shape == features.operator_traffic_bytes.shape == (features.nodes,)
    assert sum(features.operator_counts.values()) == features.nodes == len(features.operator_families)
    assert set(features.operator_counts) == set(OperatorFamily)


def test_inputs_and_outputs_are_measured() -> None:
    features = describe_graph(perceptron().SerializeToString()).at_batch(8)

    assert features.input_bytes == 8 * 784 * 4
    assert features.output_bytes == 8 * 10 * 4
    assert features.widest_activation_bytes == 8 * 512 * 4


def test_the_widest_output_grows_with_the_batch() -> None:
    """The inner layer of the feed-forward network: 128 tokens x 3,072."""
    description = describe_graph(bert_base().SerializeToString())

    assert [description.at_batch(batch).widest_activation_bytes for batch in (1, 2, 7)] == [
        batch * 128 * 3072 * 4 for batch in (1, 2, 7)
    ]


def test_zeros_that_a_network_writes_into_are_no_weights() -> None:
    # As detectors put images of several sizes into one batch.
    net = GraphBuilder()
    empty = net.node("ConstantOfShape", [net.integers([2, 8])])
    written = net.node("ScatterElements", [empty, net.input("places", [2, 8]), net.input("x", [2, 8])])

    description = describe_graph(net.model(net.node("MatMul", [written, net.weight([8, 4])])).SerializeToString())

    assert description.stored.parameters == 8 * 4
    assert description.stored.buffers == 2 * 8

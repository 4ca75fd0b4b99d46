from __future__ import annotations

import onnx
import pytest
import torch
from cotenant_profiler import zoo
from cotenant_profiler.errors import UnknownArchitectureError
from cotenant_profiler.zoo.export import export_graph


@pytest.mark.parametrize("name", zoo.names())
def test_every_architecture_learns_from_its_own_batch(name: str) -> None:
    architecture = zoo.find(name)
    torch.manual_seed(0)
    network = architecture.build()
    inputs, targets = architecture.make_batch(architecture.batches[0])
    loss = architecture.loss(network(inputs), targets)
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", zoo.names())
def test_batches_ascend_and_the_optimizer_is_a_known_one(name: str) -> None:
    architecture = zoo.find(name)
    assert list(architecture.batches) == sorted(set(architecture.batches))
    assert architecture.optimizer in {"sgd", "momentum", "adam", "adamw"}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="autoencoder"):
        zoo.find("resnet9000")


def test_a_graph_keeps_batch_normalization_and_a_symbolic_batch_but_no_weights() -> None:
    graph = export_graph("resnet")
    model = onnx.load_model_from_string(graph.content)
    normalizations = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert len(normalizations) == 7
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    weights = [item for item in model.graph.initializer if item.data_type == onnx.TensorProto.FLOAT]
    assert weights
    assert not any(item.raw_data or item.float_data for item in weights)


def test_the_same_architecture_has_the_same_hash_every_time() -> None:
    assert export_graph("recommender").sha256 == export_graph("recommender").sha256

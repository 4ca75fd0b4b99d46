from __future__ import annotations

from functools import cache

import onnx
import pytest
import torch
from cotenant_profiler import zoo
from cotenant_profiler.errors import UnknownArchitectureError
from cotenant_profiler.zoo.export import Graph, export_graph
from cotenant_profiler.zoo.registry import Architecture, Batch

from predictor_service.features.graphs.graph_description import describe_graph
from tests.support.cases import for_each

# What the authors of each architecture or torchvision's table of models print, in parameters.
PUBLISHED_PARAMETERS = {
    "alexnet": 61_100_840,
    "densenet121": 7_978_856,
    "densenet201": 20_013_928,
    "efficientnet_b0": 5_288_548,
    "googlenet": 6_624_904,
    "inception3": 23_834_568,
    "mnasnet1_0": 4_383_312,
    "mobilenet_v2": 3_504_872,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "shufflenet_v2_x1_0": 2_278_604,
    "squeezenet1_0": 1_248_424,
    "vgg16": 138_357_544,
    "vgg19_bn": 143_678_248,
    "vit_b16": 86_567_656,
    "wide_resnet50_2": 68_883_240,
    "yolov3": 61_949_149,
}
SPEECH_INSTANTS = 40
RELATIVES = (
    "densenet161", "densenet169", "densenet201", "resnet101", "resnet152", "resnext101_32x8d", "wide_resnet101_2",
    "mnasnet0_5", "mnasnet0_75", "mnasnet1_3", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
    "resnet50_32px", "resnet50_cifar", "mobilenet_v2_32px", "deepspeech2_ljspeech", "lstm_large", "bert_base_512",
)  # fmt: skip
"""The same layers as in one that learns in every run, in other numbers or on other inputs: `make test-all`."""
EXPORTED = ("resnet", "a3c_small", "recommender", "shufflenet_small", "bert_small", "speech_small", "unet_small")


@cache
def exported(name: str) -> Graph:
    return export_graph(name)


@for_each(("name", "parameters"), PUBLISHED_PARAMETERS.items())
def test_an_architecture_of_full_size_has_its_published_number_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        network = zoo.find(name).build()
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def first_batch(architecture: Architecture) -> Batch:
    """Make an architecture's smallest batch; of speech a part, since shapes of a recurrence are computed one by one."""
    inputs, targets = architecture.make_batch(architecture.batches[0])
    if architecture.family != "speech":
        return inputs, targets
    assert inputs.shape[-1] == 2 * targets.shape[-1], "a symbol at every second instant"
    return inputs[..., :SPEECH_INSTANTS], targets[..., : SPEECH_INSTANTS // 2]


def test_of_each_network_that_comes_in_several_forms_one_learns_in_every_run() -> None:
    always = set(zoo.names()) - set(RELATIVES)
    assert {"densenet121", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_0"} <= always
    assert {"shufflenet_v2_x0_5", "mobilenet_v2", "deepspeech2", "lstm_wikitext", "bert_base"} <= always
    assert set(RELATIVES) <= set(zoo.names("full"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.endurance] if name in RELATIVES else []) for name in zoo.names()]
)
def test_every_architecture_learns_from_its_own_batch(name: str) -> None:
    architecture = zoo.find(name)
    torch.manual_seed(0)
    # Of a full size only the shapes are computed: the values would take minutes and gigabytes.
    with torch.device("meta" if architecture.scale == "full" else "cpu"):
        network = architecture.build()
        inputs, targets = first_batch(architecture)
        loss = architecture.loss(network(inputs), targets)
        torch.autograd.backward(loss)
    assert loss.shape == ()
    assert architecture.scale == "full" or torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_scale_names_its_architectures_and_the_zoo_is_large_enough_to_hold_whole_families_out() -> None:
    assert set(zoo.names("small")) | set(zoo.names("full")) == set(zoo.names())
    assert not set(zoo.names("small")) & set(zoo.names("full"))
    assert len(zoo.names()) >= 40
    assert len({zoo.find(name).family for name in zoo.names("small")}) >= 12


@for_each("name", zoo.names())
def test_batches_ascend_and_the_optimizer_is_a_known_one(name: str) -> None:
    architecture = zoo.find(name)
    assert list(architecture.batches) == sorted(set(architecture.batches))
    assert architecture.optimizer in {"sgd", "momentum", "adam", "adamw"}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="autoencoder"):
        zoo.find("resnet9000")


def test_a_graph_keeps_batch_normalization_and_a_symbolic_batch_but_no_weights() -> None:
    graph = exported("resnet")
    model = onnx.load_model_from_string(graph.content)
    normalizations = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert len(normalizations) == 7
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    weights = [item for item in model.graph.initializer if item.data_type == onnx.TensorProto.FLOAT]
    assert weights
    assert not any(item.raw_data or item.float_data for item in weights)


def test_the_same_architecture_has_the_same_hash_every_time() -> None:
    assert export_graph("recommender").sha256 == exported("recommender").sha256


@for_each("name", EXPORTED, always=3)
def test_the_graph_of_an_architecture_has_all_its_parameters_and_no_operator_without_a_cost(name: str) -> None:
    description = describe_graph(exported(name).content)
    parameters = sum(parameter.numel() for parameter in zoo.find(name).build().parameters())
    assert description.at_batch(1).parameters == parameters
    assert description.unshaped_nodes == 0

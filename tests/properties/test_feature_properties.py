"""What holds for every graph: counts are affine in the batch, names do not matter, no bytes can crash the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.graph_file import GraphFileError, strip_weights
from predictor_service.errors import GraphError
from predictor_service.features.graphs.extraction_pool import ExtractionPool
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.graphs.graph_features import GraphFeatures
from predictor_service.features.graphs.operator_families import FAMILY_OF
from tests.support.onnx_graphs import (
    GraphBuilder,
    bert_base,
    lstm_language_model,
    mobilenet_v2,
    perceptron,
    resnet50,
    vgg16,
)

NETWORKS: Mapping[str, bytes] = {
    "resnet50": resnet50().SerializeToString(),
    "vgg16": vgg16().SerializeToString(),
    "mobilenet_v2": mobilenet_v2().SerializeToString(),
    "bert_base": bert_base().SerializeToString(),
    "lstm": lstm_language_model().SerializeToString(),
    "perceptron": perceptron().SerializeToString(),
}
DESCRIPTIONS = {name: describe_graph(data) for name, data in NETWORKS.items()}
OPERATORS = [*sorted(FAMILY_OF), "Shape", "Size", "Reshape", "Squeeze", "Identity", "Loop", "Scan", "If", "Constant"]
SIZES = st.integers(1, 2_000)


@pytest.fixture(scope="module")
def pool() -> Iterator[ExtractionPool]:
    with ExtractionPool(workers=1, timeout_s=120.0) as pool:
        yield pool


def totals(features: GraphFeatures) -> list[int]:
    return [
        features.forward_macs,
        features.forward_flops,
        features.activation_bytes_saved,
        features.traffic_bytes,
        features.input_bytes,
        features.output_bytes,
        features.widest_activation_bytes,
    ]


@given(network=st.sampled_from(sorted(NETWORKS)), first=SIZES, second=SIZES)
def test_the_batch_of_a_sum_costs_the_sum_less_what_is_shared(network: str, first: int, second: int) -> None:
    """f(a + b) = f(a) + f(b) - f(0), with f(0) found from f(1) and f(2)."""
    at = DESCRIPTIONS[network].at_batch
    shared = [2 * one - two for one, two in zip(totals(at(1))[:-1], totals(at(2))[:-1], strict=True)]

    together = totals(at(first + second))[:-1]

    apart = zip(totals(at(first)), totals(at(second)), shared, strict=False)
    assert together == [left + right - constant for left, right, constant in apart]


@given(network=st.sampled_from(sorted(NETWORKS)), batch=st.integers(1, 64))
@settings(max_examples=15, deadline=None)
def test_every_batch_agrees_with_an_export_at_that_batch(network: str, batch: int) -> None:
    """The line through batches 2 and 3 against shape inference at the batch itself."""
    model = onnx.ModelProto.FromString(NETWORKS[network])
    for value in model.graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == "batch":
                size.dim_value = batch

    exported = describe_graph(model.SerializeToString(), {"batch": batch})

    assert totals(exported.at_batch(batch)) == totals(DESCRIPTIONS[network].at_batch(batch))


@given(network=st.sampled_from(sorted(NETWORKS)), salt=st.text(min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_names_do_not_matter(network: str, salt: str) -> None:
    model = onnx.ModelProto.FromString(NETWORKS[network])
    for value in (*model.graph.input, *model.graph.output):
        value.name += salt
    for tensor in model.graph.initializer:
        tensor.name += salt
    for node in model.graph.node:
        node.input[:] = [name + salt for name in node.input]
        node.output[:] = [name + salt for name in node.output]

    renamed = describe_graph(model.SerializeToString())

    assert renamed.stored == DESCRIPTIONS[network].stored
    assert renamed.scalars == DESCRIPTIONS[network].scalars
    assert renamed.families == DESCRIPTIONS[network].families


@given(widths=st.lists(st.integers(1, 4096), min_size=3, max_size=8), batch=st.integers(1, 1 << 20))
@settings(max_examples=40, deadline=None)
def test_a_perceptron_of_any_shape_is_what_its_widths_give(widths: list[int], batch: int) -> None:
    pairs = list(pairwise(widths))

    features = describe_graph(perceptron(widths=widths).SerializeToString()).at_batch(batch)

    assert features.forward_macs == batch * sum(incoming * outgoing for incoming, outgoing in pairs)
    assert features.parameters == sum(incoming * outgoing + outgoing for incoming, outgoing in pairs)
    assert features.activation_bytes_saved == 4 * batch * sum(widths[1:-1])


@given(
    batch=st.integers(1, 256),
    channels=st.integers(1, 16),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3),
    group=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_a_convolution_of_any_shape_is_what_a_direct_loop_does(
    batch: int, channels: int, kernel: int, stride: int, group: int
) -> None:
    net = GraphBuilder()
    incoming, outgoing = channels * group, 2 * channels * group
    x = net.input("x", ["batch", incoming, 17, 17])
    y = net.conv(x, (incoming, outgoing), kernel=kernel, stride=stride, group=group)

    features = describe_graph(net.model(y).SerializeToString()).at_batch(batch)

    side = (17 - 1) // stride + 1
    assert features.forward_macs == batch * side * side * outgoing * channels * kernel * kernel


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_never_crash_a_worker(pool: ExtractionPool, seed: int) -> None:
    describe_mutants(pool, seed=seed, count=15)


@pytest.mark.parametrize("seed", range(4))
def test_well_formed_nonsense_never_crashes_a_worker(pool: ExtractionPool, seed: int) -> None:
    describe_nonsense(pool, seed=seed, count=15)


@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_a_thousand_well_formed_graphs_of_nonsense_never_crash_a_worker(pool: ExtractionPool) -> None:
    describe_nonsense(pool, seed=1_000, count=1_000)


@pytest.mark.endurance
@pytest.mark.timeout(600)
def test_a_thousand_flipped_graphs_never_crash_a_worker(pool: ExtractionPool) -> None:
    describe_mutants(pool, seed=1_000, count=1_000)


@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_or_stripped_for_good(data: bytes) -> None:
    try:
        stripped = strip_weights(data)
    except GraphFileError:
        return
    assert strip_weights(stripped) == stripped


def describe_mutants(pool: ExtractionPool, *, seed: int, count: int) -> None:
    """Flips one to eight bytes of real graphs; every answer is a description or an error that blames the graph."""
    generator = np.random.default_rng(seed)
    names = sorted(NETWORKS)
    for _ in range(count):
        mutant = bytearray(NETWORKS[names[generator.integers(len(names))]])
        for position in generator.integers(len(mutant), size=generator.integers(1, 9)):
            mutant[position] = generator.integers(256)
        with suppress(GraphError):
            assert pool.describe(bytes(mutant)).nodes >= 0


def describe_nonsense(pool: ExtractionPool, *, seed: int, count: int) -> None:
    """Changes operators, attributes, inputs and dimensions of real graphs, so that parsing succeeds."""
    generator = np.random.default_rng(seed)
    names = sorted(NETWORKS)
    for _ in range(count):
        model = onnx.ModelProto.FromString(NETWORKS[names[generator.integers(len(names))]])
        for _ in range(generator.integers(1, 5)):
            confuse(model.graph, generator)
        with suppress(GraphError):
            assert pool.describe(model.SerializeToString()).nodes >= 0


def confuse(graph: onnx.GraphProto, generator: np.random.Generator) -> None:
    """Makes one change to one node or one weight."""
    node = graph.node[generator.integers(len(graph.node))]
    odd_size = int(generator.choice([0, 1, 2, 3, 7, 1 << 20, 1 << 33]))
    match generator.integers(6):
        case 0:
            node.op_type = OPERATORS[generator.integers(len(OPERATORS))]
        case 1:
            del node.input[generator.integers(len(node.input) + 1) :]
        case 2 if node.input:
            node.input[int(generator.integers(len(node.input)))] = ""
        case 3:
            del node.attribute[:]
        case 4:
            for attribute in node.attribute:
                attribute.i = odd_size
                attribute.ints[:] = [odd_size - 1] * len(attribute.ints)
        case _:
            weight = graph.initializer[generator.integers(len(graph.initializer))]
            weight.dims[:] = [odd_size] * int(generator.integers(5))

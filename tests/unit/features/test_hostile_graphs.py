"""Hostile graphs are refused in bounded time and memory, with a reason, while other requests go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from predictor_service.errors import CallerError, GraphLimitError, MalformedGraphError, UnboundDimensionError
from predictor_service.features.graphs.extraction_pool import ExtractionPool
from predictor_service.features.graphs.graph_description import describe_graph
from tests.support.cases import for_each
from tests.support.hostile_graphs import (
    answerable_graphs,
    concat_doubling,
    hostile_graphs,
    many_nodes,
    nested_functions,
)
from tests.support.onnx_graphs import perceptron

HOSTILE = hostile_graphs()
ANSWERABLE = answerable_graphs()
GOOD = perceptron().SerializeToString()
LIMIT_S = 2.0
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def pool() -> Iterator[ExtractionPool]:
    with ExtractionPool(workers=2, memory_limit_bytes=512 << 20, timeout_s=PATIENCE_S) as pool:
        pool.describe(GOOD)
        yield pool


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_graph_is_refused_with_a_reason_while_another_request_is_answered(
    pool: ExtractionPool, name: str
) -> None:
    refused: list[Exception] = []
    data = HOSTILE[name]()

    def ask() -> None:
        try:
            pool.describe(data)
        except CallerError as error:
            refused.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert pool.describe(GOOD).at_batch(1).parameters > 0
    thread.join(timeout=PATIENCE_S)

    assert not thread.is_alive()
    assert len(refused) == 1
    assert len(str(refused[0])) > 20


@for_each("name", sorted(HOSTILE))
def test_a_hostile_graph_costs_less_than_two_seconds_to_refuse(name: str) -> None:
    data = HOSTILE[name]()
    start_s = time.process_time()

    with pytest.raises(CallerError):
        describe_graph(data)

    assert time.process_time() - start_s < LIMIT_S


@pytest.mark.parametrize("name", sorted(ANSWERABLE))
def test_an_odd_graph_is_answered_in_time(pool: ExtractionPool, name: str) -> None:
    assert pool.describe(ANSWERABLE[name]()).nodes > 0


def test_an_unbound_dimension_is_named() -> None:
    with pytest.raises(UnboundDimensionError, match=r"frames.*dimension_bindings") as caught:
        describe_graph(HOSTILE["unbound_dimension"]())

    assert caught.value.symbols == ["frames"]


def test_limits_say_which_one_was_passed_and_by_how_much() -> None:
    with pytest.raises(GraphLimitError, match="shape_values") as caught:
        describe_graph(concat_doubling())

    assert caught.value.details == {"limit": "shape_values", "value": "32768", "maximum": "16384"}


def test_a_shape_below_nothing_is_not_called_too_large() -> None:
    with pytest.raises(MalformedGraphError, match=r"\[2, -96\], less than nothing"):
        describe_graph(HOSTILE["padded_to_less_than_nothing"]())


def test_functions_that_call_each_other_too_deep_are_refused_by_their_limit() -> None:
    with pytest.raises(GraphLimitError, match="nesting = 109"):
        describe_graph(HOSTILE["functions_900_deep"]())
    assert describe_graph(nested_functions(90)).nodes == 1


def test_a_graph_just_below_the_node_limit_is_described() -> None:
    assert describe_graph(many_nodes(5_000)).nodes == 5_000

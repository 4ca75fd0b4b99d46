"""Puts operators of like shapes and cost in place of those for which the exporter to ONNX has nothing.

The graph is read for what it costs, not for what it computes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx import Graph, Node

_ATEN: Final = torch.ops.aten
_Insert = Callable[..., Node]
_Answers = Sequence[tuple[Any, tuple[Any, ...]]]
"""An operator and its arguments for each tensor of the answer."""
_Rule = Callable[..., _Answers]


def put_stand_ins(exported: torch.export.ExportedProgram) -> None:
    """Replaces what ONNX has no operator for, where another one of the same shapes stands for it; the rest stays.

    Args:
        exported: Changed in place.
    """
    graph = exported.graph
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        rule = _RULES.get(name)
        if rule is _drawn and not any(isinstance(each, Node) for each in node.args):
            continue  # ONNX has numbers that are drawn by two numbers
        if rule is not None:
            _replace(graph, node, rule)
        elif name in _DECOMPOSITIONS and _is_of_known_sizes(node):
            _decompose(graph, node)
    exported.graph_module.recompile()


def _replace(graph: Graph, node: Node, rule: _Rule) -> None:
    with graph.inserting_before(node):
        answers = rule(lambda target, *args: _inserted(graph, target, args), *node.args)
    if isinstance(node.meta.get("val"), torch.Tensor):
        _become(node, *answers[0])
        return
    for user in list(node.users):  # each takes one tensor of several
        with graph.inserting_before(user):
            _become(user, *answers[user.args[1]])
    graph.erase_node(node)


def _is_of_known_sizes(node: Node) -> bool:
    values = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
    return all(isinstance(size, int) for value in values for size in value.shape)


def _decompose(graph: Graph, node: Node) -> None:
    """Parts of a matrix, each as of the sum of its product with itself: they are of several shapes."""
    matrix, value = node.args[0], node.meta["val"]
    shapes = [list(each.shape) for each in (value if isinstance(value, (tuple, list)) else (value,))]

    def rule(insert: _Insert, *args: Any) -> _Answers:  # noqa: ANN401
        product = insert(_ATEN.matmul.default, matrix, insert(_ATEN.transpose.int, matrix, -2, -1))
        total = insert(_ATEN.sum.default, product)
        return [(_ATEN.expand.default, (total, shape)) for shape in shapes]

    _replace(graph, node, rule)


def _inserted(graph: Graph, target: Any, args: tuple[Any, ...]) -> Node:  # noqa: ANN401 (an operator of torch)
    made = graph.call_function(target, args)
    made.meta["val"] = target(*(each.meta["val"] if isinstance(each, Node) else each for each in args))
    return made


def _become(node: Node, target: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401 (an operator of torch)
    node.target, node.args, node.kwargs = target, args, {}


def _each_number(insert: _Insert, *args: Any) -> _Answers:  # noqa: ANN401
    """A function of each number: like the logarithm it keeps what it was given."""
    return [(_ATEN.log.default, (next(each for each in args if isinstance(each, Node)),))]


def _both_numbers(insert: _Insert, one: Node, other: Node) -> _Answers:
    return [(_ATEN.mul.Tensor, (one, other))]


def _drawn(insert: _Insert, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.randn_like.default, (next(each for each in args if isinstance(each, Node)),))]


def _distances(insert: _Insert, one: Node, other: Node, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.matmul.default, (one, insert(_ATEN.transpose.int, other, -2, -1)))]


def _solved(insert: _Insert, one: Node, other: Node, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.matmul.default, (one, other))]


def _solved_by_second(insert: _Insert, one: Node, other: Node, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.matmul.default, (other, one))]


def _of_square(insert: _Insert, matrix: Node, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.matmul.default, (matrix, matrix))]


def _of_columns(insert: _Insert, matrix: Node, *args: Any) -> _Answers:  # noqa: ANN401
    square = insert(_ATEN.matmul.default, matrix, insert(_ATEN.transpose.int, matrix, -2, -1))
    return [(_ATEN.matmul.default, (square, matrix))]


def _determinant(insert: _Insert, matrix: Node) -> _Answers:
    product = insert(_ATEN.matmul.default, matrix, matrix)
    return 2 * [(_ATEN.sum.dim_IntList, (product, [-2, -1]))]


def _along(insert: _Insert, values: Node, dimension: int = -1, *args: Any) -> _Answers:  # noqa: ANN401
    return [(_ATEN.cumsum.default, (values, dimension)), (_ATEN.argsort.default, (values, dimension))]


def _ranked(insert: _Insert, values: Node, *args: Any) -> _Answers:  # noqa: ANN401
    """A median of all, or of a dimension, which then comes with its place."""
    if not args:
        return [(_ATEN.max.default, (values,))]
    return _greatest(insert, values, *args)


def _greatest(insert: _Insert, values: Node, dimension: int = -1, keeps: bool = False) -> _Answers:
    found = insert(_ATEN.max.dim, values, dimension, keeps)
    return [(operator.getitem, (found, 0)), (operator.getitem, (found, 1))]


def _kth(insert: _Insert, values: Node, kth: int, dimension: int = -1, keeps: bool = False) -> _Answers:
    return _greatest(insert, values, dimension, keeps)


def _counted_up(insert: _Insert, count: Any, *args: Any) -> _Answers:  # noqa: ANN401 (a number, or a symbol's node)
    return [(_ATEN.arange.default, (count,))]


_DECOMPOSITIONS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "linalg_svd",
        "svd",
        "linalg_svdvals",
        "linalg_eigh",
        "linalg_eigvalsh",
        "linalg_qr",
        "qr",
        "linalg_pinv",
    )
)
_RULES: Final = MappingProxyType(
    {
        f"aten::{name}": rule
        for names, rule in (
            ("lgamma digamma polygamma mvlgamma erfinv special_erfinv i0 special_i0 special_i0e", _each_number),
            ("special_i1 special_i1e special_ndtri special_erfcx special_log_ndtr", _each_number),
            ("_standard_gamma _sample_dirichlet", _each_number),
            ("hypot igamma igammac special_gammainc special_gammaincc", _both_numbers),
            ("poisson normal", _drawn),
            ("cdist", _distances),
            ("linalg_solve linalg_solve_triangular", _solved),
            ("cholesky_solve", _solved_by_second),
            ("linalg_cholesky cholesky linalg_inv inverse linalg_matrix_exp matrix_exp", _of_square),
            ("linalg_householder_product", _of_columns),
            ("linalg_det det logdet linalg_slogdet slogdet", _determinant),
            ("cumprod cummax cummin", _along),
            ("median nanmedian", _ranked),
            ("kthvalue", _kth),
            ("randperm", _counted_up),
        )
        for name in names.split()
    }
)

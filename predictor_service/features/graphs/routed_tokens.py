"""How many tokens a router gives to an expert: what is chosen by value has no shape, but a mean that the graph tells.

A mixture of experts takes for each token the best k of n experts (TopK), and each expert takes the tokens that chose
it (NonZero of an equality). Of all choices one of n is of an expert, in the mean. So each expert is counted with its
share; a router that favours some of them has the others compute less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from onnx import GraphProto, NodeProto, TensorProto, helper

from predictor_service.features.graphs.shape_inference import ShapeTable

PASSES_MAX: Final = 4
"""Inferences of one graph: tokens of one choice may be chosen from again."""
SHARES_MAX: Final = 512
"""Samples of which routers of several sizes may ask for whole shares: batches of a few times as many are looked at."""
_STEPS_MAX: Final = 16
_EQUALITIES: Final = frozenset({"Equal", "OneHot"})
_KEEPS_CHOICES: Final = frozenset(
    {"Cast", "CastLike", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Expand"}
    | {"Gather", "Slice", "ReduceMax", "ReduceSum", *_EQUALITIES}
)
"""Operators through which the choice of one expert is still that."""


class Router(NamedTuple):
    """The choice of k of n experts.

    Attributes:
        scores: Name of the tensor of which the best are taken.
        choices: Name of the tensor of what was chosen.
        axis: Over which.
    """

    scores: str
    choices: str
    axis: int


Routed = Mapping[str, tuple[str, Router]]
"""By the name of what a NonZero found its input, and the router behind that."""


def find_routed(graph: GraphProto) -> Routed:
    """Return what is chosen by routers.

    Args:
        graph: Its own nodes only; subgraphs are left alone.
    """
    makers = {name: node for node in graph.node for name in node.output}
    routed = {}
    for node in graph.node:
        if node.op_type == "NonZero" and node.input and node.output:
            router = _router_behind(node.input[0], makers)
            if router is not None:
                routed[node.output[0]] = node.input[0], router
    return routed


def _router_behind(name: str, makers: Mapping[str, NodeProto]) -> Router | None:
    is_equality = False
    for _ in range(_STEPS_MAX):
        node = makers.get(name)
        if node is None:
            return None
        if node.op_type == "TopK" and len(node.output) == 2 and name == node.output[1] and is_equality:
            axis = next((item.i for item in node.attribute if item.name == "axis"), -1)
            return Router(node.input[0], name, axis)
        if node.op_type not in _KEEPS_CHOICES or not node.input:
            return None
        is_equality |= node.op_type in _EQUALITIES
        name = node.input[0]
    return None


def note_routed(graph: GraphProto, routed: Routed, table: ShapeTable) -> bool:
    """Write into a graph how many tokens are chosen in the mean; return whether a number is new.

    Args:
        graph: Changed in place.
        routed: What is chosen in it.
        table: Shapes at the same batch, as far as they are known.
    """
    known = {value.name for value in graph.value_info}
    is_new = False
    for output, (chosen, router) in routed.items():
        mask, sizes = table.get(chosen), _sizes(router, table)
        if output in known or mask is None or sizes is None:
            continue
        experts, choices = sizes[0], table[router.choices].elements
        count = min(-(-max(mask.elements, choices) // experts), mask.elements)
        dims = [max(len(mask.dims), 1), count]
        graph.value_info.append(helper.make_tensor_value_info(output, TensorProto.INT64, dims))
        is_new = True
    return is_new


def forget_routed(graph: GraphProto, routed: Routed) -> None:
    """Take out of a graph what it says of the numbers chosen, as those of another batch."""
    if routed:
        kept = [value for value in graph.value_info if value.name not in routed]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def whole_shares(routed: Routed, table: ShapeTable) -> int:
    """Return of how many samples each expert gets a whole number of tokens, as far as that is known and bounded."""
    found = 1
    for _, router in routed.values():
        if (sizes := _sizes(router, table)) is not None:
            both = math.lcm(found, sizes[0] // math.gcd(*sizes))
            found = both if both <= SHARES_MAX else found
    return found


def _sizes(router: Router, table: ShapeTable) -> tuple[int, int] | None:
    """How many experts there are, and how many of them a token takes; None where that is not known."""
    scores, choices = table.get(router.scores), table.get(router.choices)
    if scores is None or choices is None or not -len(scores.dims) <= router.axis < len(scores.dims):
        return None
    return max(scores.dims[router.axis], 1), max(choices.dims[router.axis], 1)

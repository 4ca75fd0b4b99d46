"""Operators that PyTorch computes in one piece and an exporter writes as several: what the piece keeps.

The parts would keep more than the whole does. An export of torch.onnx spells out five of them:

- SiLU and Mish, a product of x with a function of x: the whole keeps x only.
- Group normalization, an instance normalization times a scale: the whole keeps its input and two numbers per group.
- The reciprocal of a square root, as root mean square normalization has it: the whole keeps its output only.
- Softplus, which answers large numbers with themselves: the whole keeps its input, no comparison.
- Scaled dot-product attention: fused kernels keep queries, keys, values, the output and one number per row, not the
  matrix of scores. The exporter scales both factors of the scores by the root of the scale; attention that a network
  spells out itself scales one, so that it is not taken for it.

Source: `derivatives.yaml` of PyTorch; its exporter's operators (`torch.onnx`, torchlib, opset 20).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from predictor_service.features.graphs.graph_nodes import GraphNode
from predictor_service.features.graphs.tensor_roles import TensorRoles

_GATES: Final = (("Sigmoid",), ("Tanh", "Softplus"))
"""Operators between x and the factor that it is multiplied by, last first."""


class Kept(NamedTuple):
    """What one node of a piece keeps.

    Attributes:
        names: Tensors.
        rows_of: A matrix of scores of which one number per row is kept; empty = none.
        heads_last: An output that lies in memory with its heads next to each other for each place; empty = none.
    """

    names: tuple[str, ...] = ()
    rows_of: str = ""
    heads_last: str = ""


def find_fused(nodes: Sequence[GraphNode], roles: TensorRoles) -> Mapping[int, Kept]:
    """Finds the pieces.

    Args:
        nodes: All nodes of the graph, in order.
        roles: Their roles.

    Returns:
        What the nodes keep that are parts of a piece, by index; other nodes are not in it.
    """
    reader = _Reader(nodes, roles)
    found: dict[int, Kept] = {}
    for index in roles.device_nodes:
        operator = nodes[index].op_type
        if operator == "Mul":
            found.update(reader.gate(index) or reader.scaled_norm(index))
        elif operator == "Softmax":
            found.update(reader.attention(index))
        elif operator == "Where":
            found.update(reader.softplus(index))
        elif operator == "Reciprocal":
            found.update(reader.root(index))
    return found


class _Reader:
    """Follows tensors of a graph to where they are made and used."""

    def __init__(self, nodes: Sequence[GraphNode], roles: TensorRoles) -> None:
        self._nodes = nodes
        self._roles = roles
        self._makers = {name: index for index in roles.device_nodes for name in nodes[index].outputs}
        self._made_by = {name: node for node in nodes for name in node.outputs}
        self._uses: dict[str, list[int]] = {}
        for index in roles.device_nodes:
            for name in nodes[index].inputs:
                self._uses.setdefault(self._root(name), []).append(index)

    def gate(self, index: int) -> dict[int, Kept]:
        """A tensor times a function of itself."""
        for value, factor in _both_ways(self._nodes[index]):
            for operators in _GATES:
                parts = self._chain(factor, operators)
                if parts and self._nodes[parts[-1]].input(0) == value:
                    return {index: Kept((value,)), **dict.fromkeys(parts, Kept())}
        return {}

    def scaled_norm(self, index: int) -> dict[int, Kept]:
        """A normalized tensor times a constant."""
        for value, factor in _both_ways(self._nodes[index]):
            made_by = self._maker(value)
            if factor in self._roles.constants and made_by is not None and made_by.op_type == "InstanceNormalization":
                return {index: Kept()}
        return {}

    def softplus(self, index: int) -> dict[int, Kept]:
        """A tensor where it is large, else its softplus over a scale."""
        node = self._nodes[index]
        parts = self._chain(node.input(2), ("Div", "Softplus"))
        scaled = self._maker(self._nodes[parts[-1]].input(0)) if parts else None
        if scaled is None or scaled.op_type != "Mul" or scaled.input(0) != node.input(1):
            return {}
        return {index: Kept(), **dict.fromkeys(parts, Kept()), parts[-1]: Kept((node.input(1),))}

    def root(self, index: int) -> dict[int, Kept]:
        """The reciprocal of a square root that nothing else uses."""
        parts = self._chain(self._nodes[index].input(0), ("Sqrt",))
        return {index: Kept((self._nodes[index].outputs[0],)), **dict.fromkeys(parts, Kept())} if parts else {}

    def attention(self, index: int) -> dict[int, Kept]:
        """The softmax of scores whose factors are both scaled, times values."""
        scores, weights = self._scores(index), self._nodes[index].outputs[0]
        users = self._uses.get(self._root(weights), [])
        if scores is None or len(users) != 1 or self._nodes[users[0]].op_type != "MatMul":
            return {}
        sources = [self._unscaled(name) for name in self._nodes[scores].inputs[:2]]
        product = self._nodes[users[0]]
        if None in sources or self._root(product.input(0)) != self._root(weights):
            return {}
        kept = Kept(tuple(name for name in sources if name), rows_of=weights)
        answer = product.outputs[0]
        return {scores: kept, index: Kept(), users[0]: Kept((product.input(1), answer), heads_last=answer)}

    def _scores(self, index: int) -> int | None:
        """The product that a softmax is of, with or without a mask added to it."""
        name = self._nodes[index].input(0)
        made_by = self._maker(name)
        names = made_by.inputs if made_by is not None and made_by.op_type == "Add" else (name,)
        for each in names:
            maker = self._maker(each)
            if maker is not None and maker.op_type == "MatMul" and len(self._uses.get(self._root(each), [])) == 1:
                return self._makers[self._root(each)]
        return None

    def _unscaled(self, name: str) -> str | None:
        """What a tensor is a multiple of, before the exporter turned it; None where it is none."""
        made_by = self._maker(name)
        if made_by is None or made_by.op_type != "Mul":
            return None
        trained = [each for each in made_by.inputs if each in self._roles.trainable]
        return self._unturned(trained[0]) if len(trained) == 1 else None

    def _unturned(self, name: str) -> str:
        """Keys before their heads were merged, transposed and parted again, which PyTorch does not do."""
        before = name
        for operator in ("Reshape", "Transpose", "Reshape"):
            made_by = self._made_by.get(before)
            if made_by is None or made_by.op_type != operator:
                return name
            before = made_by.input(0)
        return before

    def _chain(self, name: str, operators: Sequence[str]) -> tuple[int, ...]:
        """Nodes that made a tensor one after the other for nothing else, last first; empty where they did not."""
        parts: list[int] = []
        for operator in operators:
            made_by = self._maker(name)
            if made_by is None or made_by.op_type != operator or len(self._uses[self._root(name)]) != 1:
                return ()
            parts.append(self._makers[self._root(name)])
            name = made_by.input(0)
        return tuple(parts)

    def _maker(self, name: str) -> GraphNode | None:
        index = self._makers.get(self._root(name))
        return None if index is None else self._nodes[index]

    def _root(self, name: str) -> str:
        return self._roles.view_roots.get(name, name)


def _both_ways(node: GraphNode) -> Iterator[tuple[str, str]]:
    one, other = node.input(0), node.input(1)
    yield one, other
    yield other, one

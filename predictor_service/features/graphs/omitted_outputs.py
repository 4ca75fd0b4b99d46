"""Names results that an exporter left out because no node reads them: their operators compute them all the same.

A classifier that looks at a recurrent layer's last state only has no name for the states of all steps, and TopK without
one has indices alone. What an operator costs follows from the shape of its first output.
"""

from __future__ import annotations

from onnx import GraphProto

_NAME = "omitted output"


def name_omitted_outputs(graph: GraphProto) -> int:
    """Give a first output that has no name one that the graph does not have, in place.

    Args:
        graph: Its own nodes only; subgraphs are left alone.

    Returns:
        Number of outputs named.
    """
    taken = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    named = 0
    for place, node in enumerate(graph.node):
        if len(node.output) < 2 or node.output[0]:
            continue
        name = f"{_NAME} {place}"
        while name in taken:
            name += "'"
        node.output[0] = name
        named += 1
    return named

"""A describer of graphs for programs that read their user's own: no other user's request is at risk."""

from __future__ import annotations

from collections.abc import Mapping

from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph


class InProcessDescriber:
    """Describes in this process; a `GraphDescriber`."""

    def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
        """Describe a graph, see `describe_graph`."""
        return describe_graph(data, bindings)

"""A described graph with what every question about it needs again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from predictor_service.features.graph_description import GraphDescription
from predictor_service.features.graph_features import GraphFeatures
from predictor_service.features.job_features import family_codes


class MeasuredGraph:
    """A graph whose features at powers of two are kept; safe for many threads.

    Args:
        description: The graph.
    """

    def __init__(self, description: GraphDescription) -> None:
        self.description = description
        self.family_codes: npt.NDArray[np.intp] = family_codes(description.families)
        self._kept: dict[int, GraphFeatures] = {}

    def at(self, batch: int) -> GraphFeatures:
        """Features at a batch."""
        kept = self._kept.get(batch)
        if kept is not None:
            return kept
        features = self.description.at_batch(batch)
        if batch & (batch - 1) == 0:
            self._kept[batch] = features
        return features

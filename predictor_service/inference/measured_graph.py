"""A described graph with what every question about it needs again."""

from __future__ import annotations

from typing import Final

from cotenant.job_settings import BATCH_SIZE_MAX
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.graphs.graph_table import GraphTable, family_codes, tabulate_graph
from predictor_service.features.operator_times import OperatorTimes, Rates, time_operators

GRID: Final = tuple(1 << exponent for exponent in range(BATCH_SIZE_MAX.bit_length() + 1) if 1 << exponent <= 1 << 20)
"""Batches at which models are asked."""
_RATES_MAX: Final = 32
"""Both modes and four precisions on four device types; at most 3 KiB each."""


class MeasuredGraph:
    """A graph whose features at powers of two are kept, and the times of its operators; safe for many threads.

    Args:
        description: The graph.
    """

    def __init__(self, description: GraphDescription) -> None:
        self.description = description
        self._families = family_codes(description.families)
        self._kept: GraphTable | None = None
        self._times: dict[Rates, OperatorTimes] = {}

    def table(self, points: int) -> GraphTable:
        """Features at the first points of `GRID`, at least one."""
        kept = self._kept
        if kept is None or len(kept.rows) < points:
            # Several threads may do this at once: they make equal tables, and the shorter of two only costs time.
            kept = self._kept = tabulate_graph(
                [self.description.at_batch(batch) for batch in GRID[:points]], self._families
            )
        return kept.first(points)

    def times(self, points: int, rates: Rates) -> OperatorTimes:
        """Times of the operators at the first points of `GRID`: the same for all jobs of a mode and precision there."""
        kept = self._times.get(rates)
        if kept is None or len(kept.sum_ms) < points:
            kept = time_operators(self.table(points), rates)
            if len(self._times) >= _RATES_MAX:
                self._times.clear()
            self._times[rates] = kept
        if len(kept.sum_ms) == points:
            return kept
        return OperatorTimes(sum_ms=kept.sum_ms[:points], ratios=kept.ratios[:points])

    def at(self, batch: int) -> GraphTable:
        """Features at a batch, as a table of one row."""
        return tabulate_graph([self.description.at_batch(batch)], self._families)

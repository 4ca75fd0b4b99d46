"""Figures of a graph at a batch, from tables that hold them per sample or at a few batches.

Names state how a figure depends on the batch: `X_per_sample` and `X_constant` are the two parts of a line, and
`X_at_batch_8` is one point of a curve.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

_PER_SAMPLE: Final = "_per_sample"
_CONSTANT: Final = "_constant"
PEAK: Final = "step_peak_bytes_at_batch_"
_POINT: Final = re.compile(r"(.+)_at_batch_(\d+)")


def figures_at(facts: Mapping[str, float], batch: int) -> dict[str, float]:
    """Reads all figures at a batch.

    Args:
        facts: By name as above; other names are figures that do not depend on the batch.
        batch: Samples held at a time, at least 1.

    Returns:
        What does not depend on the batch as it was, lines also as `X`, curves only as `X`: straight between their
        points and beyond the outer two.
    """
    figures: dict[str, float] = {}
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name, value in facts.items():
        if point := _POINT.fullmatch(name):
            curves[point[1]].append((int(point[2]), value))
            continue
        figures[name] = value
        if name.endswith(_PER_SAMPLE):
            total = name.removesuffix(_PER_SAMPLE)
            figures[total] = value * batch + facts.get(total + _CONSTANT, 0.0)
    figures.update({name: _read(sorted(points), batch) for name, points in curves.items()})
    return figures


def features_at_batch(features: Mapping[str, float], batch: int, *, optimizer_slots: int) -> dict[str, float]:
    """The features of a table row for one job: the tabulated peaks give way to the one at its batch.

    Next to `step_peak_bytes`, the largest live memory during the step, gradients included, stands
    `counted_memory_bytes`: that, weights, optimizer state, buffers and input. Neither has library workspaces
    and context.

    Args:
        features: Of the table.
        batch: Samples per step.
        optimizer_slots: Numbers that the optimizer keeps per parameter, e.g. 2 for Adam.

    Returns:
        Features by name, bytes where the name ends so.
    """
    held_bytes = (1 + optimizer_slots) * features["parameter_bytes"] + features["buffer_bytes"]
    input_bytes = batch * features["input_bytes_per_sample"]
    at_batch = {name: value for name, value in features.items() if not name.startswith(PEAK)}
    at_batch["step_peak_bytes"] = figures_at(features, batch)["step_peak_bytes"]
    at_batch["counted_memory_bytes"] = held_bytes + input_bytes + at_batch["step_peak_bytes"]
    return at_batch


def _read(points: list[tuple[int, float]], batch: int) -> float:
    if len(points) == 1:
        return points[0][1]
    place = next((place for place in range(1, len(points) - 1) if points[place][0] >= batch), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (batch - left) / (right - left)

"""Lines of a report are told apart also by people who see red and green alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from cotenant_simulator.report.charts import COLOURS
from tests.support.cases import for_each

LEAST_DISTANCE = 15.0
"""Of two colours in CIE Lab; about 2 is the least that people notice side by side."""
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SEEN_AS = {
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}


def linear(colour: str) -> list[float]:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]


def lab(rgb: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (min(max(value, 0.0), 1.0) for value in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    a, b, c = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * b - 16, 500 * (a - b), 200 * (b - c)


@for_each("sight", sorted(SEEN_AS))
def test_no_two_lines_look_alike(sight: str) -> None:
    seen = [
        lab([sum(part * value for part, value in zip(row, linear(colour), strict=True)) for row in SEEN_AS[sight]])
        for colour in COLOURS
    ]
    for (first, one), (second, other) in combinations(zip(COLOURS, seen, strict=True), 2):
        distance = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        assert distance > LEAST_DISTANCE, f"{first} and {second} for {sight}: {distance:.1f}"

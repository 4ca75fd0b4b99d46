"""Line charts as SVG, drawn by hand: no script, no font and no library is loaded to look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 48
# Okabe and Ito's, and two dark ones: told apart also by people who see red and green alike.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4226", "#555555")
POINTS_MAX = 600
_DIGIT_WIDTH = 13
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart; `is_stepped` = a value holds until the next point."""

    name: str
    points: Sequence[Point]
    is_stepped: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels along one axis."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        span = self.high - self.low or 1.0
        return self.first + (self.last - self.first) * (value - self.low) / span


def chart(lines: Sequence[Line], *, across: str, up: str, least_top: float = 0.0) -> str:
    """Return a chart.

    Args:
        lines: What to draw; colours follow their order.
        across: Title of the horizontal axis with its unit.
        up: Title of the vertical axis with its unit.
        least_top: The vertical axis reaches at least so high.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return "<p>Nothing to draw.</p>"
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    bottom, top = min(0.0, *(y for _, y in points)), max(least_top, *(y for _, y in points))
    scale_x = Scale(left, right if right > left else left + 1, LEFT, WIDTH - RIGHT)
    scale_y = Scale(bottom, top * 1.03 or 1.0, HEIGHT - BOTTOM, TOP)
    parts = [*_grid(scale_x, scale_y), *(_path(line, place, scale_x, scale_y) for place, line in enumerate(lines))]
    title = (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    label = escape(f"{up} over {across}: {', '.join(line.name for line in lines)}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}{title}</svg>'


def legend(names: Sequence[str]) -> str:
    """Return the names next to their colours."""
    items = (
        f'<span class="key"><i style="background:{colour(place)}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


def colour(place: int) -> str:
    """Return the colour of the line or job at this place."""
    return COLOURS[place % len(COLOURS)]


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return round values between two others."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw)
    first = -(-low // step)
    return [step * (first + place) for place in range(int(span / step) + 2) if step * (first + place) <= high]


def number(value: float) -> str:
    """Return a value for a tick or a table."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most so many points as can be distinguished, the last included."""
    step = -(-len(points) // POINTS_MAX)
    found = list(points[::step]) if step > 1 else list(points)
    return found if not points or found[-1] == points[-1] else [*found, points[-1]]


def _grid(scale_x: Scale, scale_y: Scale) -> list[str]:
    parts: list[str] = []
    for value in ticks(scale_y.low, scale_y.high):
        y = scale_y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for value in ticks(scale_x.low, scale_x.high, 8):
        x, text = scale_x(value), number(value)
        # On a phone letters are as large again: half of a long number would stand beyond the edge.
        side = "end" if x + len(text) * _DIGIT_WIDTH / 2 > WIDTH else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="{side}">{text}</text>')
    return parts


def _path(line: Line, place: int, scale_x: Scale, scale_y: Scale) -> str:
    points = thinned(line.points)
    if not points:
        return ""
    first, *others = points
    text = [f"M{scale_x(first[0]):.1f} {scale_y(first[1]):.1f}"]
    for x, y in others:
        text.append(f"H{scale_x(x):.1f}V{scale_y(y):.1f}" if line.is_stepped else f"L{scale_x(x):.1f} {scale_y(y):.1f}")
    return f'<path d="{"".join(text)}" fill="none" stroke="{colour(place)}" stroke-width="1.8"/>'

"""Which job held which GPU when, as SVG: one row per GPU, one bar per attempt; a shared GPU shows half-height bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from zlib import crc32

from cotenant_simulator.report.charts import LEFT, RIGHT, WIDTH, Scale, number, ticks
from cotenant_simulator.run.records import HOUR_MS, AttemptInterval

ROWS_MAX = 64
BARS_MAX = 4_000
_AXIS = 34


def gantt(spans: Sequence[AttemptInterval], gpu_ids: Sequence[str], *, from_ms: int, until_ms: int) -> str:
    """Return the picture of the first GPUs; bars beyond the bound are left out and counted.

    Args:
        spans: Attempts on GPUs.
        gpu_ids: All GPUs in order.
        from_ms: Left edge.
        until_ms: Right edge.
    """
    shown = {gpu_id: row for row, gpu_id in enumerate(gpu_ids[:ROWS_MAX])}
    wanted = [span for span in spans if span.gpu_id in shown and span.until_ms > span.from_ms]
    wanted.sort(key=lambda span: (span.from_ms - span.until_ms, span.from_ms, span.gpu_id))
    bars = sorted(wanted[:BARS_MAX], key=lambda span: (span.from_ms, span.job_id))
    row_height = 14 if len(shown) <= 32 else 9
    height = row_height * len(shown) + _AXIS
    scale = Scale(from_ms, max(until_ms, from_ms + 1), LEFT, WIDTH - RIGHT)
    parts = [
        f'<text x="{LEFT - 6}" y="{row * row_height + row_height - 2}" text-anchor="end">{escape(gpu_id)}</text>'
        for gpu_id, row in shown.items()
        if len(shown) <= 32 or row % 4 == 0
    ]
    lanes: dict[str, list[AttemptInterval]] = {}
    parts += [
        _bar(bar, shown[bar.gpu_id] * row_height, row_height, scale, lanes.setdefault(bar.gpu_id, [])) for bar in bars
    ]
    for hours in ticks(from_ms / HOUR_MS, until_ms / HOUR_MS, 8):
        x = scale(hours * HOUR_MS)
        parts.append(f'<text x="{x:.1f}" y="{height - 20}" text-anchor="middle">{number(hours)}</text>')
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{height - 4}" text-anchor="middle">time (h)</text>')
    left_out = _left_out(len(wanted) - len(bars), len(gpu_ids) - len(shown))
    svg = f'<svg viewBox="0 -6 {WIDTH} {height + 6}" role="img" aria-label="GPUs over time">{"".join(parts)}</svg>'
    return svg + left_out


def _bar(bar: AttemptInterval, top: int, row_height: int, scale: Scale, lane: list[AttemptInterval]) -> str:
    """Draw one attempt in the upper half of its row, or in the lower half where the upper one is taken."""
    co_located = [other for other in lane if other.until_ms > bar.from_ms]
    lane[:] = [*co_located, bar]
    half = (row_height - 2) / 2
    x, end = scale(bar.from_ms), scale(bar.until_ms)
    y = top + 1 + (half if co_located else 0)
    hue = crc32(bar.job_id.encode()) % 360
    hours = (bar.until_ms - bar.from_ms) / HOUR_MS
    tip = escape(f"{bar.job_id} on {bar.gpu_id}, {hours:.3g} h")
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 0.4):.1f}" height="{half:.1f}" '
        f'fill="hsl({hue} 55% 55%)"><title>{tip}</title></rect>'
    )


def _left_out(bars: int, rows: int) -> str:
    missing = [text for text, count in ((f"{bars} shorter bars", bars), (f"{rows} further GPUs", rows)) if count > 0]
    return f"<p class='note'>Left out: {', '.join(missing)}.</p>" if missing else ""

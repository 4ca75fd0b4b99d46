"""Which job held which GPU when, as SVG: one row per GPU, one bar per attempt, half as high where it shares the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import zip_longest
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
    for bar in bars:
        lanes.setdefault(bar.gpu_id, []).append(bar)
    for gpu_id, lane in lanes.items():
        top = shown[gpu_id] * row_height + 1
        parts += [_bar(bar, top, row_height - 2, half, scale) for bar, half in _halves(lane)]
    for hours in ticks(from_ms / HOUR_MS, until_ms / HOUR_MS, 8):
        x = scale(hours * HOUR_MS)
        parts.append(f'<text x="{x:.1f}" y="{height - 20}" text-anchor="middle">{number(hours)}</text>')
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{height - 4}" text-anchor="middle">time (h)</text>')
    left_out = _left_out(len(wanted) - len(bars), len(gpu_ids) - len(shown))
    svg = f'<svg viewBox="0 -6 {WIDTH} {height + 6}" role="img" aria-label="GPUs over time">{"".join(parts)}</svg>'
    return f'<div class="gantt" tabindex="0">{svg}</div>{left_out}'


def _halves(lane: Sequence[AttemptInterval]) -> Iterator[tuple[AttemptInterval, int | None]]:
    """Yield the attempts of one GPU, by their starts, each with its half of the row.

    0 = the upper one, 1 = the lower one, where the upper one is taken; None = it has the GPU to itself throughout.
    """
    running: list[tuple[AttemptInterval, int | None]] = []
    for bar, following in zip_longest(lane, lane[1:]):
        running = [item for item in running if item[0].until_ms > bar.from_ms]
        is_joined = following is not None and following.from_ms < bar.until_ms
        half = None if not running and not is_joined else int(any(taken == 0 for _, taken in running))
        running.append((bar, half))
        yield bar, half


def _bar(bar: AttemptInterval, top: int, height: int, half: int | None, scale: Scale) -> str:
    """Draw one attempt in its row, or in a half of it."""
    x, end = scale(bar.from_ms), scale(bar.until_ms)
    y, tall = (top, height) if half is None else (top + half * height / 2, height / 2)
    hue = crc32(bar.job_id.encode()) % 360
    hours = (bar.until_ms - bar.from_ms) / HOUR_MS
    tip = escape(f"{bar.job_id} on {bar.gpu_id}, {hours:.3g} h")
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(end - x, 0.4):.1f}" height="{tall:.1f}" '
        f'fill="hsl({hue} 55% 55%)"><title>{tip}</title></rect>'
    )


def _left_out(bars: int, rows: int) -> str:
    missing = [text for text, count in ((f"{bars} shorter bars", bars), (f"{rows} further GPUs", rows)) if count > 0]
    return f"<p class='note'>Left out: {', '.join(missing)}.</p>" if missing else ""

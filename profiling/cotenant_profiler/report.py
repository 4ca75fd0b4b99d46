"""A dataset as one page that can be opened without a network: tables and plots of every device."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cotenant.page_style import PAGE_STYLE
from cotenant.profile_schema import PairRow, SoloRow, read_rows
from cotenant_profiler.report_figures import DeviceFigures, gather_figures

# Text stays text, and the same figures always give the same bytes.
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["svg.hashsalt"] = "cotenant"
BLUE, ORANGE, GREY = "#2463a4", "#c8641e", "#888888"
_STYLE = (
    PAGE_STYLE
    + """
body{max-width:62rem}th{text-align:left}
.plots{display:grid;grid-template-columns:1fr 1fr;gap:1rem;margin-top:1rem}
@media(max-width:50rem){.plots{grid-template-columns:1fr}}
"""
)


def write_report(dataset: Path, page: Path) -> list[DeviceFigures]:
    """Write the page of a dataset folder.

    Args:
        dataset: Folder with solo.csv and, where pairs were measured, pairs.csv.
        page: The HTML file.

    Returns:
        The figures of every device.

    Raises:
        ProfileSchemaError: A file does not follow the schema.
        OSError: A file cannot be read or written.
    """
    solo = list(read_rows(dataset / "solo.csv", SoloRow))
    path = dataset / "pairs.csv"
    pairs = list(read_rows(path, PairRow)) if path.exists() else []
    figures = gather_figures(solo, pairs)
    page.write_text(render_page(dataset.resolve().name, figures), encoding="utf-8")
    return figures


def render_page(title: str, figures: Sequence[DeviceFigures]) -> str:
    """Return the page."""
    parts = "\n".join(_device_part(item) for item in figures)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{parts}</body></html>\n"
    )


def _device_part(figures: DeviceFigures) -> str:
    plots = [_plot(draw, figures) for draw in (_utilization, _load, _noise, _predicted)]
    table = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts(figures))
    return (
        f"<h2>{escape(figures.device)}, campaign {escape(figures.campaign)}</h2><table>{table}</table>"
        f'<div class="plots">{"".join(plots)}</div>'
    )


def facts(figures: DeviceFigures) -> list[tuple[str, str]]:
    """Return the facts of the page in words: name and value."""
    curve = figures.curve
    runs = figures.accepted + figures.rejected
    deviations = figures.repeat_deviation
    return [
        ("runs accepted", f"{figures.accepted} of {runs}" + (f" ({figures.accepted / runs:.0%})" if runs else "")),
        ("jobs alone", str(len(figures.utilization_ratio))),
        ("rows of co-located jobs", str(len(figures.slowdown_ratio))),
        ("mean slowdown", _number(float(figures.slowdown_ratio.mean()) if len(figures.slowdown_ratio) else None)),
        (
            "noise floor (median deviation of repeats)",
            _number(float(np.median(deviations)) if len(deviations) else None),
        ),
        ("R² of line and parabola (Horus: 0.84 to 0.88)", _number(curve.r_squared)),
        ("rows up to and above 100 % summed utilization", f"{curve.rows_below} and {curve.rows_above}"),
        ("error of an additive table on unseen pairs", _number(figures.predicted_error_mean)),
    ]


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _plot(draw: Callable[[Axes, DeviceFigures], None], figures: DeviceFigures) -> str:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, figures)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _utilization(axes: Axes, figures: DeviceFigures) -> None:
    axes.hist(figures.utilization_ratio, bins=np.linspace(0, 1, 21).tolist(), color=BLUE)
    axes.set(title="Utilization of jobs alone", xlabel="utilization", ylabel="jobs")


def _load(axes: Axes, figures: DeviceFigures) -> None:
    axes.scatter(figures.load_ratio, figures.slowdown_ratio, s=9, color=BLUE, alpha=0.6, label="measured")
    axes.axvline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    if len(figures.load_ratio):
        grid = np.linspace(figures.load_ratio.min(), figures.load_ratio.max(), 200)
        label = f"line, parabola (R² {_number(figures.curve.r_squared)})"
        axes.plot(grid, figures.curve.values(grid), color=ORANGE, label=label)
        axes.legend(frameon=False)
    axes.set(title="Slowdown against summed utilization", xlabel="summed utilization", ylabel="slowdown")


def _noise(axes: Axes, figures: DeviceFigures) -> None:
    axes.hist(figures.repeat_deviation, bins=15, color=BLUE)
    axes.axvline(0.05, color=ORANGE)
    axes.set(
        title="Noise floor (line: wanted median)", xlabel="deviation of a repeated slowdown", ylabel="repeated pairs"
    )


def _predicted(axes: Axes, figures: DeviceFigures) -> None:
    axes.scatter(figures.slowdown_ratio, figures.predicted_ratio, s=9, color=BLUE, alpha=0.6)
    if len(figures.slowdown_ratio):
        ends = (float(figures.slowdown_ratio.min()), float(figures.slowdown_ratio.max()))
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
    axes.set(title="An additive table on unseen pairs", xlabel="measured slowdown", ylabel="predicted slowdown")

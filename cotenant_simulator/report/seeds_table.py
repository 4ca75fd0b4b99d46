"""The report of several seeds as a table of at most 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotenant.cli.tables import Column, Row
from cotenant_simulator.report.table import hours, printed

Figures = Mapping[str, Mapping[str, Any]]
"""Rows of one policy by figure."""


def as_seeds_table(report: Mapping[str, Any]) -> str:
    """Return one line per policy: mean completion time with its 95 % interval, alone and over the first policy's."""
    titles = ("DONE", "JCT h", "95 %", "OVER", "95 %", "OOM")
    columns = [Column(title="POLICY", shrinks=True), *(Column(title=title, right=True) for title in titles)]
    by_policy: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in report["policies"]:
        by_policy.setdefault(row["policy"], {})[row["figure"]] = row
    rows = [Row(cells=_cells(policy, figures)) for policy, figures in by_policy.items()]
    seeds = report["seeds"]
    head = (
        f"{report['trace']['jobs']} jobs, cluster {report['cluster']}, predictions {report['predictions']}, "
        f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]})\n"
        f"means over seeds; OVER: over {report['compared_with']}, seed by seed"
    )
    return f"{head}\n{printed(columns, rows)}"


def _cells(policy: str, figures: Figures) -> list[str]:
    stay = figures["jct_mean_s"]
    return [
        policy,
        _number(figures["jobs_finished"]["mean"]),
        hours(stay["mean"]),
        _range(hours(stay["low"]), hours(stay["high"])),
        _ratio(stay["ratio"]),
        _range(_ratio(stay["ratio_low"]), _ratio(stay["ratio_high"])),
        _number(figures["out_of_memory"]["mean"]),
    ]


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _range(low: str, high: str) -> str:
    return "-" if "-" in {low, high} else f"{low} to {high}"

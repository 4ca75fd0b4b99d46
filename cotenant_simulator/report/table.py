"""The report as a table of at most 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cotenant.cli.tables import Column, Row, render_table

WIDTH = 80


def as_table(report: Mapping[str, Any]) -> str:
    """Return one line per policy and what was simulated; times in hours."""
    columns = [
        Column(title="POLICY", shrinks=True),
        *(
            Column(title=title, right=True)
            for title in ("DONE", "JCT h", "P95 h", "QUEUE h", "SPAN h", "GPUS %", "SLOWER", "STOPS", "OOM")
        ),
    ]
    rows = [Row(cells=_cells(policy)) for policy in report["policies"]]
    trace = report["trace"]
    head = f"{trace['jobs']} jobs, cluster {report['cluster']}, predictions {report['predictions']}"
    return f"{head}, seed {report['seed']}\n{printed(columns, rows)}"


def printed(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return a table as it is printed, at most 80 columns wide."""
    console = Console(width=WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(render_table(columns, rows, WIDTH))
    return capture.get().rstrip()


def _cells(policy: Mapping[str, Any]) -> list[str]:
    done = f"{policy['jobs_finished']}"
    if policy["jobs_finished"] != policy["jobs_submitted"]:
        done += f"/{policy['jobs_submitted']}"
    return [
        policy["policy"],
        done,
        *(hours(seconds) if policy["jobs_finished"] else "-" for seconds in _times_s(policy)),
        f"{100 * policy['gpu_allocated_ratio']:.0f}",
        f"{100 * policy['slowdown_ratio']['mean']:.0f} %",
        str(policy["preemptions"]),
        str(policy["out_of_memory"]),
    ]


def _times_s(policy: Mapping[str, Any]) -> tuple[float, ...]:
    jct_s, queueing_s = policy["jct_s"], policy["queueing_s"]
    return jct_s["mean"], jct_s["p95"], queueing_s["mean"], policy["makespan_s"]


def hours(seconds: float | None) -> str:
    """Return a time in hours, with as many decimals as are worth reading; - where there is none."""
    if seconds is None:
        return "-"
    value = seconds / 3_600
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"

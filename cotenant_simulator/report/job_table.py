"""Every job of a report as a table of at most 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotenant.cli.tables import Column, Row
from cotenant.terminal_text import harmless
from cotenant_simulator.report.table import hours, printed

JOBS_MAX = 10_000
"""Most lines that a reader may want to look at."""


def as_job_table(report: Mapping[str, Any]) -> str:
    """Return one line per job and run, times in hours; - = never."""
    jobs = report["jobs"]
    has_seeds = any("seed" in job for job in jobs)
    titles = ("GPUS", "START h", "END h", "JCT h", "QUEUE h", "SLOWER", "OOM")
    columns = [
        *([Column(title="SEED", right=True)] if has_seeds else []),
        Column(title="POLICY", shrinks=True),
        Column(title="JOB", shrinks=True),
        *(Column(title=title, right=True) for title in titles),
    ]
    rows = [Row(cells=[*([str(job["seed"])] if has_seeds else []), *_cells(job)]) for job in jobs[:JOBS_MAX]]
    left_out = len(jobs) - len(rows)
    more = f"\n{left_out:,} further lines are left out here; -o csv has all" if left_out > 0 else ""
    return printed(columns, rows) + more


def _cells(job: Mapping[str, Any]) -> list[str]:
    return [
        job["policy"],
        harmless(job["job_id"]),
        str(job["gpus"]),
        _hours_of_ms(job["first_started_at_ms"]),
        _hours_of_ms(job["finished_at_ms"]),
        hours(job["jct_s"]),
        hours(job["queueing_s"]),
        f"{100 * job['slowdown_ratio']:.0f} %",
        str(job["out_of_memory"]),
    ]


def _hours_of_ms(at_ms: float | None) -> str:
    return hours(None if at_ms is None else at_ms / 1_000)

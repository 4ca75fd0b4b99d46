"""The shadow report for people: a text, and one page for the browser with everything inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from typing import Any

from cotenant_simulator.report.html_document import document, note, table
from scheduler_service.core.reasons.reason_texts import format_quantity

_DAYS_WITHOUT_CALENDAR = 20 * 365
"""No accounting of GPUs is as old as these years after 1970."""
_TIED_BLANK = "\u00a0"
"""No line of a narrow page ends there."""
_Rows = Sequence[tuple[str, ...]]


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report as a text with one table per question."""
    parts = [_facts(report), _assumption(report), *(f"warning: {text}" for text in report["warnings"]), ""]
    for title, head, rows in _tables(report):
        widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
        parts += [title, *(line.rstrip() for line in lines), ""]
    return "\n".join(parts).rstrip().replace(_TIED_BLANK, " ")


def as_page(report: Mapping[str, Any]) -> str:
    """Return the page; equal reports give equal pages."""
    parts = ["<h1>What sharing would have saved</h1>", note(_facts(report)), note(_assumption(report))]
    parts += [f"<p><b>Warning:</b> {escape(text)}</p>" for text in report["warnings"]]
    for title, columns, rows in _tables(report):
        parts.append(f"<h2>{escape(title)}</h2>{table(columns, rows)}")
    return document("What sharing would have saved", parts)


def _facts(report: Mapping[str, Any]) -> str:
    left_out = "".join(f", {count:,} rows left out: {reason}" for reason, count in report["rows_left_out"].items())
    return (
        f"{report['jobs']:,} jobs of {report['path']} on {report['cluster']} GPUs, {report['policy']} against "
        f"{report['exclusive_policy']}{left_out}"
    )


def _assumption(report: Mapping[str, Any]) -> str:
    known = report["jobs_with_measured_demands"]
    told = (
        f"Utilization and memory of {known:,} jobs were measured; how long their steps are and whom they slow down is "
        "not known: each"
        if known
        else "No accounting tells what jobs demand: each"
    )
    return (
        f"{told} is taken for one of the jobs measured in {report['measured']} ({report['device']}), drawn "
        f"{report['seeds']} times; figures are means with the least and the most of all draws. Predictions err by "
        f"{_share(report['prediction_error_ratio'])}; every job accepts {_share(report['max_slowdown_ratio'])} longer "
        f"steps. Jobs of several GPUs are not shared. How long jobs wait changes by sharing and by the order in which "
        f"{report['policy']} starts them (docs/shadow.md)."
    )


def _tables(report: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], _Rows]]:
    days = [
        (_day(day["day"]), _number(day["gpu_hours_exclusive"]), _number(day["gpu_hours_saved"]))
        for day in report["days"]
    ]
    total = ("all", _number(report["gpu_hours_exclusive"]), _number(report["gpu_hours_saved"]))
    slowdown, wait = report["slowdown_ratio"], report["mean_wait_s"]
    costs = [
        ("slowdown of the median job", _percent(slowdown["p50"])),
        ("slowdown that 5 % of the jobs exceed", _percent(slowdown["p95"])),
        ("largest slowdown", _percent(slowdown["max"])),
        ("ends for lack of GPU memory", _number(report["out_of_memory_ends"])),
        ("mean wait as accounted for", _seconds(wait["accounted"]["mean"]) if wait["accounted"] else "not told"),
        ("mean wait with GPUs of their own", _time(wait["exclusive"])),
        ("mean wait while sharing", _time(wait["shared"])),
        ("jobs that start sooner", _number(report["jobs_that_wait_less"])),
        ("jobs that start later", _number(report["jobs_that_wait_longer"])),
    ]
    users = [(row["user"] or "-", _number(row["hours_waited_less"])) for row in report["users"]]
    return [
        ("GPU-hours", ("day", "with GPUs of their own", "saved by sharing"), [*days, total]),
        ("What it costs and brings", ("", "mean (least to most)"), costs),
        ("Who would have waited less", ("user", "hours less (minus: more)"), users),
    ]


def _day(text: str) -> str:
    """Return a date, or the number of the day where a trace counts its time from 0."""
    number = (date.fromisoformat(text) - date(1970, 1, 1)).days + 1
    return text if number > _DAYS_WITHOUT_CALENDAR else f"day{_TIED_BLANK}{number}"


def _number(found: Mapping[str, float]) -> str:
    return f"{found['mean']:z,.1f} ({found['lower']:z,.1f} to {found['upper']:z,.1f})"


def _time(found_s: Mapping[str, float]) -> str:
    mean, lower, upper = (_seconds(found_s[name]) for name in ("mean", "lower", "upper"))
    return f"{mean} ({lower} to {upper})"


def _seconds(duration_s: float) -> str:
    return format_quantity("wait_ms", duration_s * 1_000)


def _percent(found: Mapping[str, float]) -> str:
    return f"{_share(found['mean'])} ({_share(found['lower'])} to {_share(found['upper'])})"


def _share(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"

"""The report as one page for the browser: everything inside it, nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from cotenant_simulator.report.charts import Line, chart, legend, number
from cotenant_simulator.report.gantt import gantt
from cotenant_simulator.report.html_document import document, note, table
from cotenant_simulator.report.json_report import jct_s
from cotenant_simulator.run.records import HOUR_MS, RunResult, UsageInterval
from cotenant_simulator.truth.cluster import Cluster

ROWS_PER_SIDE = 10
_HOUR_S = 3_600.0


def page(report: Mapping[str, Any], results: Sequence[RunResult], cluster: Cluster) -> str:
    """Return the page as text; equal runs give equal pages."""
    trace = report["trace"]
    facts = (
        f"{trace['jobs']} jobs of {trace['path']} on {report['cluster']} ({cluster.gpus} GPUs), "
        f"predictions {report['predictions']}, seed {report['seed']}"
    )
    names = [result.policy for result in results]
    parts = [
        f"<h1>Simulated workload</h1><p class='note'>{escape(facts)}<br>trace sha256 {trace['sha256'][:16]}</p>",
        *(note(warning["message"]) for warning in report["warnings"]),
        legend(names),
        "<h2>Policies</h2>",
        _policies(report["policies"]),
        "<h2>Completion times: share of the jobs that ended within</h2>",
        _completion(results),
        "<h2>GPUs that hold a job</h2>",
        _over_time(results, lambda moment: moment.held_gpus, "GPUs", cluster.gpus),
        "<h2>GPUs that compute: the true utilization of all, at most 1 each</h2>",
        _over_time(results, lambda moment: moment.utilization, "GPUs", cluster.gpus),
        "<h2>Jobs that wait</h2>",
        _over_time(results, lambda moment: moment.waiting_jobs, "jobs", 1.0),
        *(_difference(one, two) for one, two in pairwise(results)),
        *(_gpus(result, cluster) for result in results),
    ]
    return document(f"{Path(trace['path']).name}: {', '.join(names)}", parts)


def _policies(policies: Sequence[Mapping[str, Any]]) -> str:
    titles = ("policy", "finished", "JCT mean h", "p95 h", "max h", "waiting h", "makespan h", "GPUs held", "slower")
    meanings = (
        "JCT: completion time, from submission to end. GPUs held: part of all GPU time in which a job holds the GPU. "
        "slower: how much longer jobs trained than the same work takes alone."
    )
    rows = [
        (
            policy["policy"],
            f"{policy['jobs_finished']} of {policy['jobs_submitted']}",
            *(number(seconds / _HOUR_S) if policy["jobs_finished"] else "-" for seconds in _times_s(policy)),
            f"{100 * policy['gpu_allocated_ratio']:.0f} %",
            f"{100 * policy['slowdown_ratio']['mean']:.0f} %",
        )
        for policy in policies
    ]
    events = [
        (
            policy["policy"],
            *(str(policy[name]) for name in ("preemptions", "migrations", "reshapes", "out_of_memory")),
            ", ".join(f"{code} {count}" for code, count in _most(policy["held_reasons"])) or "no job waited",
        )
        for policy in policies
    ]
    events_titles = ("policy", "stops", "moves", "reshapes", "out of memory", "why jobs waited")
    return table(titles, rows) + note(meanings) + table(events_titles, events)


def _times_s(policy: Mapping[str, Any]) -> tuple[float, ...]:
    jct_s = policy["jct_s"]
    return jct_s["mean"], jct_s["p95"], jct_s["max"], policy["queueing_s"]["mean"], policy["makespan_s"]


def _most(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:3]


def _completion(results: Sequence[RunResult]) -> str:
    lines = []
    for result in results:
        times = sorted(jct_s(job) / _HOUR_S for job in result.jobs if job.is_finished)
        points = [(0.0, 0.0), *((time, 100 * (place + 1) / len(times)) for place, time in enumerate(times))]
        lines.append(Line(name=result.policy, points=points, is_stepped=True))
    return chart(lines, across="time from submission to end (h)", up="jobs (%)", least_top=100.0)


def _over_time(results: Sequence[RunResult], read: Callable[[UsageInterval], float], unit: str, top: float) -> str:
    lines = [
        Line(
            name=result.policy,
            points=[(moment.from_ms / HOUR_MS, read(moment)) for moment in result.usage_intervals],
            is_stepped=True,
        )
        for result in results
    ]
    return chart(lines, across="time (h)", up=unit, least_top=top)


def _difference(one: RunResult, two: RunResult) -> str:
    """Compare two policies job by job: which gain, which lose, and how much."""
    pairs = [
        (jct_s(second) - jct_s(first), first.job_id, jct_s(first), jct_s(second))
        for first, second in zip(one.jobs, two.jobs, strict=True)
        if first.is_finished and second.is_finished
    ]
    if not pairs:
        return ""
    pairs.sort()
    sooner, later = sum(gain < 0 for gain, *_ in pairs), sum(gain > 0 for gain, *_ in pairs)
    points = [(100 * (place + 1) / len(pairs), gain / _HOUR_S) for place, (gain, *_) in enumerate(pairs)]
    title = f"<h2>{escape(two.policy)} against {escape(one.policy)}, job by job</h2>"
    found = note(
        f"Under {two.policy} {sooner} jobs end sooner, {later} later, {len(pairs) - sooner - later} at the same time. "
        f"Below 0: sooner under {two.policy} than under {one.policy}. The table has those that gain and lose most."
    )
    rows = [
        (job_id, number(before / _HOUR_S), number(after / _HOUR_S), f"{gain / _HOUR_S:+.3g}")
        for gain, job_id, before, after in _ends(pairs)
    ]
    picture = chart([Line(name="difference", points=points)], across="jobs, by difference (%)", up="difference (h)")
    return title + found + picture + table(("job", f"{one.policy} h", f"{two.policy} h", "difference h"), rows)


def _ends(pairs: Sequence[tuple[float, str, float, float]]) -> list[tuple[float, str, float, float]]:
    """Return the jobs that gain and those that lose most."""
    if len(pairs) <= 2 * ROWS_PER_SIDE:
        return list(pairs)
    return [*pairs[:ROWS_PER_SIDE], *pairs[-ROWS_PER_SIDE:]]


def _gpus(result: RunResult, cluster: Cluster) -> str:
    gpu_ids = [gpu.gpu_id for node in cluster.nodes for gpu in node.gpus]
    picture = gantt(result.spans, gpu_ids, from_ms=result.began_at_ms, until_ms=result.ended_at_ms)
    told = "One bar per attempt, one colour per job; bars of half the height share a GPU."
    dropped = f" {result.spans_dropped} later bars were not kept." if result.spans_dropped else ""
    return f"<h2>GPUs under {escape(result.policy)}</h2>{note(told + dropped)}{picture}"

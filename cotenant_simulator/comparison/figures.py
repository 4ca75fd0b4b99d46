"""Rows of tables: one for each run, one for each figure of a policy over all seeds, one for each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant_simulator.comparison.intervals import Interval, interval_of, paired_difference, paired_ratio

Document = Mapping[str, Any]
"""A policy or a job as the JSON report has it (`report.json_report`)."""
Row = dict[str, Any]

_NO_FIGURES = frozenset({"policy", "parameters", "held_reasons", "jobs_submitted"})
_OF_FINISHED_JOBS = frozenset(
    {"jct_s", "run_s", "queueing_s", "first_wait_s", "makespan_s", "slowdown_ratio", "finish_time_fairness_rho"}
)
POLICY_COLUMNS: Mapping[str, type] = {
    "policy": str,
    "figure": str,
    "seeds": int,
    "mean": float,
    "low": float,
    "high": float,
    "difference": float,
    "difference_low": float,
    "difference_high": float,
    "ratio": float,
    "ratio_low": float,
    "ratio_high": float,
}
JOB_COLUMNS: Mapping[str, type] = {
    "seed": int,
    "policy": str,
    "job_id": str,
    "submitted_at_ms": int,
    "first_started_at_ms": int,
    "finished_at_ms": int,
    "gpus": int,
    "jct_s": float,
    "queueing_s": float,
    "slowdown_ratio": float,
    "restarts": int,
    "out_of_memory": int,
}


def run_row(seed: int, policy: Document) -> Row:
    """Return one run as a row: seed, policy, jobs, and every figure by its name with the statistic in it.

    Times of jobs are those of the finished ones; None = no job finished.
    """
    row: Row = {"seed": seed, "policy": policy["policy"], "jobs_submitted": policy["jobs_submitted"]}
    for name, value in policy.items():
        if name in _NO_FIGURES:
            continue
        is_known = policy["jobs_finished"] > 0 or name not in _OF_FINISHED_JOBS
        found = value if isinstance(value, Mapping) else {"": value}
        row |= {_figure(name, statistic): one if is_known else None for statistic, one in found.items()}
    return row


def policy_rows(runs: Sequence[Row]) -> list[Row]:
    """Return every figure of every policy over its seeds, with the comparison to the first policy, seed by seed.

    Args:
        runs: Rows of `run_row`; every policy ran every seed.
    """
    by_policy: dict[str, list[Row]] = {}
    for run in sorted(runs, key=lambda run: int(run["seed"])):
        by_policy.setdefault(run["policy"], []).append(run)
    first = by_policy[runs[0]["policy"]] if runs else []
    return [
        {"policy": policy, "figure": figure, **_over_seeds(_column(own, figure), _column(first, figure))}
        for policy, own in by_policy.items()
        for figure in own[0]
        if figure not in {"seed", "policy", "jobs_submitted"}
    ]


def job_row(seed: int, job: Document) -> Row:
    """Return one job of one run as a row."""
    return {"seed": seed, **{name: job[name] for name in JOB_COLUMNS if name != "seed"}}


def _figure(name: str, statistic: str) -> str:
    """Return `jct_mean_s` of `jct_s` and `mean`: the unit stays last."""
    stem, _, unit = name.rpartition("_")
    return f"{stem}_{statistic}_{unit}" if statistic else name


def _column(runs: Sequence[Row], figure: str) -> list[float | None]:
    return [run.get(figure) for run in runs]


def _over_seeds(values: Sequence[float | None], first: Sequence[float | None]) -> Row:
    known = interval_of([value for value in values if value is not None])
    return {
        "seeds": known.count if known is not None else 0,
        **_named(("mean", "low", "high"), known),
        **_named(("difference", "difference_low", "difference_high"), paired_difference(values, first)),
        **_named(("ratio", "ratio_low", "ratio_high"), paired_ratio(values, first)),
    }


def _named(names: tuple[str, str, str], interval: Interval | None) -> Row:
    ends = (interval.mean, interval.low, interval.high) if interval is not None else (None, None, None)
    return dict(zip(names, ends, strict=True))

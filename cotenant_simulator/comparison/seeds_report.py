"""The report of several seeds as JSON: stable keys, no clock, equal bytes for equal runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant_simulator.comparison.figures import policy_rows, run_row
from cotenant_simulator.comparison.intervals import CONFIDENCE
from cotenant_simulator.comparison.runs import Runs
from cotenant_simulator.report.json_report import DECIMALS, Question, as_warnings

SCHEMA = "cotenant.simulate_seeds/1"


def as_seeds_json(question: Question, seeds: Sequence[int], runs: Runs) -> dict[str, object]:
    """Return the report: every figure of every policy with its interval, then every run, then every job if kept."""
    rows = [run_row(seed, policy) for seed, policy in runs.policies]
    return {
        "schema": SCHEMA,
        **question.as_head(),
        "seeds": list(seeds),
        "confidence": CONFIDENCE,
        "compared_with": rows[0]["policy"],
        "policies": [_rounded(row) for row in policy_rows(rows)],
        "runs": [{"seed": seed, **policy} for seed, policy in runs.policies],
        "jobs": [{"seed": seed, **job} for seed, job in runs.jobs],
        "warnings": as_warnings(runs.caveats),
    }


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, DECIMALS) if isinstance(value, float) else value for name, value in row.items()}

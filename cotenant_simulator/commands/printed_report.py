"""A report as it is printed: a table for people, CSV or Parquet for other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant_simulator.comparison.figures import JOB_COLUMNS, POLICY_COLUMNS, Row, job_row, policy_rows, run_row
from cotenant_simulator.report.row_files import as_csv, as_parquet


def as_text(report: Mapping[str, Any], *, form: str, has_jobs: bool) -> str:
    """Return the report as table or csv; with jobs the table has them below, and CSV has nothing else.

    Args:
        report: Of one seed or of several.
        form: table or csv.
        has_jobs: They were asked for.
    """
    if form == "csv":
        return as_csv(*_rows(report, has_jobs=has_jobs))
    # Imported here: CSV needs none of it.
    from cotenant_simulator.report.job_table import as_job_table
    from cotenant_simulator.report.seeds_table import as_seeds_table
    from cotenant_simulator.report.table import as_table

    text = as_seeds_table(report) if "runs" in report else as_table(report)
    return f"{text}\n\n{as_job_table(report)}" if has_jobs else text


def as_bytes(report: Mapping[str, Any], *, has_jobs: bool) -> bytes:
    """Return the report as a Parquet file: every job, or else every figure of every policy.

    Raises:
        InputError: pyarrow is not installed.
    """
    return as_parquet(*_rows(report, has_jobs=has_jobs))


def _rows(report: Mapping[str, Any], *, has_jobs: bool) -> tuple[Sequence[Row], Mapping[str, type]]:
    if has_jobs:
        return [job_row(job.get("seed", report.get("seed", 0)), job) for job in report["jobs"]], JOB_COLUMNS
    if "runs" in report:
        return report["policies"], POLICY_COLUMNS
    return policy_rows([run_row(report["seed"], policy) for policy in report["policies"]]), POLICY_COLUMNS

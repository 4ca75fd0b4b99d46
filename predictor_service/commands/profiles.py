"""profiles: what was measured of running jobs; listing it, exporting it, deleting it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from cotenant.system_clock import now_ms
from predictor_service.errors import InvalidRequestError, TrainingDataError
from predictor_service.outcome_journal import FILE_NAME as JOURNAL_FILE
from predictor_service.outcome_journal import OutcomeJournal
from predictor_service.profile_store.export import SUFFIXES, export_folder, export_table
from predictor_service.profile_store.intake import open_profiles
from predictor_service.profile_store.measurement_window import MeasurementWindow, StoredMeasurementWindow
from predictor_service.profile_store.rows import make_rows
from predictor_service.profile_store.store import DAY_MS, FILE_NAME, ProfileStore
from predictor_service.settings import SETTINGS, Settings

_PATH: Final = click.Path(path_type=Path)
_KEY: Final = re.compile(r"[0-9a-f]{12,64}")
_JOB_WIDTH: Final = 14
"""On a terminal, with the gap behind; `forget --job-key` takes that much of a key."""
_FLAGS: Final = {
    "foreign_load": "another process used the device: no training, no pair",
    "unsteady": "step times scattered: no training",
}
_OUTPUT: Final = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")


@click.group("profiles")
def profiles() -> None:
    """List, export and forget what agents measured of running jobs."""


_STATE: Final = SETTINGS.options("state_dir")


@contextmanager
def _store(settings: Settings) -> Iterator[ProfileStore]:
    if not any((settings.state_dir / name).is_file() for name in (FILE_NAME, JOURNAL_FILE)):
        raise TrainingDataError(
            f"{settings.state_dir} has no profiles", remedy="they come from a service that ran there while jobs did"
        )
    store = open_profiles(settings.state_dir, rows_max=settings.profiles_rows_max, days=settings.profiles_days)
    with closing(store):
        yield store


@profiles.command("status")
@_STATE
@_OUTPUT
def status_command(settings: Settings, output: str) -> None:
    """Show how much is kept, for how long, and what was refused."""
    with _store(settings) as store:
        status, stored = store.status(), store.read()
    rows = make_rows(_readable(stored))
    answer: dict[str, Any] = {
        "schema": "cotenant.profiles/1",
        "stretches": status.windows,
        "jobs": status.jobs,
        "solo_rows": sum(row.status == "ok" for row in rows.solo),
        "pair_rows": len(rows.pairs),
        "no_row": dict(Counter(item.fault for item in stored if item.fault) + rows.left_out),
        "flagged": dict(Counter(flag for item in _readable(stored) for flag in item.quality_flags)),
        "unknown_fields": sorted(frozenset[str]().union(*(item.unknown for item in stored))),
        "refused": status.refused,
        "oldest_ms": status.oldest_ms,
        "newest_ms": status.newest_ms,
        "file_bytes": status.file_bytes,
        "days_kept": settings.profiles_days,
        "rows_max": settings.profiles_rows_max,
    }
    click.echo(json.dumps(answer) if output == "json" else _as_lines(answer))


def _as_lines(answer: dict[str, Any]) -> str:
    lines = [
        f"windows     {answer['stretches']:,}, of {answer['jobs']:,} jobs, {answer['file_bytes']:,} bytes",
        f"rows        {answer['solo_rows']:,} alone, {answer['pair_rows']:,} of pairs",
        f"arrived     {_date(answer['oldest_ms'])} to {_date(answer['newest_ms'])}",
        f"kept        {answer['days_kept']} days, at most {answer['rows_max']:,}",
    ]
    lines += [f"no row      {count:,}: {reason}" for reason, count in sorted(answer["no_row"].items())]
    lines += [f"flagged     {count:,}: {_FLAGS.get(flag, flag)}" for flag, count in sorted(answer["flagged"].items())]
    lines += [f"refused     {count:,}: {reason}" for reason, count in sorted(answer["refused"].items())]
    if answer["unknown_fields"]:
        lines.append(f"unknown     {', '.join(answer['unknown_fields'])}: kept, but written by another version")
    return "\n".join(lines)


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d") if at_ms else "never"


@profiles.command("list")
@_STATE
@_OUTPUT
def list_command(settings: Settings, output: str) -> None:
    """List the jobs that were measured, each by its key."""
    with _store(settings) as store:
        windows = _readable(store.read())
    jobs = [_summary(members) for members in _by_job(windows)]
    if output == "json":
        click.echo(json.dumps({"schema": "cotenant.profiles/1", "jobs": jobs}))
        return
    width = _JOB_WIDTH if _is_terminal() else 2 + max((len(job["job_key"]) for job in jobs), default=0)
    click.echo(
        f"{'job':<{width}}{'device':<22}{'batch':>8}{'alone':>7}{'shared':>8}{'step ms':>11}{'busy':>7}{'peak MiB':>10}"
    )
    for job in jobs:
        figures = (
            f"{_cell(job['step_ms'], '.2f'):>11}{_cell(job['utilization_ratio'], '.0%'):>7}"
            f"{_cell(job['memory_peak_mib'], '.0f'):>10}"
        )
        counts = f"{job['batch']:>8}{job['alone']:>7}{job['beside']:>8}"
        click.echo(f"{job['job_key'][: width - 2]:<{width}}{job['device']:<22}{counts}{figures}")


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _by_job(windows: Sequence[MeasurementWindow]) -> list[list[MeasurementWindow]]:
    groups: dict[tuple[str, str], list[MeasurementWindow]] = {}
    for window in windows:
        groups.setdefault((window.device, window.job.key), []).append(window)
    return [members for _, members in sorted(groups.items(), key=lambda item: item[0])]


def _summary(members: Sequence[MeasurementWindow]) -> dict[str, Any]:
    alone = [window for window in members if not window.others]
    busy = [item.utilization_ratio for item in alone if item.utilization_ratio is not None]
    peaks = [item.memory_peak_bytes for item in members if item.memory_peak_bytes is not None]
    return {
        "job_key": members[0].job.key,
        "device": members[0].device,
        "graph_sha256": members[0].job.graph_sha256,
        "batch": members[0].job.settings.global_batch_size,
        "alone": len(alone),
        "beside": len(members) - len(alone),
        "step_ms": median(window.step_ms for window in alone) if alone else None,
        "utilization_ratio": median(busy) if busy else None,
        "memory_peak_mib": max(peaks) / 2**20 if peaks else None,
    }


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


@profiles.command("export", epilog="Example:  cotenant profiles export --to FOLDER")
@click.option("--to", "target", type=_PATH, required=True, help="FILE.csv, FILE.parquet, or a folder to make.")
@click.option("--kind", type=click.Choice(["solo", "pairs"]), default="solo", show_default=True, help="Rows of a FILE.")
@_STATE
def export_command(target: Path, kind: str, settings: Settings) -> None:
    """Write rows of the profile schema: one file, or a data-set folder with both kinds and the graphs."""
    with _store(settings) as store:
        windows = _readable(store.read())
    if target.suffix in SUFFIXES:
        exported = export_table(windows, target, kind)
    else:
        exported = export_folder(windows, target, settings.state_dir / "graphs")
    for reason, count in sorted(exported.left_out.items()):
        click.echo(f"{count:,} left out: {reason}", err=True)
    click.echo(f"{exported.solo:,} rows alone, {exported.pairs:,} of pairs, {exported.graphs:,} graphs", err=True)
    click.echo(target)


@profiles.command("forget")
@click.option("--all", "everything", is_flag=True, help="Everything.")
@click.option("--job-key", help="What was measured and predicted of this job; its first 12 digits suffice.")
@click.option("--device", help="What was measured on this device type.")
@click.option("--older-than-days", type=click.IntRange(0), help="What came earlier than that.")
@_STATE
def forget_command(
    *,
    everything: bool,
    job_key: str | None,
    device: str | None,
    older_than_days: int | None,
    settings: Settings,
) -> None:
    """Delete profiles, predictions and outcomes for good; several conditions must hold together."""
    if everything == (job_key is not None or device is not None or older_than_days is not None):
        raise InvalidRequestError(
            "no condition selects what to forget", remedy="give conditions, or --all and none of them"
        )
    before_ms = None if older_than_days is None else now_ms() - older_than_days * DAY_MS
    with _store(settings) as store:
        key = None if job_key is None else _whole_key(store, job_key)
        predictions = outcomes = 0
        if (settings.state_dir / JOURNAL_FILE).is_file():
            with closing(OutcomeJournal(settings.state_dir / JOURNAL_FILE)) as journal:
                predictions, outcomes = journal.forget(before_ms=before_ms, job_key=key, device=device)
        # Last: a running service reloads its measurements when this file was changed.
        windows = store.forget(before_ms=before_ms, job_key=key, device=device)
    click.echo(f"forgotten: {windows:,} profiles, {predictions:,} predictions, {outcomes:,} outcomes")


def _whole_key(store: ProfileStore, start: str) -> str:
    """The key that begins so; as it is given when the store has no such job, for the journal may."""
    if not _KEY.fullmatch(start):
        raise InvalidRequestError(f"{start!r} is no job key", remedy="give 12 to 64 of its hexadecimal digits")
    keys = {window.job.key for window in _readable(store.read()) if window.job.key.startswith(start)}
    if len(keys) > 1:
        raise InvalidRequestError(f"{len(keys)} jobs begin with {start!r}", remedy="give more characters")
    return keys.pop() if keys else start


def _readable(stored: Sequence[StoredMeasurementWindow]) -> list[MeasurementWindow]:
    return [item.window for item in stored if item.window is not None and not item.fault]

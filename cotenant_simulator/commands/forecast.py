"""forecast: a live scheduler's question when its waiting jobs start; started by the scheduler, never by people."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cotenant.system_clock import cpu_s as used_cpu_s
from cotenant_simulator.errors import InputError
from scheduler_service.core.errors import CodecError, PolicyError

CPU_S_MAX = 20
"""Most that a forecast may cost; at half of it no further run begins."""
_NICENESS = 10


@click.command(hidden=True)
@click.argument("question", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--cpu-s", type=click.IntRange(1, 3_600), default=CPU_S_MAX, show_default=True, help="Most CPU seconds.")
def forecast(question: Path, cpu_s: int) -> None:
    """Print when the waiting jobs of a live scheduler start, as JSON.

    QUESTION is the scheduler's file: the engine's snapshot, the instant, and what would be different.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    os.nice(_NICENESS)
    click.echo(json.dumps(answer(_read(question), cpu_s=cpu_s)))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            "engine": found["engine"],
            "now_ms": int(found["now_ms"]),
            "report_interval_ms": int(found["report_interval_ms"]),
            "changes": dict(found.get("changes") or {}),
        }
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no question of a scheduler: {error!r}; write one anew") from error


def answer(question: Mapping[str, Any], *, cpu_s: int) -> Mapping[str, Any]:
    """Return the expected starts as the scheduler reads them.

    Args:
        question: `engine`, `now_ms`, `report_interval_ms` (between two reports of a node) and `changes` (what would be
            different).
        cpu_s: Most CPU seconds.

    Raises:
        InputError: It cannot be simulated.
    """
    # Imported here: the other verbs need none of it.
    from cotenant_simulator.run.expected_starts import CONFIDENCE, expect_starts
    from cotenant_simulator.run.present_changes import changed_snapshot
    from cotenant_simulator.run.present_run import PresentRun

    began_s = used_cpu_s()
    try:
        snapshot, policy = changed_snapshot(question["engine"], question["changes"])
        now_ms, interval_ms = question["now_ms"], question["report_interval_ms"]
        found = expect_starts(
            lambda seed: PresentRun(snapshot, now_ms=now_ms, seed=seed, policy=policy, report_interval_ms=interval_ms),
            now_ms=now_ms,
            goes_on=lambda: used_cpu_s() - began_s < cpu_s / 2,
        )
    except (CodecError, PolicyError, ValueError, TypeError) as error:
        raise InputError(str(error)) from error
    jobs = {job_id: asdict(one) for job_id, one in found.jobs.items()}
    return {"confidence": CONFIDENCE, "runs": found.runs, "jobs": jobs}

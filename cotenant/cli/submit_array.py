"""submit --array, submit --sweep: many jobs from one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.cli.array_tasks import ArrayTasks, make_tasks
from cotenant.cli.formats import OutputFormat, emit_data
from cotenant.cli.session import Session, show, tell
from cotenant.client_errors import InputError
from cotenant.v1 import scheduling_pb2


def plan_array(flags: Mapping[str, Any], spec: scheduling_pb2.JobSpec, *, wait: bool) -> ArrayTasks | None:
    """Returns the tasks that flags ask for; None = one job is wanted.

    Raises:
        InputError: They make no array, or somebody shall wait for it.
    """
    array, sweep = flags.get("array"), flags.get("sweep")
    if array is None and sweep is None:
        return None
    if wait:
        raise InputError(
            "--wait waits for one job, not for an array", remedy="submit without it; `cotenant ps` shows it"
        )
    return make_tasks(array, Path(sweep) if sweep is not None else None, spec)


def submit_array(
    session: Session, spec: scheduling_pb2.JobSpec, array: ArrayTasks, *, request_id: str, dry_run: bool, force: bool
) -> None:
    """Hands an array in and prints its id."""
    spec.array_running_max = array.running_max
    answer = session.scheduler().submit_array(
        spec, array.tasks, request_id=request_id, validate_only=dry_run, force=force
    )
    for warning in answer.warnings:
        tell(f"warning: {warning.code}: {warning.message}", style="yellow")
    if dry_run:
        tell(f"dry run: {len(array.tasks)} tasks would be accepted; nothing was submitted")
    elif session.output is OutputFormat.NAME:
        show(answer.array_id)
    elif session.output.is_for_people:
        show(
            f"{answer.array_id}  {spec.name}  {len(answer.job_ids)} tasks, {answer.job_ids[0]} to {answer.job_ids[-1]}"
        )
    else:
        emit_data({"array_id": answer.array_id, "job_ids": list(answer.job_ids)}, session.output)

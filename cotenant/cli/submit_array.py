"""submit --array, submit --sweep: many jobs from one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.array_terms import fill_placeholders
from cotenant.cli.array_tasks import ArrayTasks, make_tasks
from cotenant.cli.formats import OutputFormat, emit_data
from cotenant.cli.session import Session, show, tell
from cotenant.client_errors import InputError
from cotenant.counted_nouns import agreed
from cotenant.v1 import scheduling_pb2

_SCRIPTS = (".py", ".sh")


def plan_array(flags: Mapping[str, Any], spec: scheduling_pb2.JobSpec, *, wait: bool) -> ArrayTasks | None:
    """Returns the tasks that flags ask for; None = one job is wanted.

    Raises:
        InputError: They make no array, or --wait is given.
    """
    array, sweep = flags.get("array"), flags.get("sweep")
    if array is None and sweep is None:
        return None
    if wait:
        raise InputError(
            "--wait waits for one job, not for an array", remedy="submit without it, then `cotenant wait ARRAY`"
        )
    return make_tasks(array, Path(sweep) if sweep is not None else None, spec)


def content_of_first(content: Mapping[str, Any], array: ArrayTasks) -> dict[str, Any]:
    """Returns the keys of a job file as the first task has them: index and values in place of their names."""
    first = array.tasks[0]
    values = {**first.values, "index": str(first.index)}
    command, environment = content.get("command"), content.get("environment")
    filled = dict(content)
    if isinstance(command, list):
        filled["command"] = [fill_placeholders(str(word), values) for word in command]
    if isinstance(environment, dict):
        filled["environment"] = {name: fill_placeholders(str(text), values) for name, text in environment.items()}
    return filled


def commands_of_scripts(command: Sequence[str], array: ArrayTasks) -> list[list[str]]:
    """Returns the command once for each script that its tasks start; the other words keep their placeholders."""

    def filled(place: int, word: str, values: Mapping[str, str]) -> str:
        found = fill_placeholders(word, values)
        return found if found.endswith(_SCRIPTS) or (place and command[place - 1] == "-m") else word

    every = (tuple(filled(place, word, task.values) for place, word in enumerate(command)) for task in array.tasks)
    return [list(each) for each in dict.fromkeys(every)]


def with_index(content: Mapping[str, Any], array: ArrayTasks) -> dict[str, Any]:
    """Returns the same with the variable that the node gives the first task; no submission may name it."""
    environment = {**(content.get("environment") or {}), "COTENANT_ARRAY_INDEX": str(array.tasks[0].index)}
    return {**content, "environment": environment}


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
        tell(agreed(f"dry run: {len(array.tasks)} task(s) would be accepted; nothing was submitted"))
    elif session.output is OutputFormat.NAME:
        show(answer.array_id)
    elif session.output.is_for_people:
        ids = " to ".join(dict.fromkeys((answer.job_ids[0], answer.job_ids[-1])))
        show(agreed(f"{answer.array_id}  {spec.name}  {len(answer.job_ids)} task(s), {ids}"))
    else:
        emit_data({"array_id": answer.array_id, "job_ids": list(answer.job_ids)}, session.output)

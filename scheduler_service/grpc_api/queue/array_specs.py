"""From the spec that the tasks of an array have in common to the spec of each."""

from __future__ import annotations

from cotenant.array_terms import fill_placeholders
from cotenant.job_name import NAME_CHARACTERS_MAX
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.validation import require, spec_violations


def task_spec(spec: scheduling_pb2.JobSpec, task: scheduling_pb2.ArrayTask, array_id: str) -> scheduling_pb2.JobSpec:
    """Return the spec of one task: its index and its values in place of their names, in arguments and variables.

    Raises:
        InvalidRequestError: With its values the command or the environment has grown too large.
    """
    values = {**task.values, "index": str(task.index)}
    found = scheduling_pb2.JobSpec()
    found.CopyFrom(spec)
    found.command[:] = [fill_placeholders(word, values) for word in spec.command]
    for name, text in spec.environment.items():
        found.environment[name] = fill_placeholders(text, values)
    if spec.name:
        ending = f"-{task.index}"
        found.name = spec.name[: NAME_CHARACTERS_MAX - len(ending)] + ending
    found.array_id, found.array_index = array_id, task.index
    require(spec_violations(found))
    return found

"""Flags of `submit` that are about the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cotenant.cli.job_lookup import ARRAY_PREFIX, find_job, find_jobs, is_pattern
from cotenant.cli.list_options import join_texts
from cotenant.client import SchedulerClient
from cotenant.client_errors import InputError
from cotenant.v1 import scheduling_pb2

QUEUE_FLAGS = (
    click.option("--priority", metavar="CLASS", help="low, normal, high or a number; higher ones go first."),
    click.option("--hold", is_flag=True, default=None, help="It waits for `cotenant release`."),
    click.option(
        "--after",
        metavar="JOB[,JOB]",
        multiple=True,
        callback=join_texts,
        help="It starts when these jobs or arrays have finished.",
    ),
    click.option("--after-any", is_flag=True, default=None, help="It starts when these have ended in any way."),
    click.option(
        "--time-limit", metavar="TIME", help="It is stopped with a checkpoint then, e.g. 2h; pauses are free."
    ),
    click.option("--deadline", metavar="WHEN", help="+8h or 2030-01-31T08:00Z; you are told when it cannot be met."),
    click.option("--on-stall", type=click.Choice(["none", "restart"]), help="When no step comes.  [default: none]"),
    click.option(
        "--device",
        "devices",
        metavar="TYPE[,TYPE]",
        multiple=True,
        callback=join_texts,
        help="Types that it may run on, e.g. a100,l4.",
    ),
    click.option("--tenant", help="Whose share and quota it counts for.  [default: the caller's own]"),
)
QUEUE_KEYS = ("priority", "hold", "after", "after_any", "time_limit", "deadline", "on_stall", "devices", "tenant")

ARRAY_FLAGS = (
    click.option("--array", metavar="1-20%4", help="One job per index, {index} in arguments; %4 = four at once."),
    click.option(
        "--sweep",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="One job per row of a CSV or JSON file, {name} in arguments.",
    ),
)


def queue_content(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that were given as keys of a job file."""
    return {name: flags[name] for name in QUEUE_KEYS if flags.get(name) is not None}


def find_parents(client: SchedulerClient, spec: scheduling_pb2.JobSpec) -> None:
    """Replaces names, starts of ids and patterns by ids, in the jobs that a job waits for; arrays have their ids.

    Raises:
        NotFoundError: No such job.
        InputError: Several jobs could be meant, or none is named where any end counts.
    """
    if spec.after_any and not spec.after_job_ids:
        raise InputError("after_any names no job", remedy="name the jobs in addition: --after job-12 --after-any")
    found = dict.fromkeys(job_id for name in spec.after_job_ids for job_id in _parents(client, name))
    spec.after_job_ids[:] = found


def _parents(client: SchedulerClient, name: str) -> list[str]:
    if is_pattern(name):
        return find_jobs(client, [name], phases=scheduling_pb2.JobPhase.values())
    return [name if name.startswith(ARRAY_PREFIX) else find_job(client, name).job_id]

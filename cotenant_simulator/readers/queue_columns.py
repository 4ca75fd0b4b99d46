"""Columns that every job list may have in addition: the class of a job, and its tenant."""

from __future__ import annotations

import re
from dataclasses import replace

from cotenant_simulator.readers.rows import Row
from cotenant_simulator.truth.trace import TraceJob
from scheduler_service.core.queue_terms import PRIORITIES, PRIORITY_MAX

PRIORITY_COLUMN, TENANT_COLUMN = "priority", "tenant"
_TENANT = re.compile(r"[A-Za-z0-9._-]{0,63}")


def with_queue_columns(row: Row, job: TraceJob) -> TraceJob:
    """Return a job with the class and the tenant of its row, where the list has these columns.

    Raises:
        TraceError: A class or a tenant cannot be.
    """
    request = job.request
    if row.cells.get(TENANT_COLUMN):
        if not _TENANT.fullmatch(row.text(TENANT_COLUMN)):
            raise row.error(f"{TENANT_COLUMN} must be at most 63 letters, digits or . _ -")
        request = replace(request, tenant=row.text(TENANT_COLUMN))
    if row.cells.get(PRIORITY_COLUMN):
        request = replace(request, terms=replace(request.terms, priority=_priority(row)))
    return job if request is job.request else replace(job, request=request)


def _priority(row: Row) -> int:
    named = PRIORITIES.get(row.text(PRIORITY_COLUMN).lower())
    if named is not None:
        return named
    number = row.number(PRIORITY_COLUMN, least=-PRIORITY_MAX, most=PRIORITY_MAX)
    if number != int(number):
        raise row.error(f"{PRIORITY_COLUMN} is {row.text(PRIORITY_COLUMN)}, not low, normal, high or a whole number")
    return int(number)

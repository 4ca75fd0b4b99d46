"""A watch over jobs that survives a restart of the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from cotenant import system_clock
from cotenant.client import SchedulerClient
from cotenant.client_errors import TlsMismatchError, UnavailableError
from cotenant.v1 import scheduling_pb2

RETRY_FIRST_MS = 200
RETRY_LONGEST_MS = 2_000


class WatchKind(Enum):
    """The kind of a watch event."""

    JOB = "job"
    SNAPSHOT_END = "snapshot_end"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One thing that a watcher learns.

    Attributes:
        job: The job as it now is; only with kind JOB. After a reconnection every job comes again.
        missed_changes: How many changes were left out before this one, at most, since we read too slowly; this job and
            those that follow are as they are now.
    """

    kind: WatchKind
    job: scheduling_pb2.Job | None = None
    missed_changes: int = 0


def watch_jobs(
    client: SchedulerClient,
    job_ids: Sequence[str] = (),
    *,
    patience_ms: int = 60_000,
    stop: threading.Event | None = None,
) -> Iterator[WatchEvent]:
    """Yields the jobs, then every change, reconnecting as long as it takes less than `patience_ms`.

    Args:
        client: Client of the scheduler that is watched.
        job_ids: Which jobs; none named = all.
        patience_ms: How long the scheduler may be unreachable without interruption.
        stop: Ends the watch between two events.

    Raises:
        UnavailableError: Unreachable for longer than `patience_ms`.
        ServiceError: The scheduler refused.
    """
    last_contact_ms = system_clock.steady_ms()
    retry_ms = RETRY_FIRST_MS
    while stop is None or not stop.is_set():
        is_open = False
        try:
            for response in client.open_watch(job_ids):
                last_contact_ms, retry_ms, is_open = system_clock.steady_ms(), RETRY_FIRST_MS, True
                if response.overflowed:
                    break
                yield from _as_events(response)
        except TlsMismatchError:
            raise
        except UnavailableError:
            now_ms = system_clock.steady_ms()
            # Of jobs that wait nothing may be heard for hours: an open watch was in contact until it broke.
            last_contact_ms = now_ms if is_open else last_contact_ms
            if now_ms - last_contact_ms > patience_ms:
                raise
            yield WatchEvent(kind=WatchKind.DISCONNECTED)
        system_clock.wait_ms(retry_ms, stop)
        retry_ms = min(2 * retry_ms, RETRY_LONGEST_MS)


def _as_events(response: scheduling_pb2.WatchJobsResponse) -> Iterator[WatchEvent]:
    for number, job in enumerate(response.jobs):
        yield WatchEvent(kind=WatchKind.JOB, job=job, missed_changes=0 if number else response.missed_changes)
    if response.snapshot_end:
        yield WatchEvent(kind=WatchKind.SNAPSHOT_END)
    elif not response.jobs:
        yield WatchEvent(kind=WatchKind.JOB, job=response.job, missed_changes=response.missed_changes)

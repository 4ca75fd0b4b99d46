"""What cotenant needs of an engine. Adapters keep no truth: everything is read from the engine again at every round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.records import EngineState, Placement


class Engine(Protocol):
    """An engine that runs jobs on GPUs.

    Every order may be repeated, and every one may come too late: a job that has ended or moved on meanwhile raises
    `EngineRefusedError`, and changes nothing.
    """

    def read(self) -> EngineState:
        """Return the cluster as it is now.

        Raises:
            EngineUnreachableError: It does not answer, or not in a form that is understood.
        """

    def annotate(self, job_id: str, note: str) -> None:
        """Write a note into a job, for its user.

        Raises:
            EngineRefusedError: It does not take it.
        """

    def place(self, placement: Placement) -> None:
        """Give a held job its GPU in one order; it stays held.

        Raises:
            EngineRefusedError: It does not take it; the job is held as before.
        """

    def release(self, job_id: str) -> None:
        """Let a placed job start.

        Raises:
            EngineRefusedError: It does not take it.
        """

    def release_all(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Let placed jobs start, in as few orders as the engine takes; return which were refused, and why."""

    def hold(self, job_id: str) -> None:
        """Keep a job that has not started from starting until it is released.

        Raises:
            EngineRefusedError: It has started, or is gone.
        """

    def stop(self, job_id: str, *, grace_s: int) -> None:
        """End a job for good, first by the signal on which it writes a checkpoint.

        Args:
            job_id: Which job.
            grace_s: Until it is killed, from 1; engines with one grace for all jobs take their own.

        Raises:
            EngineRefusedError: It is gone, or the engine would start it again.
        """

    def requeue(self, job_id: str, *, grace_s: int) -> None:
        """End a job in the same way, so that the engine queues it again.

        Raises:
            EngineRefusedError: It is gone, or the engine would not start it again.
        """


def order_each(order: Callable[[str], None], job_ids: Iterable[str]) -> dict[str, str]:
    """Give an order for each of several jobs; return which were refused, and why."""
    refused: dict[str, str] = {}
    for job_id in job_ids:
        try:
            order(job_id)
        except EngineRefusedError as error:
            refused[job_id] = error.message
    return refused

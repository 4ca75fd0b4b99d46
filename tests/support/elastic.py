"""Elastic jobs as plain numbers: a name, what is left by number of GPUs in seconds, and the GPUs that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import JobRequest
from tests.support.scheduling import job, node, pending, prediction, running, store, view

BATCH = 840
"""Divisible by every number of GPUs up to 8."""
STEPS = 1_000

RemainingTimes = Mapping[int, float]
"""Seconds that a job still needs, by number of GPUs."""


def request(name: str, remaining_times: RemainingTimes) -> JobRequest:
    """Return a job that may have the numbers of GPUs in `remaining_times`."""
    counts = tuple(sorted(remaining_times))
    return job(name, gpus=counts[0], allowed_gpus=counts, global_batch_size=BATCH, steps_total=STEPS)


def elastic_view(
    *,
    gpus: int,
    held: Mapping[str, tuple[RemainingTimes, Sequence[int]]],
    waiting: Mapping[str, RemainingTimes],
    now_ms: int = 10**9,
) -> SchedulingView:
    """Return a view of one node; a running job has the GPUs with these numbers.

    Args:
        gpus: Of the node.
        held: Running jobs by name: what they still need, and where they are.
        waiting: Pending jobs by name, in order of arrival.
        now_ms: All running jobs started at 0.
    """
    all_jobs = {**{name: remaining_times for name, (remaining_times, _) in held.items()}, **waiting}
    known = store(
        [
            prediction(
                f"key-{name}",
                step_ms={
                    (count, BATCH // count): seconds * 1_000 / STEPS for count, seconds in remaining_times.items()
                },
            )
            for name, remaining_times in all_jobs.items()
        ]
    )
    return view(
        nodes=[node("n0", gpus)],
        waiting=[
            pending(request(name, remaining_times), index)
            for index, (name, remaining_times) in enumerate(waiting.items())
        ],
        holding=[
            running(request(name, remaining_times), [f"n0.{one}" for one in where])
            for name, (remaining_times, where) in held.items()
        ],
        predictions=known,
        now_ms=now_ms,
    )

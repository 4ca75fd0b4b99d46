"""How many workers and servers each job gets: the marginal gains of Algorithm 1, all jobs at once.

What a job gets next does not depend on the other jobs; only whether it still gets it does. So the steps of all jobs are
worked out in one pass, each with its gain, and then taken in the order in which a queue by gain would take them.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 4.1, Eq. 9 and
    function ALLOC of Algorithm 1. Eq. 9 divides by the amount of the other task's dominant resource; here, as its text
    states, by the share of the cluster that the task takes of the resource it takes most of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

RemainingTimeOf = Callable[[Integers, Integers, Integers], Floats]
"""(jobs, workers, servers) -> time that each still needs; infinite where it is unknown or not allowed."""

_NO_MORE = np.iinfo(np.int64).max
_SHARE_MIN = 1e-12
_ROOM = 1e-9
"""Part of the capacity that rounding may hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What is there and what tasks take; resources in any units, the same everywhere.

    Attributes:
        capacity: Of the cluster, by resource; infinite = not counted.
        available: What of it may be given now.
        worker: By job and resource.
        server: By job and resource; ignored for jobs without servers.
        worker_counts: The numbers of workers that each job may have, ascending, filled up with 0; by job.
        has_servers: Whether a job needs parameter servers.
        server_counts: The numbers of servers that each job may have, ascending, filled up with 0, by job; None = one
            and more for all that need some.
    """

    capacity: Floats
    available: Floats
    worker: Floats
    server: Floats
    worker_counts: Integers
    has_servers: npt.NDArray[np.bool_]
    server_counts: Integers | None = None

    @property
    def first_servers(self) -> Integers:
        """The fewest servers with which each job may start; 0 = it needs none."""
        fewest = np.int64(1) if self.server_counts is None else self.server_counts[:, 0]
        return np.where(self.has_servers, fewest, 0)

    def more_servers(self, jobs: Integers, servers: Integers) -> Integers:
        """Return the next larger number of servers that these jobs may have; 0 = there is none."""
        if self.server_counts is None:
            return servers + 1
        larger = np.where(self.server_counts[jobs] > servers[:, None], self.server_counts[jobs], _NO_MORE)
        least = larger.min(axis=1, initial=_NO_MORE)
        return np.where(least < _NO_MORE, least, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """Workers and servers by job; 0 workers = the job waits."""

    workers: Integers
    servers: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of many jobs in the order of a queue by gain; each leads to so many workers and servers."""

    jobs: Integers
    needs: Floats
    workers: Integers
    servers: Integers


def allocate_tasks(demands: Demands, remaining_time_of: RemainingTimeOf) -> TaskCounts:
    """Give every job its first workers and servers, in order, and then further ones by marginal gain.

    A job whose next task does not fit gets nothing more; the others go on.

    Args:
        demands: What is there and what tasks take, jobs in the order of precedence.
        remaining_time_of: How long jobs still need.
    """
    left = demands.available * (1 + _ROOM)
    is_served = _serve_first(demands, left)
    workers = np.where(is_served, demands.worker_counts[:, 0], 0) if len(is_served) else np.zeros(0, dtype=np.int64)
    servers = np.where(is_served, demands.first_servers, 0)
    steps = _steps_by_gain(demands, remaining_time_of, np.flatnonzero(is_served))
    taken = _fitting(steps, left)
    np.maximum.at(workers, steps.jobs[taken], steps.workers[taken])
    np.maximum.at(servers, steps.jobs[taken], steps.servers[taken])
    return TaskCounts(workers=workers, servers=servers)


def dominant_shares(needs: Floats, capacity: Floats) -> Floats:
    """Return the largest share of any resource that each row takes."""
    has_any = capacity > 0
    shares = needs[..., has_any] / capacity[has_any]
    return np.asarray(np.maximum(shares.max(axis=-1, initial=0.0), _SHARE_MIN))


def _serve_first(demands: Demands, left: Floats) -> npt.NDArray[np.bool_]:
    """Give first tasks to jobs in order and take them from `left`; one that does not fit lets others pass."""
    first = demands.worker * demands.worker_counts[:, :1] + demands.server * demands.first_servers[:, None]
    served = np.zeros(len(first), dtype=bool)
    for job, need in enumerate(first):
        if (need <= left).all():
            left -= need
            served[job] = True
    return served


def _steps_by_gain(demands: Demands, remaining_time_of: RemainingTimeOf, served: Integers) -> _Steps:
    """Work out every step of every job that gains something, and sort them as a queue by gain would take them."""
    worker_shares = dominant_shares(demands.worker, demands.capacity)
    server_shares = dominant_shares(demands.server, demands.capacity)
    counts = np.concatenate((demands.worker_counts, np.zeros((len(demands.worker_counts), 1), dtype=np.int64)), axis=1)
    jobs = served
    places = np.zeros(len(jobs), dtype=np.int64)
    servers = demands.first_servers[jobs]
    remaining_times = remaining_time_of(jobs, counts[jobs, 0], servers)
    # A step behind a smaller gain of the same job is reached when that one is, so it counts as the smaller.
    lowest = np.full(len(jobs), np.inf)
    gains_found = [np.zeros(0)]
    found = [_Steps(jobs=jobs[:0], needs=demands.worker[:0], workers=jobs[:0], servers=jobs[:0])]
    while len(jobs):
        workers, more = counts[jobs, places], counts[jobs, places + 1]
        with_worker = remaining_time_of(jobs, np.maximum(more, 1), servers)
        more_servers = demands.more_servers(jobs, servers)
        added_servers = more_servers - servers
        with_server = remaining_time_of(jobs, workers, np.maximum(more_servers, 1))
        worker_gains = _gains(remaining_times, with_worker, (more - workers) * worker_shares[jobs], more > 0)
        may_serve = demands.has_servers[jobs] & (more_servers > 0)
        server_gains = _gains(remaining_times, with_server, added_servers * server_shares[jobs], may_serve)
        is_server = server_gains > worker_gains
        gains = np.maximum(server_gains, worker_gains)
        goes_on = gains > 0
        jobs, is_server = jobs[goes_on], is_server[goes_on]
        places, servers, lowest = places[goes_on], servers[goes_on], lowest[goes_on]
        remaining_times = np.where(is_server, with_server[goes_on], with_worker[goes_on])
        added = (more - workers)[goes_on, None] * demands.worker[jobs]
        added_servers = np.where(is_server, added_servers[goes_on], 0)
        needs = np.where(is_server[:, None], added_servers[:, None] * demands.server[jobs], added)
        places, servers = places + ~is_server, servers + added_servers
        lowest = np.minimum(lowest, gains[goes_on])
        gains_found.append(lowest)
        found.append(_Steps(jobs=jobs, needs=needs, workers=counts[jobs, places], servers=servers))
    # Sorting is stable, and the steps of one job stand in their order: ties go to the first job.
    owners = np.concatenate([steps.jobs for steps in found])
    order = np.lexsort((owners, -np.concatenate(gains_found)))
    return _Steps(
        jobs=owners[order],
        needs=np.concatenate([steps.needs for steps in found])[order],
        workers=np.concatenate([steps.workers for steps in found])[order],
        servers=np.concatenate([steps.servers for steps in found])[order],
    )


def _gains(before: Floats, after: Floats, shares: Floats, is_possible: npt.NDArray[np.bool_]) -> Floats:
    """Return the time saved per share of the cluster; nothing where a time is unknown."""
    is_known = is_possible & np.isfinite(before) & np.isfinite(after)
    saved = np.subtract(before, after, where=is_known, out=np.zeros(len(before)))
    return np.asarray(saved / np.maximum(shares, _SHARE_MIN))


def _fitting(steps: _Steps, left: Floats) -> Integers:
    """Return the steps that fit, in order; after its first misfit a job gets nothing more."""
    if not len(steps.jobs):
        return np.zeros(0, dtype=np.int64)
    misfits = np.flatnonzero((steps.needs.cumsum(axis=0) > left).any(axis=1))
    if not len(misfits):
        return np.arange(len(steps.jobs))
    first = int(misfits[0])
    room: list[float] = (left - steps.needs[:first].sum(axis=0)).tolist()
    # The smallest need of any later step: once that does not fit, nothing does.
    least = np.minimum.accumulate(steps.needs[::-1], axis=0)[::-1][first:].tolist()
    needs, owners = steps.needs[first:].tolist(), steps.jobs[first:].tolist()
    taken, refused = list(range(first)), set()
    for position, (owner, need) in enumerate(zip(owners, needs, strict=True)):
        if any(amount > have for amount, have in zip(least[position], room, strict=True)):
            break
        if owner in refused:
            continue
        if all(amount <= have for amount, have in zip(need, room, strict=True)):
            room = [have - amount for amount, have in zip(need, room, strict=True)]
            taken.append(first + position)
        else:
            refused.add(owner)
    return np.array(taken, dtype=np.int64)

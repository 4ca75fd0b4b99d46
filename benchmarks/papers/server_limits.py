"""How short completion times with parameter servers can be at all, however numbers and places are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from benchmarks.papers.parameter_servers import NodeTasks, ServerTraining
from benchmarks.papers.server_jobs import ServerJob, plan

HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job needs at least.

    Attributes:
        released_s: The round after its submission.
        alone_s: Time on the whole cluster with its fastest numbers.
        work_s: Seconds of containers with its most efficient numbers.
    """

    released_s: float
    alone_s: float
    work_s: float


def least_jct_h(jobs: Sequence[ServerJob], *, shares_links: bool = False) -> float:
    """Return a lower bound of the mean completion time, if Theorem 1's equal parts are the best places.

    The larger of two: no job is faster than alone on the cluster; and one machine of all containers' power, on which
    every job is as efficient as it can be, is best used by the job with the least remaining work.

    Args:
        jobs: By any order; at least one.
        shares_links: The tasks on a node share its link, here only those of the job itself; otherwise each has its own.
    """
    needs = [_need(job, shares_links=shares_links) for job in jobs]
    submitted_s = fmean(job.submitted_s for job in jobs)
    alone_s = fmean(need.released_s + need.alone_s for need in needs)
    return (max(alone_s, fmean(_shortest_rest_first(needs))) - submitted_s) / HOUR_S


def _need(job: ServerJob, *, shares_links: bool) -> Need:
    numbers, power = range(1, plan()["tasks_max"] + 1), sum(plan()["nodes"]["containers"])
    step_s = {
        (w, p): _best_step_s(job.training, w, p, shares_links=shares_links)
        for w in numbers
        for p in numbers
        if w + p <= power
    }
    return Need(
        released_s=ceil(job.submitted_s / plan()["interval_s"]) * plan()["interval_s"],
        alone_s=job.steps * min(step_s.values()),
        work_s=job.steps * min(sum(counts) * one_s for counts, one_s in step_s.items()),
    )


def _best_step_s(training: ServerTraining, workers: int, servers: int, *, shares_links: bool) -> float:
    """Return the time of a step in equal parts on the best number of nodes."""
    containers: Sequence[int] = plan()["nodes"]["containers"]
    fewest, most = ceil((workers + servers) / max(containers)), min(len(containers), workers + servers)
    return min(
        training.step_ms(_equal_parts(workers, servers, nodes, shares_links=shares_links)) / 1_000
        for nodes in range(fewest, most + 1)
    )


def _equal_parts(workers: int, servers: int, nodes: int, *, shares_links: bool) -> list[NodeTasks]:
    parts = []
    for node in range(nodes):
        here = workers // nodes + (node < workers % nodes), servers // nodes + (node >= nodes - servers % nodes)
        ratio = plan()["containers_of_table_2"] / max(sum(here), 1) if shares_links else 1.0
        parts.append(NodeTasks(workers=here[0], servers=here[1], bandwidth_ratio=ratio))
    return parts


def _shortest_rest_first(needs: Sequence[Need]) -> list[float]:
    """Return when the jobs end on one machine with the power of all containers, in s."""
    power = sum(plan()["nodes"]["containers"])
    coming = sorted(needs, key=lambda need: need.released_s)
    now_s, remaining_s, ends_s = 0.0, list[float](), list[float]()
    while coming or remaining_s:
        if not remaining_s:
            now_s = max(now_s, coming[0].released_s)
        while coming and coming[0].released_s <= now_s:
            remaining_s.append(coming.pop(0).work_s / power)
        shortest_s = min(remaining_s)
        remaining_s.remove(shortest_s)
        if coming and coming[0].released_s < now_s + shortest_s:
            remaining_s.append(shortest_s - (coming[0].released_s - now_s))
            now_s = coming[0].released_s
        else:
            now_s += shortest_s
            ends_s.append(now_s)
    return ends_s

"""Optimus: one GPU for every job, then every further one to the job that gains most by it.

What it does:
    Predicts how long each job still runs with every number of workers (and parameter servers). Every job gets its
    smallest number; then workers and servers go one by one to the job that saves most time per share of the cluster
    that they take, until nothing is left or no job gains. Jobs are placed evenly on as few nodes as suffice, the
    smallest first. Running jobs are reshaped towards their numbers, each at most once per interval, never stopped.

Why:
    The sum of completion times falls most where the next GPU helps most; a job on two nodes waits less for its
    gradients than one on five.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 4: Eq. 9,
    functions ALLOC and PLACE of Algorithm 1, Theorem 1; section 3.2 for the few short runs before (explored_counts).

Where we differ:
    Eq. 6 and 9 with their slips put right (optimus_allocation.py states how). Jobs without server_demand exchange
    gradients among themselves and gain by workers only. The number of servers gets room on the hosts and is in the
    reason; a job of a running cluster begins with the fewest that it allows and is measured with a few numbers
    (explored_servers) before one is chosen, as nothing is foreseen of servers. GPUs that a job was
    given and cannot use, because they do not lie evenly, go to jobs that were given none. A running job keeps at least
    its smallest number, and one whose number cannot be had now starts with the next smaller one instead of pausing.
    What fits on one node goes to the fullest such node, not the emptiest: it is as fast there, and wide jobs find room.
    GPUs of different kinds count as one resource in the choice of numbers. A job without a profile gets its smallest
    number.

Cost:
    O(tasks log tasks) for the numbers, all jobs in one pass, and O(tasks log nodes) for the places; 4,000 jobs with
    100,000 tasks on 16,000 nodes take about half a second (benchmarks/decisions_optimus.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from itertools import product
from math import inf

import numpy as np

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.replica_groups import server_counts, with_servers
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Start
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.policy_parameters import require_positive
from scheduler_service.core.predictions.task_speeds import Tasks, task_step_ms_of
from scheduler_service.core.records import JobPrediction, JobRequest
from scheduler_service.policies.elasticity.counted_starts import CountedStarts
from scheduler_service.policies.elasticity.exploration import explorations, server_explorations, settled_explorations
from scheduler_service.policies.elasticity.optimus_allocation import Demands, Floats, Integers, allocate_tasks
from scheduler_service.policies.elasticity.optimus_placement import TaskGroup, place_evenly
from scheduler_service.policies.elasticity.reshaping import profiled_remaining_ms
from scheduler_service.policies.elasticity.task_demand import TaskRoom, pair_demand

EXPLORED_COUNTS_MAX = 8
_RESOURCES = 3
"""GPUs, CPU cores, host memory: what a node has the most free of the first of these is the emptiest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus:
    """Marginal gains over numbers of workers and servers."""

    interval_ms: int = field(
        default=1_200_000, metadata={"description": "a running job is reshaped at most once in this time, in ms"}
    )

    explored_counts: int = field(
        default=0,
        metadata={
            "description": "numbers of GPUs on which a kind of job first runs until it was measured there; 0 = none"
        },
    )

    explored_servers: int = field(
        default=3,
        metadata={
            "description": "numbers of parameter servers with which a kind of job first runs until it was measured, "
            "of those that it allows; 0 = none"
        },
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_positive(interval_ms=self.interval_ms)
        if not 0 <= self.explored_counts <= EXPLORED_COUNTS_MAX:
            raise PolicyParameterError(f"explored_counts must be from 0 to {EXPLORED_COUNTS_MAX}")
        if not 0 <= self.explored_servers <= EXPLORED_COUNTS_MAX:
            raise PolicyParameterError(f"explored_servers must be from 0 to {EXPLORED_COUNTS_MAX}")

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return reshapes, then one decision per pending job."""
        places = _Places(view)
        explored = explorations(view, self.explored_counts) if self.explored_counts else {}
        tried = {
            job_id: servers
            for job_id, servers in server_explorations(view, self.explored_servers).items()
            if job_id not in explored
        }
        settling = settled_explorations(view)
        starts = CountedStarts(
            view,
            remaining_ms=self.interval_ms,
            explored=explored.keys() | tried.keys() | settling,
            choose=places.choose,
            placed=places.take,
            forms=places.forms,
        )
        jobs = _JobTable(view, starts)
        counts = allocate_tasks(jobs.demands(places.room), jobs.remaining_time_of)
        wanted = {job_id: int(counts.workers[row]) for row, job_id in enumerate(jobs.job_ids)} | explored
        wanted |= {job_id: len(view.running[job_id].assignments) for job_id in tried}
        places.servers = {job_id: int(counts.servers[row]) for row, job_id in enumerate(jobs.job_ids)} | tried
        waiting = sorted(view.pending, key=lambda job: _size_order(job, wanted, places.servers))
        decisions = starts.carry_out(waiting, wanted, places.servers, tried.keys())
        return [_with_servers(one, places) for one in decisions]


def _size_order(job: PendingJob, wanted: Mapping[str, int], servers: Mapping[str, int]) -> tuple[int, int, str]:
    """Order jobs as they are placed: the smallest first."""
    job_id = job.request.job_id
    return wanted.get(job_id, 0) + servers.get(job_id, 0), job.submitted_at_ms, job_id


def _with_servers(decision: Decision, places: _Places) -> Decision:
    """Add the number of servers to the reason of a job that starts with some, and to its start on a running cluster."""
    started = places.started_servers.get(decision.job_id)
    count = started or places.servers.get(decision.job_id, 0)
    if not count or not isinstance(decision, Start):
        return decision
    numbers = {**decision.reason.numbers, "servers_count": count}
    return replace(decision, reason=replace(decision.reason, numbers=numbers), servers=started)


def needs_servers(request: JobRequest) -> bool:
    """Return whether a job needs parameter servers, as many as this policy chooses."""
    return request.server_demand is not None


def task_demands(request: JobRequest) -> tuple[Floats, Floats]:
    """Return what one worker and one server take; a worker holds one GPU."""
    server = request.server_demand
    alone = np.zeros(_RESOURCES)
    if server is not None:
        alone = np.array([0.0, server.cpu_cores, float(server.host_memory_bytes)])
    in_pair = 1.0 if request.worker_demand is not None else request.replicas.servers / request.gpus
    return np.maximum(pair_demand(request) - alone * in_pair, 0.0), alone


class _JobTable:
    """The jobs whose numbers are chosen, as rows, in the order of precedence.

    Args:
        view: The cluster.
        starts: For the numbers that jobs may have.

    Attributes:
        job_ids: By row.
    """

    def __init__(self, view: SchedulingView, starts: CountedStarts) -> None:
        self._view = view
        self._starts = starts
        self._devices = sorted({entry.gpu.device for entry in view.gpus.values()})
        jobs: list[PendingJob | RunningJob] = [view.running[job_id] for job_id in starts.adjustable]
        jobs += [job for job in view.pending if starts.counts[job.request.job_id]]
        remaining_times = {job.request.job_id: self._remaining_times(job) for job in jobs}
        self._jobs = sorted(jobs, key=lambda job: self._precedence(job, remaining_times[job.request.job_id]))
        self.job_ids = [job.request.job_id for job in self._jobs]
        self._remaining_ms = _dense([remaining_times[job_id] for job_id in self.job_ids])

    def _precedence(
        self, job: PendingJob | RunningJob, remaining_times: Mapping[tuple[int, int], float]
    ) -> tuple[object, ...]:
        """A running job keeps its first GPUs; then the shortest first."""
        least = self._starts.counts[job.request.job_id][0]
        least_servers = (server_counts(job.request) or (1,))[0] if needs_servers(job.request) else 0
        remaining_ms = remaining_times.get((least, least_servers), inf)
        return isinstance(job, PendingJob), remaining_ms, job.submitted_at_ms, job.request.job_id

    def _remaining_times(self, job: PendingJob | RunningJob) -> dict[tuple[int, int], float]:
        """Return how long a job still runs, by (workers, servers), on the device that is fastest for it."""
        request = job.request
        found: dict[tuple[int, int], float] = {}
        for device in self._devices:
            prediction = self._view.predictions.job(request.key, device)
            if prediction is None:
                continue
            if needs_servers(request):
                left = max(request.steps_total - job.steps_done, 0)
                remaining_times = {tasks: left * step_ms for tasks, step_ms in self._task_times(request, prediction)}
            else:
                known = (
                    (count, profiled_remaining_ms(request, prediction, steps_done=job.steps_done, gpus=count))
                    for count in self._starts.counts[request.job_id]
                )
                remaining_times = {
                    (count, 0): float(remaining_ms) for count, remaining_ms in known if remaining_ms is not None
                }
            for tasks, remaining_ms in remaining_times.items():
                found[tasks] = min(remaining_ms, found.get(tasks, inf))
        return found

    def _task_times(self, request: JobRequest, prediction: JobPrediction) -> Iterable[tuple[Tasks, float]]:
        """Return the step times of a job with servers: as its snapshot states them, or as they were measured."""
        allowed = server_counts(request)
        if not allowed:
            return prediction.task_step_ms.items()
        asked = product(self._starts.counts[request.job_id], allowed)
        known = ((tasks, task_step_ms_of(prediction, tasks)) for tasks in asked)
        return [(tasks, step_ms) for tasks, step_ms in known if step_ms is not None]

    def remaining_time_of(self, rows: Integers, workers: Integers, servers: Integers) -> Floats:
        """Return how long these rows still run with so many workers and servers; infinite = unknown."""
        _, most_workers, most_servers = self._remaining_ms.shape
        is_known = (workers < most_workers) & (servers < most_servers)
        found = self._remaining_ms[rows, np.where(is_known, workers, 0), np.where(is_known, servers, 0)]
        return np.where(is_known, found, inf)

    def demands(self, room: TaskRoom) -> Demands:
        """Return what there is and what these jobs take."""
        capacity = sum(room.capacity.values(), np.zeros(_RESOURCES))
        available = sum(room.left.values(), np.zeros(_RESOURCES))
        for job in self._jobs:
            if isinstance(job, RunningJob):
                available = available + pair_demand(job.request) * len(job.assignments)
        tasks = [task_demands(job.request) for job in self._jobs]
        counts = [self._starts.counts[job_id] for job_id in self.job_ids]
        widest = max(map(len, counts), default=1)
        return Demands(
            capacity=capacity,
            available=np.maximum(available, 0.0),
            worker=np.array([worker for worker, _ in tasks]).reshape(-1, _RESOURCES),
            server=np.array([server for _, server in tasks]).reshape(-1, _RESOURCES),
            worker_counts=np.array([one + [0] * (widest - len(one)) for one in counts], dtype=np.int64).reshape(
                -1, widest
            ),
            has_servers=np.array([needs_servers(job.request) for job in self._jobs], dtype=np.bool_),
            server_counts=self._allowed_servers(),
        )

    def _allowed_servers(self) -> Integers | None:
        """Return the numbers of servers of jobs that state them, as rows; None = no job does, as in snapshots."""
        allowed = [server_counts(job.request) for job in self._jobs]
        widest = max(map(len, allowed), default=0)
        if not widest:
            return None
        return np.array([[*one, *[0] * (widest - len(one))] for one in allowed], dtype=np.int64)


def _dense(remaining_times: Sequence[Mapping[tuple[int, int], float]]) -> Floats:
    """Return times by row, workers and servers; infinite where nothing is known."""
    workers = max((tasks[0] for row in remaining_times for tasks in row), default=0)
    servers = max((tasks[1] for row in remaining_times for tasks in row), default=0)
    table = np.full((len(remaining_times), workers + 1, servers + 1), inf)
    for place, row in enumerate(remaining_times):
        for tasks, remaining_ms in row.items():
            table[(place, *tasks)] = remaining_ms
    return table


class _Places:
    """Chooses GPUs by Theorem 1.

    Attributes:
        room: What is left on the nodes.
        servers: Servers by job id, once they are chosen.
        started_servers: Those of the jobs of a running cluster that start, by job id.
    """

    def __init__(self, view: SchedulingView) -> None:
        self.room = TaskRoom(view)
        self.servers: Mapping[str, int] = {}
        self.started_servers: dict[str, int] = {}
        self._needs: dict[tuple[str, ...], Mapping[str, Floats]] = {}

    def forms(self, request: JobRequest) -> Sequence[JobRequest]:
        """Return a job with the servers that were chosen for it, then with fewer: not every host has room for them."""
        counts = server_counts(request)
        if len(counts) < 2:
            return [request]
        most = self.servers.get(request.job_id, request.replicas.servers)
        allowed = [count for count in counts if count <= most] or counts[:1]
        return [with_servers(request, count) for count in reversed(allowed)]

    def choose(
        self, ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...] | None:
        """Return free GPUs: of the fullest node that suffices, else evenly on the fewest emptiest; None = none do."""
        groups = _groups(request.gpus, by_node, is_one_node=ledger.view.nodes_per_job_max == 1)
        found = (self._spread(ledger, request, by_node, group) for group in groups)
        return next((gpu_ids for gpu_ids in found if gpu_ids is not None), None)

    def take(self, request: JobRequest, gpu_ids: tuple[str, ...]) -> None:
        """Occupy what the workers and servers of a job need on the nodes of the GPUs that were chosen for it last."""
        if request.replicas.servers:
            self.started_servers[request.job_id] = request.replicas.servers
        for node_id, need in self._needs[gpu_ids].items():
            self.room.left[node_id] -= need

    def _spread(
        self, ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]], nodes: Sequence[str]
    ) -> tuple[str, ...] | None:
        worker, server = task_demands(request)
        group = TaskGroup(
            workers=request.gpus,
            servers=self._servers_of(request),
            worker_demand=tuple(worker.tolist()),
            server_demand=tuple(server.tolist()),
        )
        free = [(float(len(by_node[node_id])), *self.room.left[node_id][1:].tolist()) for node_id in nodes]
        (placed,) = place_evenly(free, [group])
        nodes_max = ledger.view.nodes_per_job_max
        if not placed or (nodes_max and len(placed) > nodes_max):
            return None
        for part in placed:
            node = ledger.view.nodes[nodes[part.node]]
            if not ledger.host_fits(node, request, gpus_here=part.workers, gpus=request.gpus):
                return None
        gpu_ids = tuple(gpu_id for part in placed for gpu_id in by_node[nodes[part.node]][: part.workers])
        self._needs[gpu_ids] = {nodes[part.node]: worker * part.workers + server * part.servers for part in placed}
        return gpu_ids

    def _servers_of(self, request: JobRequest) -> int:
        if not needs_servers(request):
            return 0
        return request.replicas.servers or self.servers.get(request.job_id, 0) or 1


def _groups(gpus: int, by_node: Mapping[str, Sequence[str]], *, is_one_node: bool) -> Iterator[Sequence[str]]:
    """Yield the nodes to try together: each that suffices, the fullest first, then all of them, the emptiest first."""
    wide_enough = [(len(free), node_id) for node_id, free in by_node.items() if len(free) >= gpus]
    heapify(wide_enough)  # nearly always the first one does
    while wide_enough:
        yield [heappop(wide_enough)[1]]
    if not is_one_node:
        yield sorted(by_node, key=lambda node_id: (-len(by_node[node_id]), node_id))

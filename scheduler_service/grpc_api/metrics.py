"""What Prometheus can read: counters of the loop, gauges taken from the state when asked. No job id is a label."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cotenant.metrics_page import MetricsPage
from scheduler_service.adapters.agents.agent_refusals import Refusal
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event, JobFailed, JobProgressed, JobStarted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.tenants import DEFAULT_TENANT
from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.grpc_api.jobs.job_reasons import present_reason

_DECISION_BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
_WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 3_600, 4 * 3_600, 24 * 3_600)
_LOOK_S_MAX = 5.0
"""A loop that does not answer for so long is not healthy."""
GPU_STATES = ("free", "allocated", "shared", "releasing", "unhealthy", "unreachable", "cordoned")


class Metrics:
    """Counts what the loop handles and looks at the state when asked.

    Args:
        state: Returns the engine's state; called in the loop's thread only.
    """

    def __init__(
        self,
        *,
        state: Callable[[], ClusterState],
        sessions: AgentSessions,
        now_ms: Callable[[], int],
        storage_failure: Callable[[], str],
    ) -> None:
        self.registry = CollectorRegistry()
        self._state = state
        self._sessions = sessions
        self._now_ms = now_ms
        self._storage_failure = storage_failure
        self._events = Counter(
            "cotenant_scheduler_events", "Events handled, by kind.", ["kind"], registry=self.registry
        )
        self._commands = Counter(
            "cotenant_scheduler_commands", "Commands given, by kind.", ["kind"], registry=self.registry
        )
        self._failures = Counter(
            "cotenant_scheduler_job_failures",
            "Attempts that failed, by exit class.",
            ["exit_class"],
            registry=self.registry,
        )
        self._decision_s = Histogram(
            "cotenant_scheduler_decision_latency_seconds",
            "Time to handle one event, policy included.",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self._wait_s = Histogram(
            "cotenant_scheduler_first_wait_seconds",
            "Time from submission until the job's process first ran, its launch included.",
            buckets=_WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._completion_s = Histogram(
            "cotenant_scheduler_job_completion_seconds",
            "Time from submission to success.",
            buckets=_WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._counted_at_ms = 0
        self._counted: set[str] = set()
        self.registry.register(self)

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Count one event with what followed."""
        kind = type(event).__name__
        self._events.labels(kind).inc()
        self._decision_s.observe(duration_ns / 1e9)
        for command in commands:
            self._commands.labels(type(command).__name__).inc()
        if isinstance(event, JobFailed):
            self._failures.labels(event.exit_class).inc()
        job = self._state().jobs.get(getattr(event, "job_id", ""))
        if job is None:
            return
        if isinstance(event, JobStarted | JobProgressed):
            self._observe_first_start(job)
        if kind == "JobFinished" and job.phase is Phase.FINISHED and job.times.finished_at_ms == event.at_ms:
            self._completion_s.observe((event.at_ms - job.times.submitted_at_ms) / 1000)

    def _observe_first_start(self, job: JobRecord) -> None:
        """Count a job whose process was first seen to run just now, by its story; the first progress may come first."""
        now_ms = self._state().now_ms
        if now_ms != self._counted_at_ms:
            self._counted_at_ms = now_ms
            self._counted.clear()
        starts_ms = [line.at_ms for line in job.history if line.kind == "started"]
        is_whole = bool(job.history) and job.history[0].kind == "submit"
        job_id = job.request.job_id
        if starts_ms == [now_ms] and is_whole and job_id not in self._counted:
            self._counted.add(job_id)
            self._wait_s.observe((now_ms - job.times.submitted_at_ms) / 1000)

    def batch_handled(self) -> None:
        """Do nothing: gauges are taken when asked for."""

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this instant."""
        state = self._state()
        yield self._queue_depth(state)
        yield self._jobs(state)
        yield _gpus(state)
        yield self._heartbeat_ages()
        yield self._agent_refusals()
        yield _gauge(
            "cotenant_scheduler_nodes_connected", "Nodes whose agent is connected.", len(self._sessions.connected)
        )
        yield _gauge(
            "cotenant_scheduler_storage_writable", "1 while facts can be stored.", int(not self._storage_failure())
        )
        yield from _tenants(state)
        policy = GaugeMetricFamily("cotenant_scheduler_policy_info", "The policy in force.", labels=["policy"])
        policy.add_metric([state.policy], 1)
        yield policy

    def _queue_depth(self, state: ClusterState) -> Metric:
        family = GaugeMetricFamily(
            "cotenant_scheduler_queue_depth", "Pending jobs by the reason that they wait for.", labels=["reason"]
        )
        reasons = Tally(present_reason(state, state.jobs[job_id]).code for job_id in state.in_phase(Phase.PENDING))
        for code, jobs in sorted(reasons.items()):
            family.add_metric([code], jobs)
        return family

    def _jobs(self, state: ClusterState) -> Metric:
        family = GaugeMetricFamily("cotenant_scheduler_jobs", "Jobs known, by phase.", labels=["phase"])
        for phase in Phase:
            family.add_metric([phase.value], len(state.in_phase(phase)))
        return family

    def _agent_refusals(self) -> Metric:
        family = CounterMetricFamily(
            "cotenant_scheduler_agent_refusals", "Requests and reports of agents that were ignored.", labels=["kind"]
        )
        for refusal in Refusal:
            family.add_metric([refusal.value], self._sessions.refusals.counts[refusal])
        return family

    def _heartbeat_ages(self) -> Metric:
        family = GaugeMetricFamily(
            "cotenant_scheduler_agent_heartbeat_age_seconds", "Since an agent was last heard.", labels=["node"]
        )
        now_ms = self._now_ms()
        for node_id, session in sorted(self._sessions.connected.items()):
            family.add_metric([node_id], (now_ms - session.last_heard_at_ms) / 1000)
        return family


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _gpus(state: ClusterState) -> Metric:
    family = GaugeMetricFamily("cotenant_scheduler_gpus", "GPUs by what they do.", labels=["state"])
    tally = Tally(_gpu_state(state, view) for view in state.gpus.values())
    for name in GPU_STATES:
        family.add_metric([name], tally[name])
    return family


def _gpu_state(state: ClusterState, view: GpuView) -> str:
    if not state.nodes[view.node_id].connected:
        return "unreachable"
    if not view.gpu.healthy:
        return "unhealthy"
    if view.is_releasing:
        return "releasing"
    if view.job_ids:
        return "shared" if len(view.job_ids) > 1 else "allocated"
    return "cordoned" if state.nodes[view.node_id].is_cordoned else "free"


def _tenants(state: ClusterState) -> Iterator[Metric]:
    """Yield what tenants hold and have had; those without a rule of their own are one, for anyone may invent them."""
    rules = state.tenants.rules
    if rules is None:
        return
    held, had_s = Tally[str](), Tally[str]()
    for tenant in (*state.tenants.known(), DEFAULT_TENANT):
        label = tenant if tenant in rules.rules else DEFAULT_TENANT
        held[label] += state.tenants.held_gpus(tenant)
        had_s[label] += round(state.tenants.used_gpu_ms(tenant, state.now_ms) / 1_000)
    families = (
        (
            "cotenant_scheduler_tenant_gpus",
            "GPUs that the jobs of a tenant hold; a shared one for each of its jobs.",
            held,
        ),
        ("cotenant_scheduler_tenant_gpu_seconds", "GPU time of a tenant that still counts, as it fades.", had_s),
    )
    for name, text, values in families:
        family = GaugeMetricFamily(name, text, labels=["tenant"])
        for label in sorted(held):
            family.add_metric([label], values[label])
        yield family


def serve_metrics(address: str, registry: CollectorRegistry, failure: Callable[[], str]) -> MetricsPage:
    """Serve these metrics, which are taken in the running loop's thread.

    Args:
        address: HOST:PORT.
        registry: Of what is shown.
        failure: Returns why the service is not ready; empty = it is.

    Raises:
        InputError: The address is none, or another program has it.
    """
    loop = asyncio.get_running_loop()

    async def make(call: Callable[[], object]) -> None:
        call()

    def look(call: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(make(call), loop).result(timeout=_LOOK_S_MAX)

    return MetricsPage(
        address, show=lambda: (CONTENT_TYPE_LATEST, generate_latest(registry)), failure=failure, look=look
    )

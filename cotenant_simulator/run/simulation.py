"""One run: facts into the scheduler's own engine, its commands carried out on simulated machines.

The engine and the policy are those of the live scheduler; this package plays clock, agents and predictor. Nothing here
decides anything.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cotenant_simulator.run.accounts import Accounts, Curve, check_conservation
from cotenant_simulator.run.attempts import GpuOccupancy
from cotenant_simulator.run.event_queue import EventPriority
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.run.outages import Outages
from cotenant_simulator.run.records import JobResult, RunResult, RunSettings
from cotenant_simulator.run.simulation_state import SimulationState
from cotenant_simulator.truth.cluster import Cluster
from cotenant_simulator.truth.kinds import OWN_KEY_MARK
from cotenant_simulator.truth.predictions import Predictor
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core import commands, events, fit_events
from scheduler_service.core.engine import MakePolicy, SchedulerEngine
from scheduler_service.core.jobs.job_records import RejectedDecision
from scheduler_service.core.queue_events import TenantsChosen
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import PREPARED_STARTS, REPORT_INTERVAL_MS
from scheduler_service.policy_registry import make_policy

ENDED_JOBS_MAX = 1_000
"""Ended jobs that the engine keeps; results are kept here."""
IDLE_TIMERS_MAX = 10_000
"""Timers in a row that may fire without anything running or arriving before the run counts as stuck."""
JOBS_BETWEEN_ADVANCES = 64
ALLOCATIONS_PER_COLLECTION = 50_000
"""Records outlive Python's own 700 allocations, and nearly none is in a cycle: a twentieth of a run went into looking.
As many as in the service."""
GRAPH_OF_TRACE = "trace"
"""Stands for the graph of jobs whose trace has none; the simulated predictor does not need it."""
PAUSES = "stop_signal"
"""What simulated nodes say of themselves: jobs can be paused there."""
FAULT = "POLICY_FAILED"
"""Code of the holds where the policy raised, or answered what cannot be read."""

Observer = Callable[[events.Event, Sequence[commands.Command]], None]


class Simulation:
    """Runs one trace under one policy.

    Args:
        trace: The jobs with their arrival times, and their ground truth.
        cluster: The machines.
        predictor: Answers the engine's questions.
        settings: Policy, seed, costs of changes, failures.
        observe: Called with every event and the commands that followed.
        advance: Called with the number of ended jobs, now and then, for a progress bar.
        make: Builds the policy, where it is none of the scheduler's own.

    Attributes:
        engine: The scheduler's own.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        predictor: Predictor,
        settings: RunSettings,
        *,
        observe: Observer | None = None,
        advance: Callable[[int], None] | None = None,
        make: MakePolicy = make_policy,
    ) -> None:
        self._trace, self._predictor, self._cluster = trace, predictor, cluster
        self._observe, self._advance = observe, advance
        self._events = 0
        self._idle_timers = 0
        self.engine = SchedulerEngine(
            make_policy=make,
            policy=settings.policy,
            parameters=settings.parameters,
            seed=settings.seed,
            nodes_per_job_max=settings.nodes_per_job_max,
            ended_jobs_max=ENDED_JOBS_MAX,
            report_interval_ms=settings.report_interval_ms or REPORT_INTERVAL_MS,
            learns_speeds=settings.learns_speeds,
        )
        prepares = settings.charges.prepared_restart_ms is not None
        means = (PAUSES, PREPARED_STARTS) if prepares else (PAUSES,)
        cluster = self._cluster = replace(cluster, nodes=[replace(node, enforcements=means) for node in cluster.nodes])
        nodes = {node.node_id: node for node in cluster.nodes}
        occupancy = GpuOccupancy(
            truth=trace.truth,
            gpus={gpu.gpu_id: gpu for node in cluster.nodes for gpu in node.gpus},
            checkpoint_interval_ms=settings.charges.checkpoint_interval_ms,
        )
        self._simulation = SimulationState(
            settings=settings,
            truth=trace.truth,
            engine=self.engine,
            occupancy=occupancy,
            accounts=Accounts(occupancy=occupancy, curve=Curve() if settings.keeps_history else None),
            tell=self._tell,
        )
        self._machines = Machines(self._simulation, nodes)
        self._outages = Outages(self._simulation, self._machines)
        self._orders: dict[type[commands.Command], Callable[[Any], None]] = {
            commands.LaunchJob: self._machines.launch,
            commands.PrepareJob: self._machines.prepare,
            commands.StopJob: self._machines.stop,
            commands.PauseJob: self._machines.pause,
            commands.ResumeJob: self._machines.resume,
            commands.RequestPrediction: self._predict,
            commands.RequestPairPredictions: self._predict_pairs,
            commands.RequestSpeedFit: self._fit_no_speed,
            commands.RequestTaskSpeedFit: self._fit_no_task_speed,
            commands.WakeAt: self._wake,
        }

    def run(self) -> RunResult:
        """Run until every job has ended or nothing can happen any more.

        Raises:
            BrokenSimulationError: An invariant does not hold.
        """
        with _collecting_seldom():
            return self._run()

    def _run(self) -> RunResult:
        simulation, jobs = self._simulation, self._trace.jobs
        for node in self._cluster.nodes:
            self._outages.join(node)
        if simulation.settings.tenants is not None:
            self._tell(TenantsChosen(at_ms=simulation.now_ms, rules=simulation.settings.tenants))
        if jobs:
            simulation.event_queue.add(jobs[0].submitted_at_ms, EventPriority.SUBMISSION, self._submit, 0)
        running = simulation.occupancy.attempts
        while simulation.event_queue and simulation.ended < len(jobs) and (running or not self._is_stuck()):
            at_ms, act, subject = simulation.event_queue.pop()
            if at_ms > simulation.now_ms:
                simulation.advance(at_ms)
            act(subject)
            simulation.end_appointment()
        return self._result()

    def _is_stuck(self) -> bool:
        """Nothing runs, no job arrives, and what remains can change nothing."""
        event_queue = self._simulation.event_queue
        if (
            self._simulation.occupancy.attempts
            or event_queue.count(EventPriority.SUBMISSION)
            or event_queue.count(EventPriority.NODE)
        ):
            return False
        return not event_queue.count(EventPriority.TIMER) or self._idle_timers > IDLE_TIMERS_MAX

    def _tell(self, event: events.Event) -> None:
        """Hand a fact in and carry out what follows."""
        self._events += 1
        event = self._simulation.together(event)
        orders = self.engine.handle(event)
        if self._observe is not None:
            self._observe(event, orders)
        for order in orders:
            carry_out = self._orders.get(type(order))
            if carry_out is not None:
                carry_out(order)

    def _submit(self, index: int) -> None:
        simulation, jobs = self._simulation, self._trace.jobs
        job = jobs[index]
        if index + 1 < len(jobs):
            simulation.event_queue.add(
                jobs[index + 1].submitted_at_ms, EventPriority.SUBMISSION, self._submit, index + 1
            )
        job_id = job.request.job_id
        simulation.results[job_id] = JobResult(
            job_id=job_id, gpus=job.request.gpus, submitted_at_ms=simulation.now_ms, solo_ms=self._solo_ms(job)
        )
        simulation.accounts.jobs += 1
        simulation.job_ms_at_submission[job_id] = simulation.accounts.job_ms
        self._tell(self._submission(job))
        simulation.note_hold(job_id)
        if self._advance is not None and index % JOBS_BETWEEN_ADVANCES == 0:
            self._advance(simulation.ended)

    def _submission(self, job: TraceJob) -> events.JobSubmitted:
        request = job.request
        if self._predictor.is_per_job and request.key:
            request = replace(request, key=f"{request.key}{OWN_KEY_MARK}{request.job_id}")
        return events.JobSubmitted(
            at_ms=self._simulation.now_ms,
            request=request,
            graph_sha256=job.graph_sha256 or GRAPH_OF_TRACE,
            settings=job.settings,
        )

    def _solo_ms(self, job: TraceJob) -> float:
        """Return what the job needs alone on the fastest device type here; 0 = it can run on none."""
        request, truth = job.request, self._trace.truth
        found = []
        for device in self.engine.state.devices:
            kind = truth.kind(request.key, device)
            if kind is not None and request.gpus in kind.step_ms_by_gpus:
                found.append(kind.step_ms(gpus=request.gpus) * request.steps_total / truth.speed(device))
        return min(found, default=0.0)

    # --- predictor and clock ----------------------------------------------------------------------------------------

    def _predict(self, question: commands.RequestPrediction) -> None:
        now_ms, prediction = self._simulation.now_ms, self._predictor.job(question)
        if prediction is None:
            key, device = question.key, question.device
            self._tell(events.PredictionFailed(at_ms=now_ms, key=key, device=device, code="NOT_MEASURED"))
        else:
            self._tell(events.PredictionArrived(at_ms=now_ms, prediction=prediction))

    def _predict_pairs(self, question: commands.RequestPairPredictions) -> None:
        now_ms, pairs = self._simulation.now_ms, tuple(self._predictor.pairs(question))
        answered = {pair.victim_key for pair in pairs}
        silent = tuple(key for key in question.new_keys if key not in answered)
        if silent:
            failed = events.PairPredictionsFailed(
                at_ms=now_ms, device=question.device, sharing=question.sharing, keys=silent, code="NOT_MEASURED"
            )
            self._tell(failed)
        if pairs:
            self._tell(events.PairPredictionsArrived(at_ms=now_ms, pairs=pairs))

    def _fit_no_speed(self, question: commands.RequestSpeedFit) -> None:
        """Answer that there is no curve: simulated errors are the same at every number of GPUs, and so corrected."""
        key, device = question.key, question.device
        self._tell(fit_events.SpeedFitted(at_ms=self._simulation.now_ms, key=key, device=device, code="NOT_FITTED"))

    def _fit_no_task_speed(self, question: commands.RequestTaskSpeedFit) -> None:
        """Answer that there is no curve: what simulated jobs measure of parameter servers is all that is known."""
        now_ms, device = self._simulation.now_ms, question.device
        self._tell(fit_events.TaskSpeedFitted(at_ms=now_ms, key=question.key, device=device, code="NOT_FITTED"))

    def _wake(self, order: commands.WakeAt) -> None:
        self._simulation.event_queue.add(order.at_ms, EventPriority.TIMER, self._ring, None)

    def _ring(self, _: object) -> None:
        self._idle_timers = 0 if self._simulation.occupancy.attempts else self._idle_timers + 1
        self._tell(events.TimerFired(at_ms=self._simulation.now_ms))

    # --- what is left -----------------------------------------------------------------------------------------------

    def _result(self) -> RunResult:
        simulation, accounts, machines = self._simulation, self._simulation.accounts, self._machines
        living_ms = sum(
            (simulation.now_ms - attempt.launched_at_ms) * len(attempt.gpu_ids)
            for attempt in simulation.occupancy.attempts.values()
        )
        check_conservation(accounts, simulation.results.values(), gpu_ms_by_jobs=simulation.gpu_ms_by_jobs + living_ms)
        results = [simulation.results[job.request.job_id] for job in self._trace.jobs]
        began_at_ms = min((result.submitted_at_ms for result in results), default=0)
        return RunResult(
            policy=simulation.settings.policy,
            parameters=simulation.settings.parameters,
            jobs=results,
            gpus=len(simulation.occupancy.gpus),
            began_at_ms=began_at_ms,
            ended_at_ms=max((began_at_ms, *(result.finished_at_ms for result in results))),
            gpu_ms_held=accounts.gpu_ms_held,
            gpu_ms_utilized=accounts.gpu_ms_utilized,
            held_reasons=dict(sorted(simulation.held_reasons.items())),
            rejected_decisions=len(self.engine.state.rejected),
            events=self._events,
            first_rejection=next((_worded(one) for one in self.engine.state.rejected), ""),
            policy_fault=next((one.detail for one in self.engine.state.rejected if one.reason.code == FAULT), ""),
            usage_intervals=accounts.curve.usage_intervals(accounts.now_ms) if accounts.curve is not None else (),
            spans=machines.spans,
            spans_dropped=machines.spans_dropped,
        )


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Let garbage be collected as seldom as a run wants it, and then as before."""
    before = gc.get_threshold()
    if before[0]:  # else it is off
        gc.set_threshold(max(ALLOCATIONS_PER_COLLECTION, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _worded(rejected: RejectedDecision) -> str:
    about = f" about {rejected.job_id}" if rejected.job_id else ""
    return f"{rejected.detail}{about} at {rejected.at_ms / 1_000:g} s: {describe_reason(rejected.reason)}"

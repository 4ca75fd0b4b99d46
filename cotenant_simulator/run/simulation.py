"""One run: facts into the scheduler's own engine, its commands carried out on simulated machines.

The engine and the policy are those of the live scheduler; this package plays clock, agents and predictor. Nothing here
decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cotenant_simulator.run.accounts import Accounts, Curve, check_conservation
from cotenant_simulator.run.agenda import Rank
from cotenant_simulator.run.attempts import Floor
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.run.outages import Outages
from cotenant_simulator.run.records import JobResult, RunResult, RunSettings
from cotenant_simulator.run.world import World
from cotenant_simulator.truth.cluster import Cluster
from cotenant_simulator.truth.kinds import OWN_KEY_MARK
from cotenant_simulator.truth.predictions import Predictor
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core import commands, events
from scheduler_service.core.engine import MakePolicy, SchedulerEngine
from scheduler_service.policy_registry import make_policy

ENDED_JOBS_MAX = 1_000
"""Ended jobs that the engine keeps; results are kept here."""
IDLE_TIMERS_MAX = 10_000
"""Timers in a row that may fire without anything running or arriving before the run counts as stuck."""
JOBS_BETWEEN_ADVANCES = 64
GRAPH_OF_TRACE = "trace"
"""Stands for the graph of jobs whose trace has none; the simulated predictor does not need it."""

Observer = Callable[[events.Event, Sequence[commands.Command]], None]


class Simulation:
    """Runs one trace under one policy.

    Args:
        trace: Who wants what when, and what is true of it.
        cluster: The machines.
        predictor: Answers the engine's questions.
        settings: Policy, seed, costs of changes, failures.
        observe: Told every fact with the commands that followed.
        advance: Told the number of ended jobs, now and then, for a progress bar.
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
        )
        nodes = {node.node_id: node for node in cluster.nodes}
        floor = Floor(
            truth=trace.truth,
            gpus={gpu.gpu_id: gpu for node in cluster.nodes for gpu in node.gpus},
            checkpoint_interval_ms=settings.charges.checkpoint_interval_ms,
        )
        self._world = World(
            settings=settings,
            truth=trace.truth,
            engine=self.engine,
            floor=floor,
            accounts=Accounts(floor=floor, curve=Curve() if settings.keeps_history else None),
            tell=self._tell,
        )
        self._machines = Machines(self._world, nodes)
        self._outages = Outages(self._world, self._machines)
        self._orders: dict[type[commands.Command], Callable[[Any], None]] = {
            commands.LaunchJob: self._machines.launch,
            commands.StopJob: self._machines.stop,
            commands.RequestPrediction: self._predict,
            commands.RequestPairPredictions: self._predict_pairs,
            commands.WakeAt: self._wake,
        }

    def run(self) -> RunResult:
        """Run until every job has ended or nothing can happen any more.

        Raises:
            BrokenSimulationError: An invariant does not hold.
        """
        world, jobs = self._world, self._trace.jobs
        for node in self._cluster.nodes:
            self._outages.join(node)
        if jobs:
            world.agenda.add(jobs[0].submitted_at_ms, Rank.SUBMISSION, self._submit, 0)
        while world.agenda and world.ended < len(jobs) and not self._is_stuck():
            at_ms, act, subject = world.agenda.pop()
            if at_ms > world.now_ms:
                world.advance(at_ms)
            act(subject)
        return self._result()

    def _is_stuck(self) -> bool:
        """Nothing runs, nobody comes, and what remains can change nothing."""
        agenda = self._world.agenda
        if self._world.floor.attempts or agenda.count(Rank.SUBMISSION) or agenda.count(Rank.NODE):
            return False
        return not agenda.count(Rank.TIMER) or self._idle_timers > IDLE_TIMERS_MAX

    def _tell(self, event: events.Event) -> None:
        """Hand a fact in and carry out what follows."""
        self._events += 1
        orders = self.engine.handle(event)
        if self._observe is not None:
            self._observe(event, orders)
        for order in orders:
            carry_out = self._orders.get(type(order))
            if carry_out is not None:
                carry_out(order)

    def _submit(self, index: int) -> None:
        world, jobs = self._world, self._trace.jobs
        job = jobs[index]
        if index + 1 < len(jobs):
            world.agenda.add(jobs[index + 1].submitted_at_ms, Rank.SUBMISSION, self._submit, index + 1)
        job_id = job.request.job_id
        world.results[job_id] = JobResult(
            job_id=job_id, gpus=job.request.gpus, submitted_at_ms=world.now_ms, solo_ms=self._solo_ms(job)
        )
        world.accounts.jobs += 1
        world.job_ms_at_submission[job_id] = world.accounts.job_ms
        self._tell(self._submission(job))
        world.note_hold(job_id)
        if self._advance is not None and index % JOBS_BETWEEN_ADVANCES == 0:
            self._advance(world.ended)

    def _submission(self, job: TraceJob) -> events.JobSubmitted:
        request = job.request
        if self._predictor.is_per_job and request.key:
            request = replace(request, key=f"{request.key}{OWN_KEY_MARK}{request.job_id}")
        return events.JobSubmitted(
            at_ms=self._world.now_ms,
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
        now_ms, prediction = self._world.now_ms, self._predictor.job(question)
        if prediction is None:
            key, device = question.key, question.device
            self._tell(events.PredictionFailed(at_ms=now_ms, key=key, device=device, code="NOT_MEASURED"))
        else:
            self._tell(events.PredictionArrived(at_ms=now_ms, prediction=prediction))

    def _predict_pairs(self, question: commands.RequestPairPredictions) -> None:
        now_ms, pairs = self._world.now_ms, tuple(self._predictor.pairs(question))
        answered = {pair.victim_key for pair in pairs}
        silent = tuple(key for key in question.new_keys if key not in answered)
        if silent:
            device = question.device
            self._tell(events.PairPredictionsFailed(at_ms=now_ms, device=device, keys=silent, code="NOT_MEASURED"))
        if pairs:
            self._tell(events.PairPredictionsArrived(at_ms=now_ms, pairs=pairs))

    def _wake(self, order: commands.WakeAt) -> None:
        self._world.agenda.add(order.at_ms, Rank.TIMER, self._ring, None)

    def _ring(self, _: object) -> None:
        self._idle_timers = 0 if self._world.floor.attempts else self._idle_timers + 1
        self._tell(events.TimerFired(at_ms=self._world.now_ms))

    # --- what is left -----------------------------------------------------------------------------------------------

    def _result(self) -> RunResult:
        world, accounts, machines = self._world, self._world.accounts, self._machines
        living_ms = sum(
            (world.now_ms - attempt.launched_at_ms) * len(attempt.gpu_ids) for attempt in world.floor.attempts.values()
        )
        check_conservation(accounts, world.results.values(), gpu_ms_by_jobs=world.gpu_ms_by_jobs + living_ms)
        results = [world.results[job.request.job_id] for job in self._trace.jobs]
        began_at_ms = min((result.submitted_at_ms for result in results), default=0)
        return RunResult(
            policy=world.settings.policy,
            parameters=world.settings.parameters,
            jobs=results,
            gpus=len(world.floor.gpus),
            began_at_ms=began_at_ms,
            ended_at_ms=max((began_at_ms, *(result.finished_at_ms for result in results))),
            gpu_ms_held=accounts.gpu_ms_held,
            gpu_ms_utilized=accounts.gpu_ms_utilized,
            held_reasons=dict(sorted(world.held_reasons.items())),
            rejected_decisions=len(self.engine.state.rejected),
            events=self._events,
            moments=accounts.curve.moments(accounts.now_ms) if accounts.curve is not None else (),
            spans=machines.spans,
            spans_dropped=machines.spans_dropped,
        )

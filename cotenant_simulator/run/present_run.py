"""A run that goes on from a live cluster: its engine as a snapshot has it, and what runs now on its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotenant_simulator.run.accounts import Accounts
from cotenant_simulator.run.attempts import Attempt, GpuOccupancy
from cotenant_simulator.run.event_queue import EventPriority
from cotenant_simulator.run.machines import Machines
from cotenant_simulator.run.records import JobResult, OverheadCosts, RunSettings
from cotenant_simulator.run.remaining_lengths import RemainingLengths
from cotenant_simulator.run.simulation_state import SimulationState
from cotenant_simulator.truth.kinds import GroundTruth
from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.progress_extrapolation import extrapolated
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import ENDED_PHASES, REPORT_INTERVAL_MS, Node, Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.policy_registry import make_policy

EVENTS_MAX = 200_000
HORIZON_MS = 365 * 86_400_000
IDLE_TIMERS_MAX = 1_000
"""Timers in a row that may fire while nothing runs."""
UNKNOWN_SLOWDOWN_RATIO = 0.3
"""What two co-located jobs of which nothing is known lose."""
_DEFAULT_UTILIZATION_RATIO = 0.6
_CHARGES = OverheadCosts(launch_ms=2_000, restart_ms=20_000, checkpoint_ms=10_000, checkpoint_interval_ms=60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """When the jobs that wait at the beginning start in one run.

    Attributes:
        at_ms: By job id; absent = not before the run ended.
        depend_on: Jobs of unknown length of which one had ended before, by job id; absent = none had.
        held_by: Why those that did not start still waited at the end of the run, in words, by job id.
    """

    at_ms: Mapping[str, int]
    depend_on: Mapping[str, tuple[str, ...]]
    held_by: Mapping[str, str] = field(default_factory=dict)


class _PresentMachines(Machines):
    """Machines with jobs that run already, whose lengths are drawn."""

    def __init__(self, simulation: SimulationState, nodes: Mapping[str, Node], lengths: RemainingLengths) -> None:
        super().__init__(simulation, nodes)
        self._lengths = lengths
        self.unknown: set[str] = set()

    def adopt(self, job: JobRecord) -> None:
        """Let a job that runs now go on; it has made steps since its newest report."""
        simulation = self._simulation
        reported = simulation.engine.state.running.get(job.job_id)
        if reported is not None:
            job = job.changed(steps_done=extrapolated(reported, simulation.now_ms).steps_done)
        attempt = self._attempt(job)
        if attempt is not None:
            simulation.occupancy.put(attempt)
            simulation.occupancy.train(attempt, simulation.now_ms)
            self._set_pace(attempt)

    def _attempt(self, record: JobRecord) -> Attempt | None:
        simulation, gpu_ids = self._simulation, record.gpu_ids
        gpu = simulation.occupancy.gpus.get(gpu_ids[0])
        if gpu is None or not all(gpu_id in simulation.occupancy.gpus for gpu_id in gpu_ids):
            return None
        left = self._lengths.of(record, device=gpu.device, gpus=len(gpu_ids), now_ms=simulation.now_ms)
        if not left.is_known:
            self.unknown.add(record.job_id)
        prediction = simulation.engine.state.predictions.job(record.request.key, gpu.device)
        return Attempt(
            job_id=record.job_id,
            key=record.request.key,
            attempt=record.attempt,
            fence=record.fence,
            gpu_ids=gpu_ids,
            device=gpu.device,
            step_ms=left.step_ms,
            steps_total=record.steps_done + left.steps,
            memory_bytes=0,
            utilization_ratio=prediction.utilization_ratio if prediction else _DEFAULT_UTILIZATION_RATIO,
            work_left_ms=left.steps * left.step_ms,
            launched_at_ms=simulation.now_ms,
        )

    def _refresh_limits(self, attempt: Attempt) -> None:
        """Nothing is compared: what the live scheduler keeps for its jobs holds."""


class PresentRun:
    """Runs a live cluster on until the jobs that wait now have started.

    Args:
        snapshot: Of its engine (`SchedulerEngine.snapshot`).
        now_ms: The instant, of its clock.
        seed: Names the draw of lengths and errors; None = expected values.
        policy: Chosen at the beginning; None = the cluster's own goes on.
        nodes_per_job_max: Nodes that one job may span, as in the engine; 0 = no limit.
        report_interval_ms: Between two reports of a node, which trials and measurements go by.

    Raises:
        CodecError: It is no snapshot.
        PolicyError: There is no such policy.
    """

    def __init__(
        self,
        snapshot: Mapping[str, object],
        *,
        now_ms: int,
        seed: str | None = None,
        policy: str | None = None,
        nodes_per_job_max: int = 1,
        report_interval_ms: int = REPORT_INTERVAL_MS,
    ) -> None:
        self.engine = SchedulerEngine.restore(
            snapshot,
            make_policy=make_policy,
            ended_jobs_max=1,
            nodes_per_job_max=nodes_per_job_max,
            report_interval_ms=report_interval_ms,
        )
        state = self.engine.state
        self._waiting = tuple(state.in_phase(Phase.PENDING))
        self._policy, self._idle_timers = policy, 0
        truth = _truth(state)
        occupancy = GpuOccupancy(
            truth=truth,
            gpus={gpu.gpu_id: gpu for node in state.nodes.values() for gpu in node.gpus},
            checkpoint_interval_ms=_CHARGES.checkpoint_interval_ms,
        )
        self._simulation = SimulationState(
            settings=RunSettings(policy=state.policy, charges=_CHARGES),
            truth=truth,
            engine=self.engine,
            occupancy=occupancy,
            accounts=Accounts(occupancy=occupancy),
            tell=self._tell,
            now_ms=max(now_ms, state.now_ms),
        )
        self._simulation.accounts.now_ms = self._simulation.now_ms
        living = [job for job in state.jobs.values() if job.phase not in ENDED_PHASES]
        lengths = RemainingLengths.of_jobs(
            state.predictions, seed, living, (gpu.device for gpu in occupancy.gpus.values())
        )
        self._machines = _PresentMachines(self._simulation, dict(state.nodes), lengths)
        self._starts: dict[str, int] = {}
        self._depend_on: dict[str, tuple[str, ...]] = {}
        self._ended_unknown: list[str] = []
        self._orders: dict[type[commands.Command], Callable[[Any], None]] = {
            commands.LaunchJob: self._launch,
            commands.PrepareJob: self._machines.prepare,
            commands.StopJob: self._machines.stop,
            commands.PauseJob: self._refuse_pause,
            commands.ResumeJob: self._resume,
            commands.RequestPrediction: self._predict_nothing,
            commands.RequestPairPredictions: self._predict_no_pairs,
            commands.WakeAt: self._wake,
        }

    @property
    def waiting(self) -> Sequence[str]:
        """The jobs that waited at the beginning."""
        return self._waiting

    def run(self, *, goes_on: Callable[[], bool] = lambda: True) -> Starts:
        """Run until every waiting job has started, nothing can happen any more, or a year has passed.

        Args:
            goes_on: Asked now and then; False ends the run where it is.
        """
        self._begin()
        simulation, count = self._simulation, 0
        end_ms = simulation.now_ms + HORIZON_MS
        while simulation.event_queue and len(self._starts) < len(self._waiting) and count < EVENTS_MAX:
            at_ms, act, subject = simulation.event_queue.pop()
            if at_ms > end_ms or self._idle_timers > IDLE_TIMERS_MAX or (count % 64 == 0 and not goes_on()):
                break
            if at_ms > simulation.now_ms:
                simulation.advance(at_ms)
            act(subject)
            simulation.end_appointment()
            count += 1
        left = [job_id for job_id in self._waiting if job_id not in self._starts]
        return Starts(
            at_ms=self._starts, depend_on=self._depend_on, held_by={job_id: self._why_held(job_id) for job_id in left}
        )

    def _why_held(self, job_id: str) -> str:
        state = self.engine.state
        known = state.decisions.get(job_id)
        reason = state.waiting.holds.get(job_id) or (known.reason if known is not None else None)
        return describe_reason(reason) if reason is not None else ""

    def _begin(self) -> None:
        simulation, state = self._simulation, self.engine.state
        living = [job for job in state.jobs.values() if job.phase not in ENDED_PHASES]
        for job in living:
            simulation.results[job.job_id] = JobResult(
                job_id=job.job_id, gpus=job.request.gpus, submitted_at_ms=simulation.now_ms, solo_ms=0.0
            )
            simulation.job_ms_at_submission[job.job_id] = 0
        simulation.accounts.jobs = len(living)
        for job in living:
            if job.phase in (Phase.RUNNING, Phase.PAUSED, Phase.STOPPING):
                self._machines.adopt(job)
        orders = self.engine.reissue()
        for job in living:
            if job.phase is Phase.PAUSED:
                self._tell_resumed(job.job_id, job.attempt, job.fence)
        self._carry_out(orders)
        if self._policy is not None:
            self._tell(events.PolicyChosen(at_ms=simulation.now_ms, policy=self._policy))
        self._tell(events.TimerFired(at_ms=simulation.now_ms))

    def _tell(self, event: events.Event) -> None:
        if isinstance(event, events.JobFinished) and event.job_id in self._machines.unknown:
            self._ended_unknown.append(event.job_id)
        self._carry_out(self.engine.handle(self._simulation.together(event)))

    def _carry_out(self, orders: Sequence[commands.Command]) -> None:
        for order in orders:
            carry_out = self._orders.get(type(order))
            if carry_out is not None:
                carry_out(order)

    def _launch(self, order: commands.LaunchJob) -> None:
        job_id = order.job_id
        if job_id in self._waiting and job_id not in self._starts:
            self._starts[job_id] = self._simulation.now_ms
            if self._ended_unknown:
                self._depend_on[job_id] = tuple(self._ended_unknown)
        self._machines.launch(order)

    def _refuse_pause(self, order: commands.PauseJob) -> None:
        """Pauses last a minute at most and are not simulated: the scheduler does without them."""
        refused = events.PauseRefused(
            at_ms=self._simulation.now_ms,
            job_id=order.job_id,
            attempt=order.attempt,
            fence=order.fence,
            code="NOT_PAUSABLE",
        )
        self._tell(refused)

    def _resume(self, order: commands.ResumeJob) -> None:
        self._tell_resumed(order.job_id, order.attempt, order.fence)

    def _tell_resumed(self, job_id: str, attempt: int, fence: int) -> None:
        at_ms = self._simulation.now_ms
        self._tell(events.AttemptResumed(at_ms=at_ms, job_id=job_id, attempt=attempt, fence=fence))

    def _predict_nothing(self, question: commands.RequestPrediction) -> None:
        failed = events.PredictionFailed(
            at_ms=self._simulation.now_ms, key=question.key, device=question.device, code="NOT_ASKED"
        )
        self._tell(failed)

    def _predict_no_pairs(self, question: commands.RequestPairPredictions) -> None:
        failed = events.PairPredictionsFailed(
            at_ms=self._simulation.now_ms,
            device=question.device,
            sharing=question.sharing,
            keys=question.new_keys,
            code="NOT_ASKED",
        )
        self._tell(failed)

    def _wake(self, order: commands.WakeAt) -> None:
        self._simulation.event_queue.add(order.at_ms, EventPriority.TIMER, self._ring, None)

    def _ring(self, _: object) -> None:
        self._idle_timers = 0 if self._simulation.occupancy.attempts else self._idle_timers + 1
        self._tell(events.TimerFired(at_ms=self._simulation.now_ms))


def _truth(state: ClusterState) -> GroundTruth:
    """Take what is predicted and was measured of pairs for true; lengths are drawn elsewhere."""
    stored = state.predictions.stored()
    slowdowns = {(pair.victim_key, pair.other_key, pair.device): pair.slowdown_ratio for pair in stored.pairs}
    slowdowns |= {(victim, other, device): ratio for victim, other, device, ratio in stored.observed}
    return GroundTruth(kinds={}, slowdowns=slowdowns, slowdown_ratio=UNKNOWN_SLOWDOWN_RATIO)

"""The only door: facts go in, commands come out.

`SchedulerEngine.handle` applies a fact, asks the policy where the fact may change its mind, checks the answer as a plan
applier does, carries it into the state and returns what the outside world must do. It never waits, reads no clock and
opens no file; the same events give the same commands, which is what makes replay a recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import Any

from scheduler_service.core import engine_snapshot, events, policy_events, queue_events
from scheduler_service.core.cluster_view.cluster_index import KeptIndex
from scheduler_service.core.cluster_view.progress_extrapolation import ExtrapolatedJobs
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.commands import Command, WakeAt
from scheduler_service.core.decisions import (
    HOLDS,
    Decision,
    HoldMany,
    Migrate,
    Pause,
    Reshape,
    Resume,
    Start,
    Stop,
)
from scheduler_service.core.errors import POLICY_FAULTS
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.event_handling import job_events, next_looks, node_events, prediction_events, queue_changes
from scheduler_service.core.event_handling.time_limits import enforce_time_limits, look_for_stalls, next_look_ms
from scheduler_service.core.lifecycle import preparation
from scheduler_service.core.lifecycle.attempts import launch, stop
from scheduler_service.core.lifecycle.migration import order_move
from scheduler_service.core.planning.checked_plan import CheckedPlan
from scheduler_service.core.planning.explanation import Explanation, frozen_view
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.planning.policy_answer import note_failed, note_refused
from scheduler_service.core.planning.silent_policy import PolicyQuestions, asked_of
from scheduler_service.core.predictions.pair_refreshes import refresh_pairs
from scheduler_service.core.predictions.prediction_requests import refresh_hold
from scheduler_service.core.queue import turns
from scheduler_service.core.queue.lane_views import seen_in_lane
from scheduler_service.core.queue.lanes import PLAIN_LANE
from scheduler_service.core.queue.turn_order import Turn
from scheduler_service.core.records import REPORT_INTERVAL_MS, AfterStop, Phase
from scheduler_service.core.sharing import pausing, peak_pauses
from scheduler_service.core.sharing.memory_shortage import let_try_alone
from scheduler_service.core.state import ClusterState
from scheduler_service.core.trial_sharing.trial_pauses import end_trial_pauses
from scheduler_service.core.trial_sharing.trials import judge_due_trials

_NOTHING_REFUSED: AbstractSet[str] = frozenset()
MakePolicy = Callable[[str, Mapping[str, object]], Policy]


class SchedulerEngine:
    """Decides who runs where.

    Args:
        make_policy: Builds a policy from its name and parameters; raises `PolicyError` for a wrong choice.
        policy: Name of the first policy.
        parameters: Its parameters; absent ones take their defaults.
        seed: Handed to policies that draw at random.
        nodes_per_job_max: Nodes that one job may span, unless it says that it may span more; 0 = no limit.
        can_move: What carries the commands out can stop a job with a checkpoint and start it again elsewhere.
        ended_jobs_max: Ended jobs kept.
        pair_refresh_ms: How long answers about pairs stay as they are after something was measured; 0 = for ever.
        stall_ms: No shorter time without a step is a stall; 0 = stalls are not looked for.
        report_interval_ms: As in `ClusterState`.
        learns_speeds: Measured step times take the place of foreseen ones.
    """

    def __init__(
        self,
        *,
        make_policy: MakePolicy,
        policy: str,
        parameters: Mapping[str, object] | None = None,
        seed: int = 0,
        nodes_per_job_max: int = 1,
        can_move: bool = True,
        ended_jobs_max: int = 10_000,
        pair_refresh_ms: int = 0,
        stall_ms: int = 0,
        report_interval_ms: int = REPORT_INTERVAL_MS,
        learns_speeds: bool = True,
    ) -> None:
        self._make_policy, self._policy = make_policy, make_policy(policy, parameters or {})
        self._nodes_per_job_max, self._can_move = nodes_per_job_max, can_move
        self._pair_refresh_ms, self._stall_ms = pair_refresh_ms, stall_ms
        self._state = ClusterState(seed=seed, ended_jobs_max=ended_jobs_max)
        self._state.report_interval_ms = report_interval_ms
        self._state.policy, self._state.parameters = policy, dict(parameters or {})
        self._state.predictions.speeds.is_used = learns_speeds
        self._index = KeptIndex(self._state)
        self._wakes: list[int] = []
        self._backoffs: list[tuple[int, str]] = []
        # A replay says here where the policy did not answer.
        self.questions = PolicyQuestions()

    @property
    def state(self) -> ClusterState:
        """Everything known; for reading only."""
        return self._state

    @property
    def policy(self) -> Policy:
        """What decides at present."""
        return asked_of(self._policy, self._state)

    def handle(self, event: events.Event) -> list[Command]:
        """Apply one fact and return what follows from it.

        Args:
            event: A fact; an earlier instant than the last event's counts as the same instant. One that others follow
                is applied, and decided upon with the last of them.

        Returns:
            Commands in the order in which they shall be carried out; each may be repeated.

        Raises:
            InvalidTransition: The fact cannot happen to this job now (a bug); nothing was changed.
            PolicyError: `PolicyChosen` names a policy that cannot be built; nothing was changed.
        """
        step, changes = EventEffects(), self._state.predictions.changes
        self._policy, self.questions.answers = self.policy, 0
        changes_before = changes.count, changes.news_count
        self._state.now_ms = max(self._state.now_ms, event.at_ms)
        self._apply(event, step)
        if step.left:
            queue_changes.settle_ends(self._state, step)
        if self._backoffs:
            self._release_due(step)
        if self._state.pauses:
            end_trial_pauses(self._state, step)
        if event.is_followed:
            next_looks.put_off(self._policy, event, step, self._state, changes_before=changes_before)
        else:
            self._decide_on_all(event, step, changes_before)
        if self._pair_refresh_ms:
            refresh_pairs(self._state, self._pair_refresh_ms, step)
        if self._stall_ms and self._state.running:
            step.wakes_at_ms.append(next_look_ms(self._state.now_ms, self._stall_ms))
        if self._wakes or step.wakes_at_ms or step.backoffs:
            self._note_wakes(step)
        return step.commands

    def decide_put_off(self) -> list[Command]:
        """Decide upon facts whose last one could not be applied; without any, nothing follows."""
        step, changes = EventEffects(), self._state.predictions.changes
        if self._state.put_off is not None:
            self._decide_on_all(None, step, (changes.count, changes.news_count))
            self._note_wakes(step)
        return step.commands

    def _decide_on_all(self, event: events.Event | None, step: EventEffects, changes_before: tuple[int, int]) -> None:
        """Ask the policy where this fact, or one that it follows, may change its mind."""
        state = self._state
        put_off, state.put_off = state.put_off, None
        step.is_decision_due = step.is_decision_due or (put_off is not None and put_off.is_decision_due)
        may_ask = step.is_decision_due or bool(getattr(self._policy, "interval_ms", 0))
        if may_ask and (state.running or state.has_ready_jobs):
            if step.is_decision_due:
                self._decide(step)
            step.wakes_at_ms += next_looks.find_looks(
                self._policy, event, step, state, self._view, changes_before=changes_before, earlier=put_off
            )

    def _apply(self, event: events.Event, step: EventEffects) -> None:
        if (handler := _HANDLERS.get(type(event))) is not None:
            handler(self._state, event, step)
        elif isinstance(event, events.AttemptReport):
            job_events.report(self._state, event, step)
        elif isinstance(event, events.PolicyChosen):
            self._choose(event, step)
        elif isinstance(event, events.TimerFired):
            judge_due_trials(self._state, step)
            end_trial_pauses(self._state, step)
            pausing.look_after_pauses(self._state, step)
            preparation.look_after_preparations(self._state, step)
            enforce_time_limits(self._state, step)
            if self._stall_ms:
                look_for_stalls(self._state, self._stall_ms, step)
            if not step.is_decision_due and not step.commands:
                step.look_ms = next_looks.find_standing_look(self._policy, self._state, self._view)
            step.is_decision_due = step.look_ms is None
        else:
            raise TypeError(f"{type(event).__name__} is not an event that the engine knows")

    def _choose(self, event: events.PolicyChosen, step: EventEffects) -> None:
        """Switch between two decisions; what runs goes on."""
        self._policy = self._make_policy(event.policy, event.parameters)
        if self._state.silence:  # it was stopped at any of its own lines: what it kept with the index may be half done
            self._state.silence, self._index = "", KeptIndex(self._state)
        self._state.policy, self._state.parameters = event.policy, dict(event.parameters)
        step.is_decision_due = True

    def _release_due(self, step: EventEffects) -> None:
        """Show jobs whose waiting time is over."""
        while self._backoffs and self._backoffs[0][0] <= self._state.now_ms:
            _, job_id = heappop(self._backoffs)
            job = self._state.jobs.get(job_id)
            if job is not None and job.phase is Phase.PENDING and refresh_hold(self._state, job_id):
                step.is_decision_due = True

    def _note_wakes(self, step: EventEffects) -> None:
        """Turn wishes to be woken into commands, once per instant."""
        for backoff in step.backoffs:
            heappush(self._backoffs, backoff)
        while self._wakes and self._wakes[0] <= self._state.now_ms:
            heappop(self._wakes)
        for at_ms in step.wakes_at_ms:
            if at_ms > self._state.now_ms and at_ms not in self._wakes:
                heappush(self._wakes, at_ms)
                step.commands.append(WakeAt(at_ms=at_ms))

    def _decide(self, step: EventEffects) -> None:
        self._state.decided_at_ms = self._state.stands_at_ms = self._state.now_ms
        self._index.turn_memo.clear()
        if getattr(self._policy, "decides_only_waiting", False) and not self._state.has_ready_jobs:
            return
        if turns.needs_turns(self._state):
            step.wakes_at_ms += turns.decide_in_turns(
                self._state, lambda turn: self._take_turn(turn, step), lambda: self._view(explain=False)
            )
        else:
            self._take_turn(None, step)

    def _take_turn(self, turn: Turn | None, step: EventEffects) -> AbstractSet[str]:
        """Ask the policy about one lane, or (None) all jobs; carry its answer out and return codes of refusals."""
        plan, refused = self._ask(self._view(explain=False), turn)
        for rejection in plan.rejections:
            note_refused(self._state, rejection.decision.job_id, rejection.reason, type(rejection.decision).__name__)
        decisions = turns.lasting(turn, plan.decisions)
        self._state.decisions.record_round(decisions, self._state.waiting.shown_lane)
        for decision in decisions:
            self._carry_out(decision, plan, step)
        return refused

    def _ask(self, view: SchedulingView, turn: Turn | None) -> tuple[CheckedPlan, AbstractSet[str]]:
        """Ask the policy and check its answer; one that raises or answers nonsense holds every job, recorded."""
        pending, refused = self._state.waiting.ready_jobs().by_id, _NOTHING_REFUSED
        try:
            decisions = self.questions.ask(self.policy, view)
        except POLICY_FAULTS as error:  # a policy's bug must not stop the cluster; it is recorded
            note_failed(self._state, self._policy, error)
            self._policy = self.policy
            decisions = (HoldMany(job_ids=tuple(pending), reason=self._state.rejected[-1].reason),)
        if turn is not None:
            decisions, refused = turns.admit(self._state, turn, decisions, view)
        return check_plan(view, pending, decisions), refused

    def _carry_out(self, decision: Decision, plan: CheckedPlan, step: EventEffects) -> None:
        if isinstance(decision, HOLDS):
            let_try_alone(self._state, decision, step)
            if decision.until_ms > self._state.now_ms:
                step.wakes_at_ms.append(decision.until_ms)
        elif isinstance(decision, Start):
            job = self._state.jobs[decision.job_id]
            launch(self._state, job, decision, reserved_bytes=plan.reservations[decision.job_id], step=step)
        elif isinstance(decision, Stop):
            stop(self._state, self._state.jobs[decision.job_id], AfterStop.REQUEUE, step)
        elif isinstance(decision, (Migrate, Reshape)):
            order_move(self._state, decision, reserved_bytes=plan.reservations[decision.job_id], step=step)
        elif isinstance(decision, Pause):
            pausing.order_pause(self._state, decision, step)
        elif isinstance(decision, Resume):
            pausing.order_resume(self._state, decision.job_id, step)

    def _view(self, *, explain: bool, now_ms: int | None = None) -> SchedulingView:
        state, lane = self._state, self._state.waiting.shown_lane
        now_ms = state.now_ms if now_ms is None else now_ms
        return seen_in_lane(
            SchedulingView(
                now_ms=now_ms,
                nodes=state.occupancy.usable_nodes,
                gpus=state.usable_gpus,
                pending=state.waiting.ready_jobs(),
                running=ExtrapolatedJobs(state.running, now_ms),
                predictions=state.predictions,
                seed=state.seed,
                explain=explain,
                unpredictable_keys=state.predictions.unpredictable_keys,
                host_use=state.occupancy.host_use,
                slowdown_ewma_ratios=state.occupancy.slowdown_ewma_ratios,
                nodes_per_job_max=self._nodes_per_job_max,
                can_move=self._can_move,
                interference_curves=state.predictions.curves,
                report_interval_ms=state.report_interval_ms,
                opportunistic_tau_ratio=getattr(self._policy, "opportunistic_tau_ratio", 0.0),
                protected_job_ids=turns.find_protected(state, lane),
                kept_gpu_ids=state.occupancy.kept_gpu_ids,
                index=self._index,
            ),
            lane,
        )

    def explanation(self, job_id: str) -> Explanation | Decision:
        """Return why a job is where it is; of one that waits for the policy, a question that may be answered elsewhere.

        Raises:
            KeyError: No such job is known (any more).
        """
        state, job = self._state, self._state.jobs[job_id]
        if job.phase is not Phase.PENDING or job_id in state.holds:
            return state.decisions.get(job_id) or Decision(job_id=job_id, reason=job.reason)
        known = state.decisions.get(job_id)
        if known is not None and known.reason.code in turns.LAYER_CODES:
            return known
        with state.waiting.showing(state.waiting.lane_of(job_id) or PLAIN_LANE):
            view = frozen_view(self._view(explain=True), job_id, state.running)
            pending = dict(state.waiting.ready_jobs().by_id)
        return Explanation(job_id=job_id, policy=self.policy, view=view, pending=pending)

    def reissue(self) -> list[Command]:
        """Return the orders whose effect is outstanding, for carrying them out again after a crash."""
        step, state = EventEffects(), self._state
        prediction_events.reissue(state, step)
        preparation.reissue_orders(state, step)
        for job_id in state.pauses:
            step.commands += pausing.outstanding_commands(state.jobs[job_id])
        step.commands += [node_events.stop_abandoned(abandoned) for abandoned in state.abandoned_attempts.values()]
        step.commands += [WakeAt(at_ms=at_ms) for at_ms in sorted(self._wakes)]
        return step.commands

    def snapshot(self) -> dict[str, object]:
        """Return everything worth keeping as JSON-able values; `restore` turns it back."""
        return self.freeze()()

    def freeze(self) -> engine_snapshot.EncodeState:
        """Return what gives the snapshot of this instant, in any thread: encoding takes its time."""
        return engine_snapshot.freeze_state(self._state, wakes_at_ms=tuple(sorted(self._wakes)))

    @classmethod
    def restore(
        cls,
        snapshot: Mapping[str, object],
        *,
        make_policy: MakePolicy,
        nodes_per_job_max: int = 1,
        can_move: bool = True,
        ended_jobs_max: int = 10_000,
        pair_refresh_ms: int = 0,
        stall_ms: int = 0,
        report_interval_ms: int = REPORT_INTERVAL_MS,
    ) -> SchedulerEngine:
        """Return the engine that gave this snapshot.

        Raises:
            CodecError: The snapshot is not one, or was written by a newer version.
            PolicyError: Its policy cannot be built.
        """
        state, wakes = engine_snapshot.decode_state(snapshot, ended_jobs_max=ended_jobs_max)
        engine = cls(
            make_policy=make_policy,
            policy=state.policy,
            parameters=state.parameters,
            nodes_per_job_max=nodes_per_job_max,
            can_move=can_move,
            pair_refresh_ms=pair_refresh_ms,
            stall_ms=stall_ms,
        )
        state.report_interval_ms = report_interval_ms
        engine._state, engine._index, engine._wakes = state, KeptIndex(state), sorted(wakes)
        engine._backoffs = sorted(
            (state.jobs[job_id].times.not_before_ms, job_id)
            for job_id in state.holds
            if state.jobs[job_id].times.not_before_ms > state.now_ms
        )
        return engine


_HANDLERS: Mapping[type[events.Event], Callable[[ClusterState, Any, EventEffects], None]] = {
    events.JobSubmitted: job_events.submit,
    events.JobCancelled: job_events.cancel,
    **pausing.HANDLERS,
    **peak_pauses.HANDLERS,
    **prediction_events.HANDLERS,
    events.AttemptPrepared: preparation.note_prepared,
    events.PreparationEnded: preparation.note_preparation_ended,
    events.NodeJoined: node_events.join,
    events.NodeDisconnected: node_events.disconnect,
    events.NodeLost: node_events.lose_node,
    events.NodeForgotten: node_events.forget_node,
    events.GpuHealthChanged: node_events.change_health,
    events.IncarnationBegan: node_events.begin_incarnation,
    queue_events.JobHeld: queue_changes.hold_job,
    queue_events.JobReleased: queue_changes.release_job,
    queue_events.JobAltered: queue_changes.alter_job,
    queue_events.NodeCordoned: queue_changes.cordon_node,
    queue_events.NodeUncordoned: queue_changes.uncordon_node,
    queue_events.TenantsChosen: queue_changes.choose_tenants,
    policy_events.PolicySilenced: node_events.keep_for_audit,
    events.RestoreConfirmed: node_events.keep_for_audit,
    events.UnknownAttemptsFound: node_events.keep_for_audit,
}

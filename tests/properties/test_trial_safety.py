"""Whatever happens, a trial is between two measured jobs that fit, one at a time, and ends where a consent breaks."""

from __future__ import annotations

import functools
from random import Random
from statistics import fmean
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.trial_start import BROKEN_TRIALS_MAX, TRIALS_MAX
from scheduler_service.core.predictions.measured_alone import bound_of_peak
from scheduler_service.core.records import Phase, TrialStage
from scheduler_service.core.sharing.pausing import LENT_CODE
from scheduler_service.core.trial_sharing.first_measurement_rules import LENT_PAUSES_MAX, lent_ratio_max
from scheduler_service.core.trial_sharing.trials import WINDOWS_TO_BREAK
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, GIB, node, prediction

EVENTS = 250
WINDOW_MS = 2_000
KEYS = 5


class World(Play):
    """Jobs whose predictions are all out of domain; what is true of them is drawn from a seed."""

    def __init__(self, seed: int, policy: str) -> None:
        super().__init__(policy, gpus=3)
        self.random = Random(seed)
        self.tell(events.NodeJoined, node=node("n0", 3, enforcements=("cgroup_freezer",) if seed % 2 else ()))
        self.peaks = {f"key-{number}": self.random.uniform(0.5, 5.0) for number in range(KEYS)}
        self.utilization = {key: self.random.uniform(0.1, 1.0) for key in self.peaks}
        self.submitted = 0
        self.seen_trials = self.seen_measurements = 0

    def step(self) -> None:
        """Let something happen."""
        running = [job for job in self.engine.state.jobs.values() if job.holds_gpus]
        if not running or self.random.random() < 0.15:
            self._submit()
            return
        job = self.random.choice(running)
        orders = self._report(job.job_id, job.phase)
        self._carry_out(orders)

    def _submit(self) -> None:
        self.submitted += 1
        key = self.random.choice(list(self.peaks))
        orders = self.submit(
            f"job-{self.submitted:03d}",
            graph="f" * 64,
            key=key,
            steps_total=self.random.choice([200, 5_000]),
            max_slowdown_ratio=self.random.choice([0.2, 0.5, 1.0]),
            no_trial=self.random.random() < 0.1,
        )
        self._carry_out(orders)

    def _carry_out(self, orders: list[commands.Command]) -> None:
        for order in orders:
            if isinstance(order, commands.RequestPrediction):
                unsure = prediction(order.key, in_domain=False, utilization_ratio=1.0)
                self._carry_out(self.tell(events.PredictionArrived, after_ms=1, prediction=unsure))
            elif isinstance(order, commands.RequestPairPredictions):
                answer = {"device": order.device, "keys": order.new_keys, "code": "DOWN"}
                self._carry_out(self.tell(events.PairPredictionsFailed, after_ms=1, **answer))

    def _report(self, job_id: str, phase: Phase) -> list[commands.Command]:
        drawn = self.random.random()
        if phase is Phase.STARTING:
            return self.report(events.JobStarted, job_id, after_ms=100)
        if phase is Phase.STOPPING:
            return self.report(events.JobStopped, job_id, after_ms=100, exit_class="stopped", checkpoint_step=10)
        if phase is Phase.PAUSED:
            if drawn < 0.5:
                return self.tell(events.TimerFired, after_ms=15_000)
            return self.report(events.AttemptResumed, job_id, after_ms=100)
        record = self.engine.state.jobs[job_id]
        if record.pause is not None and drawn < 0.7:
            return self.report(events.AttemptPaused, job_id, after_ms=100)
        if drawn < 0.06:
            return self.report(events.JobFinished, job_id, steps_done=record.request.steps_total)
        if drawn < 0.09:
            return self.report(events.JobFailed, job_id, exit_class="signal", checkpoint_step=record.steps_done)
        if drawn < 0.12:
            return self.tell(events.TimerFired, after_ms=self.random.choice([60_000, 90_000_000]))
        return self._window(job_id)

    def _window(self, job_id: str) -> list[commands.Command]:
        record = self.engine.state.jobs[job_id]
        others = self.engine.state.occupancy.neighbours(record)
        slower = self.random.uniform(0.9, 1.1) + (self.random.uniform(0.0, 1.6) if others else 0.0)
        steps = max(int(WINDOW_MS / (100 * slower)), 1)
        return self.report(
            events.JobProgressed,
            job_id,
            after_ms=WINDOW_MS,
            steps_done=min(record.steps_done + steps, record.request.steps_total - 1),
            window_steps=steps,
            window_ms=WINDOW_MS,
            memory_peak_bytes=int(self.peaks[record.request.key] * GIB * self.random.uniform(0.9, 1.3)),
            utilization_ratio=self.utilization[record.request.key],
            quality_flags=("foreign_load",) if self.random.random() < 0.05 else (),
            checkpoint_step=record.steps_done,
        )

    def check_trials(self) -> None:
        """Everything that must hold of every trial after every event."""
        state = self.engine.state
        for job_id in state.on_trial:
            incoming = state.jobs[job_id]
            assert incoming.trial is not None
            resident = state.jobs[incoming.trial.other_job_id]
            self.seen_trials += 1
            assert resident.trial is not None
            assert (resident.trial.other_job_id, resident.trial.is_incoming) == (job_id, False)
            assert set(state.gpus[incoming.gpu_ids[0]].job_ids) == {job_id, resident.job_id}
            assert resident.trial.stage is incoming.trial.stage
            self.seen_measurements += incoming.trial.stage is TrialStage.MEASURING
            for one in (incoming, resident) if incoming.trial.is_sharing else (resident,):
                known = state.predictions.job(one.request.key, DEVICE)
                assert known is not None
                assert one.shape.micro_batch_size in known.measured_micro_batch_sizes
                if incoming.trial.is_sharing:
                    self._check_not_overrun(incoming.phase, one.job_id)
        for job in state.jobs.values():
            assert job.counts.trials <= TRIALS_MAX
            assert job.counts.broken_trials < BROKEN_TRIALS_MAX or job.request.no_trial
            self._check_lent(job)

    def _check_lent(self, job: JobRecord) -> None:
        """A job stands still for an incoming job that runs, never again for the same one, and little in all."""
        assert job.counts.lent_pauses <= LENT_PAUSES_MAX
        incoming_jobs = [line.message for line in job.history if line.message.endswith(f"while {job.job_id} is paused")]
        assert len(incoming_jobs) == len(set(incoming_jobs))
        if job.pause is None or job.pause.is_resuming or job.pause.reason.code != LENT_CODE:
            return
        assert job.trial is not None
        incoming = self.engine.state.jobs[job.trial.other_job_id]
        assert (incoming.phase, job.trial.stage) == (Phase.RUNNING, TrialStage.MEASURING)
        steps_total = job.request.steps_total
        is_known = steps_total > 0 and job.solo_step_ms > 0
        remaining_ms = (steps_total - job.steps_done) * job.solo_step_ms if is_known else job.ran_ms
        life_ms = job.ran_ms + remaining_ms
        # Windows between the order and the pause move what is foreseen a little.
        assert job.counts.lent_ms + job.pause.paused_ms_max <= lent_ratio_max(job.request) * life_ms + WINDOW_MS

    def _check_not_overrun(self, incoming_phase: Phase, job_id: str) -> None:
        job = self.engine.state.jobs[job_id]
        assert job.trial is not None
        newest, accepted = job.trial.ratios[-WINDOWS_TO_BREAK:], job.request.max_slowdown_ratio
        is_broken = len(newest) == WINDOWS_TO_BREAK and min(newest) > accepted and fmean(job.trial.ratios) > accepted
        if is_broken:
            assert incoming_phase is Phase.STOPPING, f"{job_id} lost {newest} and accepts {accepted}"


@functools.cache
def checked_world(seed: int, policy: str) -> World:
    """Let everything happen to a world, and check its trials after each event."""
    world = World(seed, policy)
    for _ in range(EVENTS):
        world.step()
        world.check_trials()
    return world


@pytest.mark.parametrize("policy", ["horus", "sjf_bsbf", "ojpp"])
@for_each("seed", range(4))
def test_trials_are_safe_whatever_happens(policy: str, seed: int) -> None:
    world = checked_world(seed, policy)
    restored = SchedulerEngine.restore(world.engine.snapshot(), make_policy=make_policy)
    assert remembered(restored) == remembered(world.engine)


def remembered(engine: SchedulerEngine) -> dict[str, Any]:
    """Return what a snapshot holds; running jobs are restored in the order of their launches."""
    state: dict[str, Any] = dict(engine.snapshot()["state"])  # type: ignore[call-overload]
    return {**state, "jobs": sorted(state["jobs"], key=lambda job: str(job["request"]["job_id"]))}


def test_the_drawn_worlds_hold_trials_and_breaks_at_all() -> None:
    worlds = [checked_world(seed, "horus") for seed in range(4)]
    assert sum(world.seen_trials for world in worlds) > 50
    assert sum(world.seen_measurements for world in worlds) > 10
    breaks = sum(job.counts.broken_trials for world in worlds for job in world.engine.state.jobs.values())
    assert breaks > 4


def test_what_is_kept_for_a_measured_job_is_more_than_its_peak() -> None:
    assert all(bound_of_peak(peak) > peak for peak in (0, 1, GIB, 100 * GIB))

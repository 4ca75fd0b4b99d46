"""A job while it trains: what it holds, how far it is, and how an interval moves it on.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/simulator.py, class Job.
"""

from __future__ import annotations

from typing import Protocol

from cotenant_simulator.pollux_rules.batch_plan import BatchPlan, iteration_s, split_batch
from cotenant_simulator.pollux_rules.workload import SubmittedJob

RESTART_PAUSE_S = 30

Allocation = tuple[tuple[int, int], ...]
"""(node, GPUs on it), in the order in which the nodes were given; empty = the job waits."""


class BatchTuner(Protocol):
    """Chooses the batch of a job that leaves it to the scheduler."""

    def plan(self, job: TrainingJob) -> BatchPlan:
        """Return the split for the allocation that the job has."""

    def learn(self, job: TrainingJob) -> None:
        """Take in how the segment that was just run went."""


class TrainingJob:
    """One job of a run; times in whole seconds.

    Args:
        submitted: The row of the workload.
        order: Its position in the file.
        tuner: Chooses the batch; None = the batch of the file.
    """

    __slots__ = (
        "_rate",
        "_tuner",
        "allocation",
        "application",
        "batch",
        "epochs_done",
        "finished_s",
        "gpus",
        "gpus_held",
        "held_gpu_s",
        "held_s",
        "iteration_s",
        "job_id",
        "order",
        "pause_s",
        "plan",
        "preemptions",
        "progress",
        "restarts",
        "started_s",
        "submit_s",
        "trained_gpu_s",
    )

    def __init__(self, submitted: SubmittedJob, order: int, tuner: BatchTuner | None = None) -> None:
        self.job_id = submitted.job_id
        self.order = order
        self.submit_s = submitted.submit_s
        self.application = submitted.application
        self.gpus = submitted.gpus
        self.batch = submitted.batch
        self.progress = 0.0
        self.epochs_done = 0
        self.allocation: Allocation = ()
        self.gpus_held = 0
        self.plan = BatchPlan(1, 1, 0)
        self.iteration_s = 0.0
        self.pause_s = 0
        self.started_s: int | None = None
        self.finished_s: int | None = None
        self.restarts = 0
        self.preemptions = 0
        self.held_s = 0
        self.held_gpu_s = 0
        self.trained_gpu_s = 0
        self._tuner = tuner
        self._rate = 0.0

    def reallocate(self, allocation: Allocation, now_s: int) -> None:
        """Give other GPUs to the job, or none; giving the same again changes nothing."""
        if allocation == self.allocation:
            return
        self.allocation = allocation
        self.gpus_held = sum(gpus for _, gpus in allocation)
        if not allocation:
            self.preemptions += 1
            return
        self.pause_s = RESTART_PAUSE_S
        if self.started_s is None:
            self.started_s = now_s
        else:
            self.restarts += 1
        self._configure()

    def advance(self, start_s: int, seconds: int) -> None:
        """Run for an interval with what the job holds.

        Args:
            start_s: When the interval begins.
            seconds: Its length.
        """
        if not self.allocation:
            return
        left = seconds
        pause = min(self.pause_s, left)
        self.pause_s -= pause
        left -= pause
        goals = self.application.goals
        while left > 0 and self.finished_s is None:
            goal = goals[self.epochs_done]
            reached = self.progress + self._rate * left
            if reached < goal:
                self.progress = reached
                spent, completed = left, False
            else:
                # Each epoch ends at a whole second, half to even; what is rounded off stays.
                spent, completed = round((goal - self.progress) / self._rate), True
                self.progress = goal
            left -= spent
            self.trained_gpu_s += spent * self.gpus_held
            self._end_segment(completed, start_s + seconds - left)
        self.held_s += seconds - left
        self.held_gpu_s += seconds * self.gpus_held

    def _end_segment(self, completed: bool, now_s: int) -> None:
        if self._tuner is not None:
            self._tuner.learn(self)
        if completed:
            self.epochs_done += 1
            if self.epochs_done == self.application.epochs:
                self.finished_s = now_s
                return
        if self._tuner is not None:
            self._configure()
        elif completed:
            self._rate = self.application.gain(self.plan.batch, self.epochs_done) / self.iteration_s

    def _configure(self) -> None:
        if self._tuner is not None:
            self.plan = self._tuner.plan(self)
        else:
            self.plan = split_batch(self.application, self.batch, self.gpus_held)
        self.iteration_s = iteration_s(self.application, tuple(gpus for _, gpus in self.allocation), self.plan)
        self._rate = self.application.gain(self.plan.batch, self.epochs_done) / self.iteration_s

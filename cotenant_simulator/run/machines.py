"""The agents of a run: attempts are launched, train co-located, report, finish, stop, or run out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant_simulator.run.attempts import Attempt
from cotenant_simulator.run.event_queue import EventPriority
from cotenant_simulator.run.known_speeds import tells_something
from cotenant_simulator.run.records import AttemptInterval
from cotenant_simulator.run.simulation_state import SimulationState
from scheduler_service.core import commands, events
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.lifecycle.preparation import NOT_PREPARABLE
from scheduler_service.core.records import Node

SPANS_MAX = 20_000
REPORT_AFTER_MS = 10_000
REPORT_STEPS_MIN = 4
"""A window measures at least so many steps."""
REPORTS_AFTER_CHANGE, REPORTS_ON_TRIAL = 2, 8  # the latter for a trial to be passed or broken


class Machines:
    """Carries out launches and stops.

    Args:
        simulation: The run.
        nodes: The machines by id.

    Attributes:
        spans: Which job held which GPU when, if wanted.
        spans_dropped: Beyond the bound.
    """

    def __init__(self, simulation: SimulationState, nodes: Mapping[str, Node]) -> None:
        self._simulation = simulation
        self._node_of = {gpu.gpu_id: node.node_id for node in nodes.values() for gpu in node.gpus}
        self._widths = sorted((len(node.gpus) for node in nodes.values()), reverse=True)
        self.spans: list[AttemptInterval] = []
        self.spans_dropped = 0
        self._prepared: set[tuple[str, int]] = set()

    # --- beginning --------------------------------------------------------------------------------------------------

    def launch(self, order: commands.LaunchJob) -> None:
        """Take the GPUs; a gang on several nodes is one attempt, whose other orders are the same."""
        simulation = self._simulation
        if order.job_id in simulation.occupancy.attempts:
            return
        record = simulation.known.jobs[order.job_id]
        attempt = self._attempt(record)
        if attempt is None:
            self._refuse(order)
            return
        self._refresh_limits(attempt)
        simulation.occupancy.put(attempt)
        result = simulation.results[order.job_id]
        result.attempts += 1
        counts = record.counts
        result.preemptions, result.migrations, result.reshapes = counts.preemptions, counts.migrations, counts.reshapes
        if result.first_started_at_ms < 0:
            result.first_started_at_ms = simulation.now_ms
        delay_ms = self._start_ms(order, is_first=result.attempts == 1)
        simulation.event_queue.add(
            simulation.now_ms + delay_ms, EventPriority.START, self._begin, (attempt, attempt.turn)
        )

    def _start_ms(self, order: commands.LaunchJob, *, is_first: bool) -> int:
        """Return how long it takes from the order to the first step."""
        charges, name = self._simulation.settings.charges, (order.job_id, order.fence)
        if name in self._prepared and charges.prepared_restart_ms is not None:
            self._prepared.remove(name)
            return charges.prepared_restart_ms
        return charges.launch_ms + (0 if is_first else charges.restart_ms)

    def prepare(self, order: commands.PrepareJob) -> None:
        """Start an attempt early, which takes its time beside the present one, where attempts are prepared at all."""
        simulation, launch = self._simulation, order.launch
        if simulation.settings.charges.prepared_restart_ms is None:
            ended = events.PreparationEnded(
                at_ms=simulation.now_ms,
                job_id=launch.job_id,
                attempt=launch.attempt,
                fence=launch.fence,
                code=NOT_PREPARABLE,
            )
            simulation.tell(ended)
            return
        at_ms = simulation.now_ms + simulation.settings.charges.prepare_ms
        simulation.event_queue.add(at_ms, EventPriority.START, self._tell_prepared, launch)

    def _tell_prepared(self, launch: commands.LaunchJob) -> None:
        self._prepared.add((launch.job_id, launch.fence))
        at_ms = self._simulation.now_ms
        self._simulation.tell(
            events.AttemptPrepared(at_ms=at_ms, job_id=launch.job_id, attempt=launch.attempt, fence=launch.fence)
        )

    def _refresh_limits(self, attempt: Attempt) -> None:
        """What is kept for running jobs has changed where more was measured of them."""
        for gpu_id in attempt.gpu_ids:
            for other in self._simulation.occupancy.on_gpu(gpu_id):
                record = self._simulation.known.jobs.get(other.job_id)
                if record is not None:
                    other.memory_limit_bytes = record.shape.memory_reserved_bytes

    def _attempt(self, record: JobRecord) -> Attempt | None:
        """Return the attempt as the engine expects it, or None where its duration is unknown."""
        simulation, gpu_ids, key = self._simulation, record.gpu_ids, record.request.key
        device = simulation.occupancy.gpus[gpu_ids[0]].device
        kind = simulation.truth.kind(key, device)
        if kind is None or len(gpu_ids) not in kind.step_ms_by_gpus:
            return None
        is_single = len(gpu_ids) == 1  # as most are
        by_node = (1,) if is_single else tuple(Counter([self._node_of[gpu_id] for gpu_id in gpu_ids]).values())
        is_spread = not is_single and self._is_spread(gpu_ids)
        placed_ms = kind.placed_step_ms(by_node, passes=record.shape.accumulation_steps, is_spread=is_spread)
        step_ms = placed_ms / simulation.truth.speed(device)
        return Attempt(
            job_id=record.job_id,
            key=key,
            attempt=record.attempt,
            fence=record.fence,
            gpu_ids=gpu_ids,
            device=device,
            step_ms=step_ms,
            steps_total=record.request.steps_total,
            memory_bytes=kind.memory_at_bytes(record.shape.micro_batch_size),
            memory_limit_bytes=record.shape.memory_reserved_bytes,
            utilization_ratio=kind.utilization_ratio,
            work_left_ms=(record.request.steps_total - record.steps_done) * step_ms,
            launched_at_ms=simulation.now_ms,
        )

    def _is_spread(self, gpu_ids: Sequence[str]) -> bool:
        """Return whether GPUs lie on more nodes than needed."""
        nodes = len({self._node_of[gpu_id] for gpu_id in gpu_ids})
        return nodes > 1 and sum(self._widths[: nodes - 1]) >= len(gpu_ids)

    def _refuse(self, order: commands.LaunchJob) -> None:
        self._simulation.tell(
            events.LaunchRefused(
                at_ms=self._simulation.now_ms,
                job_id=order.job_id,
                attempt=order.attempt,
                fence=order.fence,
                code="KIND_UNKNOWN",
                message="the trace has no step time for it there",
            )
        )
        self._simulation.note_requeue(order.job_id)

    def _begin(self, subject: tuple[Attempt, int]) -> None:
        """Launch and restart are over: the job trains, or finds too little memory."""
        attempt, turn = subject
        simulation = self._simulation
        if attempt.turn != turn:
            return
        available_bytes = simulation.occupancy.memory_available_bytes(attempt)
        if available_bytes is not None:
            self._run_out_of_memory(attempt, available_bytes)
            return
        simulation.occupancy.train(attempt, simulation.now_ms)
        self._set_pace(attempt)
        self._tell_and_disturb(simulation.occupancy.neighbours(attempt))
        simulation.tell(
            events.JobStarted(
                at_ms=simulation.now_ms, job_id=attempt.job_id, attempt=attempt.attempt, fence=attempt.fence
            )
        )

    def _run_out_of_memory(self, attempt: Attempt, available_bytes: int) -> None:
        simulation = self._simulation
        simulation.results[attempt.job_id].out_of_memory += 1
        self.leave(attempt)
        simulation.tell(
            events.JobFailed(
                at_ms=simulation.now_ms,
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                fence=attempt.fence,
                exit_class="gpu_oom",
                steps_done=attempt.steps_done,
                memory_peak_bytes=attempt.memory_bytes,
                memory_available_bytes=available_bytes,
            )
        )
        simulation.note_requeue(attempt.job_id)

    # --- training ---------------------------------------------------------------------------------------------------

    def _set_pace(self, attempt: Attempt) -> None:
        """Appoint the end at the present pace, and the reports that let the engine know it."""
        simulation = self._simulation
        simulation.occupancy.refresh_pace(attempt)
        simulation.event_queue.add(attempt.end_at_ms, EventPriority.END, self._finish, (attempt, attempt.turn))
        attempt.reported_at_ms, attempt.reported_steps = simulation.now_ms, attempt.steps_done
        record = simulation.known.jobs.get(attempt.job_id)
        is_on_trial = record is not None and record.trial is not None
        attempt.reports_left = REPORTS_ON_TRIAL if is_on_trial else REPORTS_AFTER_CHANGE
        self._plan_report(attempt)

    def _plan_report(self, attempt: Attempt) -> None:
        interval_ms = self._simulation.settings.report_interval_ms
        is_first = attempt.reports_left >= REPORTS_AFTER_CHANGE
        if not interval_ms and not (
            attempt.reports_left and tells_something(attempt, self._simulation, is_first=is_first)
        ):
            return
        window_ms = max(interval_ms or REPORT_AFTER_MS, int(REPORT_STEPS_MIN * attempt.step_ms * attempt.pace))
        at_ms = self._simulation.now_ms + window_ms
        if at_ms < attempt.end_at_ms:
            self._simulation.event_queue.add(at_ms, EventPriority.REPORT, self._report, (attempt, attempt.turn))

    def _report(self, subject: tuple[Attempt, int]) -> None:
        attempt, turn = subject
        if attempt.turn != turn:
            return
        attempt.reports_left -= 1
        self._tell_progress_of([attempt])
        if attempt.turn == turn:
            self._plan_report(attempt)

    def _tell_progress_of(self, attempts: Sequence[Attempt], *, is_followed: bool = False) -> None:
        """Report work done, ahead of another one's end or not; the window is the time since the last report."""
        simulation, now_ms = self._simulation, self._simulation.now_ms
        for attempt in attempts:
            simulation.occupancy.settle(attempt, now_ms)
            steps = attempt.steps_done
            window_steps, window_ms = steps - attempt.reported_steps, now_ms - attempt.reported_at_ms
            attempt.reported_at_ms, attempt.reported_steps = now_ms, steps
            simulation.tell(
                events.JobProgressed(
                    at_ms=now_ms,
                    job_id=attempt.job_id,
                    attempt=attempt.attempt,
                    fence=attempt.fence,
                    steps_done=steps,
                    window_steps=window_steps,
                    window_ms=window_ms if window_steps else 0,
                    memory_bytes=attempt.memory_bytes,
                    memory_peak_bytes=attempt.memory_bytes,
                    utilization_ratio=attempt.utilization_ratio,
                    checkpoint_step=attempt.steps_at(attempt.checkpoint_left_ms),
                    is_followed=is_followed,
                )
            )

    def _tell_and_disturb(self, co_located: Sequence[Attempt], *, is_followed: bool = False) -> None:
        """A job came to or left these jobs: they report, and go on at another pace. There are mostly none."""
        if co_located:
            self._tell_progress_of(co_located, is_followed=is_followed)
            self._disturb(co_located)

    def _disturb(self, co_located: Sequence[Attempt]) -> None:
        """A job came to or left these jobs: they go on at another pace."""
        for other in co_located:
            if other.is_training:
                self._simulation.occupancy.settle(other, self._simulation.now_ms)
                self._set_pace(other)

    # --- pausing ----------------------------------------------------------------------------------------------------

    def pause(self, order: commands.PauseJob) -> None:
        """Let a training attempt stand still for so long at most; its memory stays its own."""
        simulation, attempt = self._simulation, self._present(order)
        if attempt is None or not attempt.is_training:
            simulation.tell(events.PauseRefused(at_ms=simulation.now_ms, code="NOT_PAUSABLE", **_identity(order)))
            return
        co_located = simulation.occupancy.neighbours(attempt)
        simulation.occupancy.pause(attempt, simulation.now_ms)
        attempt.is_paused = True
        until_ms = simulation.now_ms + order.paused_ms_max
        simulation.event_queue.add(until_ms, EventPriority.START, self._wake_up, (attempt, attempt.turn))
        simulation.tell(events.AttemptPaused(at_ms=simulation.now_ms, **_identity(order)))
        self._tell_and_disturb(co_located)

    def resume(self, order: commands.ResumeJob) -> None:
        """Let a paused attempt go on."""
        attempt = self._present(order)
        if attempt is not None:
            self._wake_up((attempt, attempt.turn))

    def _wake_up(self, subject: tuple[Attempt, int]) -> None:
        attempt, turn = subject
        if attempt.turn != turn or not attempt.is_paused:
            return
        simulation = self._simulation
        co_located = simulation.occupancy.neighbours(attempt)
        self._tell_progress_of(co_located)
        simulation.occupancy.resume(attempt, simulation.now_ms)
        self._set_pace(attempt)
        self._disturb(co_located)
        simulation.tell(
            events.AttemptResumed(
                at_ms=simulation.now_ms, job_id=attempt.job_id, attempt=attempt.attempt, fence=attempt.fence
            )
        )

    def _present(self, order: commands.PauseJob | commands.ResumeJob) -> Attempt | None:
        attempt = self._simulation.occupancy.attempts.get(order.job_id)
        is_meant = attempt is not None and (attempt.attempt, attempt.fence) == (order.attempt, order.fence)
        return attempt if is_meant else None

    # --- ending -----------------------------------------------------------------------------------------------------

    def leave(self, attempt: Attempt) -> None:
        """Take an attempt off its GPUs, and let the others there report and go on faster; its end is told next."""
        simulation = self._simulation
        co_located = simulation.occupancy.neighbours(attempt)
        simulation.occupancy.pause(attempt, simulation.now_ms)
        simulation.occupancy.remove(attempt)
        attempt.turn += 1
        held_ms = simulation.now_ms - attempt.launched_at_ms
        result = simulation.results[attempt.job_id]
        result.held_ms += held_ms
        result.trained_ms += attempt.trained_ms
        result.alone_ms += attempt.alone_ms
        simulation.gpu_ms_by_jobs += held_ms * len(attempt.gpu_ids)
        if simulation.settings.keeps_history:
            self._keep_spans(attempt)
        self._tell_and_disturb(co_located, is_followed=True)

    def _keep_spans(self, attempt: Attempt) -> None:
        if len(self.spans) + len(attempt.gpu_ids) > SPANS_MAX:
            self.spans_dropped += len(attempt.gpu_ids)
            return
        self.spans += [
            AttemptInterval(
                gpu_id=gpu_id,
                job_id=attempt.job_id,
                from_ms=attempt.launched_at_ms,
                until_ms=self._simulation.now_ms,
            )
            for gpu_id in attempt.gpu_ids
        ]

    def _finish(self, subject: tuple[Attempt, int]) -> None:
        attempt, turn = subject
        if attempt.turn != turn:
            return
        simulation = self._simulation
        self.leave(attempt)
        simulation.tell(
            events.JobFinished(
                at_ms=simulation.now_ms,
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                fence=attempt.fence,
                steps_done=attempt.steps_total,
            )
        )
        simulation.end(attempt.job_id, "finished")

    def stop(self, order: commands.StopJob) -> None:
        """Train no more; the GPUs are free when the checkpoint is stored."""
        simulation = self._simulation
        attempt = simulation.occupancy.attempts.get(order.job_id)
        if attempt is None or attempt.is_stopping or (attempt.attempt, attempt.fence) != (order.attempt, order.fence):
            return
        attempt.is_stopping = True
        has_begun = attempt.is_training or attempt.is_paused
        delay_ms = simulation.settings.charges.checkpoint_ms if has_begun and order.checkpoint else 0
        co_located = simulation.occupancy.neighbours(attempt)
        simulation.occupancy.pause(attempt, simulation.now_ms)
        if order.checkpoint:
            attempt.checkpoint_left_ms = attempt.work_left_ms
        attempt.turn += 1
        simulation.event_queue.add(
            simulation.now_ms + delay_ms, EventPriority.END, self._release, (attempt, attempt.turn)
        )
        self._tell_and_disturb(co_located)

    def _release(self, subject: tuple[Attempt, int]) -> None:
        attempt, turn = subject
        if attempt.turn == turn:
            self.leave(attempt)
            self.tell_stopped(attempt, exit_class="checkpointed")
            self._simulation.note_requeue(attempt.job_id)

    def tell_stopped(self, attempt: Attempt, *, exit_class: str) -> None:
        """Report that an attempt has ended with its newest checkpoint."""
        self._simulation.tell(
            events.JobStopped(
                at_ms=self._simulation.now_ms,
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                fence=attempt.fence,
                exit_class=exit_class,
                checkpoint_step=attempt.steps_at(attempt.checkpoint_left_ms),
            )
        )


def _identity(order: commands.PauseJob) -> dict[str, Any]:
    return {"job_id": order.job_id, "attempt": order.attempt, "fence": order.fence}

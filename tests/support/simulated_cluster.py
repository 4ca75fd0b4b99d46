"""A small simulated world around the engine: agents, a predictor, a log, and every fault drawn from one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import ENDED_PHASES, JobRequest, Node, Phase, Share
from tests.support.drawn_faults import DrawnGroups, Faults, end_group
from tests.support.engine_invariants import check
from tests.support.restless import make_restless_policy
from tests.support.scheduling import GIB, job, memory, node, pair, prediction
from tests.support.simulated_answers import fit_speed, refresh_pairs
from tests.support.simulated_pauses import HOST, carry_out
from tests.support.simulated_preparations import prepare
from tests.support.simulated_totals import ScriptTotals

LEASE_MS = 20_000
PAIR_REFRESH_MS = 3_000
STEP_MS = 400
PREDICTED_STEP_MS = 10_000.0
"""Wrong on purpose, and long enough that policies stop jobs for shorter ones."""


def new_engine(policy: str) -> SchedulerEngine:
    """An engine as every simulated cluster has it."""
    return SchedulerEngine(make_policy=make_restless_policy, policy=policy, pair_refresh_ms=PAIR_REFRESH_MS)


def restored_engine(text: str) -> SchedulerEngine:
    """The engine of a snapshot that was written as JSON."""
    return SchedulerEngine.restore(json.loads(text), make_policy=make_restless_policy, pair_refresh_ms=PAIR_REFRESH_MS)


@dataclass
class Attempt:
    """A process on a node."""

    launch: commands.LaunchJob
    steps_done: int
    is_stopping: bool = False
    is_paused: bool = False


@dataclass
class Machine:
    """A node with its agent."""

    node: Node
    is_connected: bool = False
    attempts: dict[tuple[str, int, int], Attempt] = field(default_factory=dict)
    seen: set[tuple[str, int]] = field(default_factory=set)
    untold: list[events.AttemptReport] = field(default_factory=list)
    lease_run: int = 0


class SimulatedCluster:
    """Runs jobs in simulated time; `run` goes on until everything has ended or the time is over."""

    def __init__(
        self,
        seed: int,
        *,
        jobs: int = 12,
        nodes: int = 3,
        gpus: int = 2,
        policy: str = "horus",
        faults: Faults | None = None,
        is_checked: bool = True,
    ) -> None:
        self.generator = random.Random(seed)
        self.faults = faults if faults is not None else Faults.drawn(self.generator)
        self.is_checked = is_checked
        self.now_ms = 0
        self.log: list[str] = []
        self.returned: list[list[commands.Command]] = []
        self.saved: tuple[int, str] | None = None
        self.engine = new_engine(policy)
        self.first_policy = policy
        self.machines = {f"n{i}": Machine(node(f"n{i}", gpus, **HOST)) for i in range(nodes)}
        self.cancelled: set[str] = set()
        self.pauses = self.preparations = 0
        self.requests = [self._request(index) for index in range(jobs)]
        self.steps_total = {request.job_id: request.steps_total for request in self.requests}
        self._totals = ScriptTotals(seed)
        self.requests = list(map(self._totals.left_to_script, self.requests))
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._turn = 0
        for index, request in enumerate(self.requests):
            self.at(index * self.generator.randrange(1, 2_000), partial(self._submit, request))
        for name in self.machines:
            self.at(self.generator.randrange(500), partial(self._join, name))
        self.at(1_000, self._misfortune)
        self.faults_until_ms = 60_000
        self._groups = DrawnGroups(seed)

    def _request(self, index: int) -> JobRequest:
        generator = self.generator
        return job(
            f"j{index}",
            key=f"key-{generator.randrange(5)}",
            gpus=generator.choice((1, 1, 1, 2)),
            allowed_gpus=(1, 2) if index % 3 == 0 else (),
            global_batch_size=1 + index % 2,
            steps_total=generator.randrange(1, 30),
            share=generator.choice(tuple(Share)),
            restart_limit=1_000,
            host_memory_bytes=generator.choice((0, GIB)),
        )

    # --- time ---------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._turn += 1
        heappush(self._agenda, (self.now_ms + max(delay_ms, 0), self._turn, action))

    def run(self, until_ms: int = 3_600_000) -> None:
        """Go on until every job has ended after the faults have stopped."""
        while self._agenda and self.now_ms < until_ms and not (self.is_calm and self.is_done):
            self.now_ms, _, action = heappop(self._agenda)
            action()

    @property
    def is_calm(self) -> bool:
        """Faults have stopped."""
        return self.now_ms > self.faults_until_ms

    @property
    def is_done(self) -> bool:
        """Every job has ended."""
        state = self.engine.state
        return sum(len(state.in_phase(phase)) for phase in ENDED_PHASES) == len(self.requests)

    # --- scheduler ----------------------------------------------------------------------------------------------

    def tell(self, event_type: type[events.Event], **values: Any) -> None:
        """Store a fact, hand it in, check everything, carry out what follows."""
        event = event_type(at_ms=self.now_ms, **{"is_followed": self._groups.draw(), **values})
        if event.is_followed:
            self.at(0, partial(end_group, self))
        self.log.append(json.dumps(encode_event(event)))
        found = self.engine.handle(event)
        self.returned.append(found)
        if self.is_checked:
            check(self.engine.state)
        assert not self.engine.state.rejected, self.engine.state.rejected
        for command in found:
            self._carry_out(command)

    def _carry_out(self, command: commands.Command) -> None:
        delay = self.generator.randrange(1, 1 + self.faults.delay_max_ms)
        if isinstance(command, commands.WakeAt):
            self.at(command.at_ms - self.now_ms, lambda: self.tell(events.TimerFired))
        elif isinstance(command, commands.LaunchJob):
            self.at(delay, lambda: self._launch(command))
        elif isinstance(command, commands.PrepareJob):
            self.at(delay, lambda: prepare(self, command))
        elif isinstance(command, commands.StopJob):
            self.at(delay, lambda: self._stop(command))
        elif isinstance(command, commands.PauseJob | commands.ResumeJob):
            self.at(delay, lambda: carry_out(self, command))
        elif isinstance(command, commands.RequestPrediction):
            self.at(delay, lambda: self._predict(command))
        elif isinstance(command, commands.RequestPairPredictions):
            self.at(delay, lambda: self._predict_pairs(command))
        elif isinstance(command, commands.RefreshPairs):
            self.at(delay, lambda: refresh_pairs(self, command))
        elif isinstance(command, commands.RequestSpeedFit | commands.RequestTaskSpeedFit):
            self.at(delay, lambda: fit_speed(self, command))

    def _predict(self, question: commands.RequestPrediction) -> None:
        if self.strikes(self.faults.predictor_down):
            self.tell(events.PredictionFailed, key=question.key, device=question.device, code="UNAVAILABLE")
            return
        size = 1 + sum(map(ord, question.key)) % 4
        answer = prediction(
            question.key,
            memory=memory(size, size * 1.2),
            in_domain=size != 3,
            step_ms={(1, 1): PREDICTED_STEP_MS * size},
        )
        self.tell(events.PredictionArrived, prediction=answer)

    def _predict_pairs(self, question: commands.RequestPairPredictions) -> None:
        keys = tuple(member.key for member in question.members)
        if self.strikes(self.faults.predictor_down):
            self.tell(events.PairPredictionsFailed, device=question.device, keys=question.new_keys, code="UNAVAILABLE")
            return
        pairs = tuple(pair(one, two, (sum(map(ord, one + two)) % 4) / 10) for one in keys for two in keys)
        self.tell(events.PairPredictionsArrived, pairs=pairs)

    def crash_scheduler(self) -> None:
        """Forget everything that is not stored; come back from snapshot and log; every stream breaks."""
        if self.saved is None:
            engine, start = new_engine(self.first_policy), 0
        else:
            start, text = self.saved
            engine = restored_engine(text)
        for line, known in zip(self.log[start:], self.returned[start:], strict=True):
            assert engine.handle(decode_event(json.loads(line))) == known
        self.engine = engine
        for name, machine in self.machines.items():
            if machine.is_connected:
                self._break_stream(name)
                self.at(self.generator.randrange(1, 2_000), partial(self._join, name))
        for command in engine.reissue():
            self._carry_out(command)

    # --- agents -------------------------------------------------------------------------------------------------

    def _launch(self, order: commands.LaunchJob) -> None:
        machine, key = self.machines[order.node_id], (order.job_id, order.attempt, order.fence)
        if not machine.is_connected or key in machine.attempts:
            return
        identity = {"job_id": order.job_id, "attempt": order.attempt, "fence": order.fence}
        if (order.job_id, order.attempt) in machine.seen:
            self.report(machine, events.JobFailed, exit_class="lost", **identity)
            return
        for other in self.machines.values():
            assert order.job_id not in {held[0] for held in other.attempts}, f"{order.job_id} runs twice at once"
        if self.strikes(self.faults.refuse_launch / 10):
            self.report(machine, events.LaunchRefused, code="OVER_CAPACITY", **identity)
            return
        machine.seen.add((order.job_id, order.attempt))
        machine.attempts[key] = Attempt(order, order.steps_done)
        self.report(machine, events.JobStarted, **identity)
        self.at(STEP_MS, lambda: self._work(machine, key))

    def _work(self, machine: Machine, key: tuple[str, int, int]) -> None:
        attempt = machine.attempts.get(key)
        if attempt is None or attempt.is_stopping:
            return
        if attempt.is_paused:
            self.at(STEP_MS, lambda: self._work(machine, key))
            return
        attempt.steps_done += 1
        identity = {"job_id": key[0], "attempt": key[1], "fence": key[2], "steps_done": attempt.steps_done}
        total = self.steps_total[key[0]]
        if self.strikes(self.faults.fail_attempt / 20):
            kind = self.generator.choice(("gpu_oom", "signal", "communication", "host_oom", "lost"))
            self._end(machine, key, events.JobFailed, exit_class=kind, memory_available_bytes=GIB, **identity)
        elif attempt.steps_done >= total:
            self._end(machine, key, events.JobFinished, **identity)
        else:
            checkpoint = attempt.steps_done if attempt.steps_done % 5 == 0 else -1
            said = {"checkpoint_step": checkpoint, "steps_total": self._totals.said(attempt.steps_done)}
            self.report(machine, events.JobProgressed, window_steps=1, window_ms=STEP_MS, **said, **identity)
            self.at(STEP_MS, lambda: self._work(machine, key))

    def _stop(self, order: commands.StopJob) -> None:
        machine, key = self.machines[order.node_id], (order.job_id, order.attempt, order.fence)
        machine.seen.add((order.job_id, order.attempt))
        if not machine.is_connected:
            return
        attempt = machine.attempts.get(key)
        if attempt is None:
            identity = {"job_id": key[0], "attempt": key[1], "fence": key[2]}
            self.report(machine, events.JobStopped, exit_class="stopped", **identity)
            return
        attempt.is_stopping = True
        self.at(
            self.generator.randrange(1, 1_000),
            lambda: self._end(
                machine,
                key,
                events.JobStopped,
                exit_class="checkpointed",
                job_id=key[0],
                attempt=key[1],
                fence=key[2],
                steps_done=attempt.steps_done,
                checkpoint_step=attempt.steps_done,
            ),
        )

    def _end(
        self, machine: Machine, key: tuple[str, int, int], kind: type[events.AttemptReport], **values: Any
    ) -> None:
        if machine.attempts.pop(key, None) is None:
            return
        machine.untold.append(kind(at_ms=self.now_ms, **values))
        self.report(machine, kind, **values)

    def report(self, machine: Machine, kind: type[events.Event], **values: Any) -> None:
        """Send a report: late, perhaps twice; lost with the stream. Ends are reported again at every joining."""
        for _ in range(2 if self.strikes(self.faults.repeat_report) else 1):
            stream = machine.lease_run
            self.at(
                self.generator.randrange(1, 1 + self.faults.delay_max_ms),
                partial(self._arrive, machine, stream, kind, values),
            )

    def _arrive(self, machine: Machine, stream: int, kind: type[events.Event], values: dict[str, Any]) -> None:
        if machine.is_connected and machine.lease_run == stream:
            self.tell(kind, **values)

    def _join(self, name: str) -> None:
        machine = self.machines[name]
        if machine.is_connected:
            return
        for report in machine.untold:
            values = {
                slot: getattr(report, slot) for slot in encode_event(report) if slot not in ("kind", "format", "at_ms")
            }
            self.tell(type(report), **values)
        machine.is_connected = True
        machine.lease_run += 1
        held = tuple(
            events.RunningAttempt(
                job_id=key[0],
                attempt=key[1],
                fence=key[2],
                gpu_ids=tuple(part.gpu_id for part in attempt.launch.assignments),
                steps_done=attempt.steps_done,
                is_paused=attempt.is_paused,
            )
            for key, attempt in machine.attempts.items()
        )
        self.tell(events.NodeJoined, node=machine.node, attempts=held)

    def _break_stream(self, name: str) -> None:
        machine = self.machines[name]
        machine.is_connected = False
        machine.lease_run += 1
        run = machine.lease_run
        self.tell(events.NodeDisconnected, node_id=name)
        self.at(LEASE_MS, lambda: self._expire(machine, run))
        self.at(LEASE_MS + 1_000, lambda: self._declare_lost(name, run))

    def _expire(self, machine: Machine, run: int) -> None:
        """The shims end what the scheduler has not renewed."""
        if not machine.is_connected and machine.lease_run == run:
            machine.attempts.clear()

    def _declare_lost(self, name: str, run: int) -> None:
        machine = self.machines[name]
        if not machine.is_connected and machine.lease_run == run:
            self.tell(events.NodeLost, node_id=name)

    # --- misfortune ---------------------------------------------------------------------------------------------

    def strikes(self, probability: float) -> bool:
        return not self.is_calm and self.generator.random() < probability

    def _misfortune(self) -> None:
        if self.is_calm:
            self._repair()
            return
        self.at(1_000, self._misfortune)
        for name, machine in self.machines.items():
            if machine.is_connected and self.strikes(self.faults.crash_node):
                machine.attempts.clear()
                machine.untold.clear()
                self._break_stream(name)
                self.at(self.generator.randrange(500, 40_000), partial(self._join, name))
            elif machine.is_connected and self.strikes(self.faults.cut_node):
                self._break_stream(name)
                self.at(self.generator.randrange(500, 40_000), partial(self._join, name))
        self._misfortune_of_the_cluster()

    def _misfortune_of_the_cluster(self) -> None:
        if self.strikes(self.faults.cancel):
            chosen = self.generator.choice(self.requests).job_id
            self.cancelled.add(chosen)
            self.tell(events.JobCancelled, job_id=chosen)
        if self.strikes(self.faults.choose_policy):
            self.tell(events.PolicyChosen, policy=self.generator.choice(("fifo", "horus", "horus_f", "restless")))
        if self.strikes(self.faults.sick_gpu):
            gpu_id = f"n{self.generator.randrange(len(self.machines))}.0"
            self.tell(events.GpuHealthChanged, gpu_id=gpu_id, healthy=self.generator.random() < 0.5)
        if self.strikes(0.1):
            self.saved = len(self.log), json.dumps(self.engine.snapshot())
        if self.strikes(self.faults.crash_scheduler):
            self.crash_scheduler()

    def _repair(self) -> None:
        for name in self.machines:
            self.at(1, partial(self._join, name))
            for gpu in self.machines[name].node.gpus:
                self.tell(events.GpuHealthChanged, gpu_id=gpu.gpu_id, healthy=True)

    def _submit(self, request: JobRequest) -> None:
        self.tell(events.JobSubmitted, request=request, graph_sha256="graph")

    def outcomes(self) -> dict[str, Phase]:
        """Return how every job ended."""
        return {
            request.job_id: self.engine.state.jobs[request.job_id].phase
            for request in self.requests
            if self.engine.state.jobs[request.job_id].phase in ENDED_PHASES
        }

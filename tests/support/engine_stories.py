"""Seeded stories of an engine beside a bridge: mass submissions, strangers, kills between two orders, odd comments."""

from __future__ import annotations

import asyncio
import contextlib
import random

from cotenant.engines.bridge import Bridge
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.records import EnginePhase
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support.simulated_engine import SimulatedEngine

POLICIES = ("horus", "fifo", "sjf_bsbf", "best_fit")
_ROUNDS = 4
_COMMENTS = (
    "cotenant memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5",
    "cotenant memory=11GiB utilization=0.2 slowdown=0.2 share=any max_slowdown=1",
    "cotenant memory=23GiB utilization=0.9 slowdown=0.9",
    "cotenant memory=5GiB utilization=0.1 slowdown=0 share=never",
    "cotenant memory=48GiB",
    "cotenant",
    "cotenant memory=-1 utilization=nan batch=0 =",
    "a job of somebody else",
)


class EngineStory:
    """One story.

    Args:
        seed: The same seed tells the same story.
    """

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed)
        self.engine = SimulatedEngine(nodes=self._generator.choice((1, 2)), slots=self._generator.choice((0, 1, 4, 16)))
        self._policy = self._generator.choice(POLICIES)
        self._jobs = 0

    def tell(self) -> list[str]:
        """Live through it; return what went wrong."""
        faults = []
        with asyncio.Runner() as runner:
            for number in range(_ROUNDS):
                self._happen()
                before = {job_id: job for job_id, job in self.engine.jobs.items() if job.held_slots}
                self._run_round(runner, number)
                faults += self.engine.faults()
                faults += [
                    f"the GPUs of {job_id} were changed"
                    for job_id, job in before.items()
                    if self.engine.jobs[job_id].held_slots != job.held_slots
                ]
        return faults + self._orders_given_twice()

    def _run_round(self, runner: asyncio.Runner, number: int) -> None:
        def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
            return runner.run(decide(request, predictor=None, seconds_left=60))

        engine = self.engine
        engine.is_away = self._generator.random() < 0.1
        engine.fails_after = self._generator.choice((None, None, None, 0, 1, 2, 5)) if number + 1 < _ROUNDS else None
        with contextlib.suppress(KeyboardInterrupt, EngineUnreachableError):
            Bridge(engine, ask, policy=self._policy, places=True).run_round(now_ms=1_000 * number)
        engine.fails_after, engine.is_away = None, False

    def _happen(self) -> None:
        generator, engine = self._generator, self.engine
        for _ in range(generator.choice((0, 1, 3, 12))):
            self._jobs += 1
            phase = generator.choice((EnginePhase.HELD, EnginePhase.HELD, EnginePhase.WAITING))
            engine.submit(
                str(self._jobs), generator.choice(_COMMENTS), phase=phase, gpus=generator.choice((1, 1, 1, 2))
            )
        if generator.random() < 0.3:
            free = sorted(engine.read().gpus.keys() - {gpu for job in engine.jobs.values() for gpu in job.held_slots})
            if free:
                engine.run_elsewhere(f"9{self._jobs}{len(engine.jobs)}", generator.choice(free))
        for job_id in [job_id for job_id, job in engine.jobs.items() if job.phase is EnginePhase.RUNNING]:
            if generator.random() < 0.3:
                engine.finish(job_id)

    def _orders_given_twice(self) -> list[str]:
        placed = [order.split()[1] for order in self.engine.orders if order.startswith("place ")]
        return [f"{job_id} was placed twice" for job_id in set(placed) if placed.count(job_id) > 1]

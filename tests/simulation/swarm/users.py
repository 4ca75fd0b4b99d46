"""Users: they submit jobs, ask again until they are answered, and cancel some."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.events import PolicyChosen
from scheduler_service.errors import SchedulerServiceError, UnknownJobError
from scheduler_service.grpc_api.jobs import job_requests
from scheduler_service.live_loop import Mutation, Proposal
from tests.simulation.swarm.job_process import JobPlan
from tests.simulation.swarm.virtual_time import KilledError, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.swarm.world import World

_PATIENCE_S = 4.0
_GIB = 1 << 30
_LONG_TIMES = 3
"""So much longer than others are jobs that are paused for each other."""


class Users:
    """All users of one run.

    Attributes:
        tokens: Every job, by the name that it has for ever.
        job_ids: What the scheduler called those that were answered.
    """

    def __init__(self, world: World, jobs: int) -> None:
        self._world = world
        self.tokens = [f"t{index}" for index in range(jobs)]
        self.job_ids: dict[str, str] = {}
        self._process = SimulatedProcess("users", world.schedulers[0].machine)
        forms = random.Random(f"forms-{world.seed}")
        for token in self.tokens:
            world.plans[token] = JobPlan.drawn(token, world.generator, forms)

    def begin(self) -> None:
        """Let everybody come at a time of their own."""
        generator = self._world.generator
        self.choose_policy(self._world.policy)
        for token in self.tokens:
            request = self._request(token)
            delay_s = generator.choice((0.0, 1.0)) + generator.random() * generator.choice((2.0, 40.0))
            self._process.later(delay_s, partial(self._submit, token, request))

    def unanswered(self) -> list[str]:
        """Jobs whose submission was not answered yet."""
        return [f"{token} unanswered" for token in self.tokens if token not in self.job_ids]

    def cancel_one(self) -> None:
        """Somebody changes their mind."""
        if self.job_ids:
            token = self._world.generator.choice(sorted(self.job_ids))
            self._world.trace("cancel", token)
            self._process.spawn(self._cancel(self.job_ids[token]))

    def choose_policy(self, policy: str) -> None:
        """The operator wants another policy."""
        event = PolicyChosen(at_ms=0, policy=policy)
        self._process.spawn(self._ask(lambda _: Mutation(propose=lambda: Proposal(event=event, answer=""))))

    def _request(self, token: str) -> scheduling_pb2.SubmitJobRequest:
        generator, plan = self._world.generator, self._world.plans[token]
        gpus = generator.choice((1, 1, self._world.gpus_per_node))
        share = resources_pb2.SHARE_MODE_NEVER if plan.is_exclusive else generator.choice(
            (resources_pb2.SHARE_MODE_SAFE, resources_pb2.SHARE_MODE_ANY)
        )  # fmt: skip
        spec = scheduling_pb2.JobSpec(
            command=self._world.command(),
            environment={"SEED": token},
            gpus=gpus,
            ranks=gpus if gpus > 1 and generator.random() < 0.6 else 0,
            steps_total=plan.steps_total,
            share=share,
            checkpoint_ms=int(max(plan.stop_s, 0.1) * 1_000),
            restart_limit=1_000,
            memory_bytes=generator.choice((0, 2 * _GIB)),
            time_limit_ms=generator.choice((0, 0, 0, 0, 0, 8_000, 30_000)),
        )
        ratio = 0.9 if self._world.have_parts_ends else 0.7 if self._world.do_gangs_move else 0.3
        if self._world.has_gangs_across and generator.random() < ratio:
            if self._world.do_gangs_move:
                # Long enough to be moved a few times.
                plan = self._world.plans[token] = replace(plan, steps_total=2 * plan.steps_total)
                spec.steps_total = plan.steps_total
            spec.gpus = spec.ranks = generator.choice((2, self._world.gpus_per_node + 1))
            spec.across_nodes = True
        if self._world.measures_new_jobs:
            # No two are alike, and nothing is known of any.
            plan = replace(plan, steps_total=_LONG_TIMES * plan.steps_total, is_exclusive=False)
            self._world.plans[token] = plan
            spec.steps_total, spec.max_slowdown_ratio, spec.time_limit_ms = plan.steps_total, 0.5, 0
            spec.share = resources_pb2.SHARE_MODE_SAFE
        elif generator.random() < 0.7:
            spec.graph_sha256 = f"{generator.randrange(4):064x}"
            spec.settings.CopyFrom(resources_pb2.JobSettings(global_batch_size=8))
        return scheduling_pb2.SubmitJobRequest(request_id=f"request-{token}", spec=spec)

    def _submit(self, token: str, request: scheduling_pb2.SubmitJobRequest) -> None:
        self._process.spawn(self._submit_until_answered(token, request))
        if self._world.strikes("repeat"):
            self._process.spawn(self._submit_until_answered(token, request))

    async def _submit_until_answered(self, token: str, request: scheduling_pb2.SubmitJobRequest) -> None:
        job_id = await self._ask(
            lambda cluster: job_requests.submission(request, cluster.engine, cluster.numbers, has_trials=True)
        )
        known = self.job_ids.setdefault(token, job_id)
        if known != job_id and self._world.must_know(token):
            self._world.violation(f"{token} was accepted twice: {known} and {job_id}")
        self._world.witness.accepted[token] = None
        self._world.trace("accepted", token, job_id)

    async def _cancel(self, job_id: str) -> None:
        request = scheduling_pb2.CancelJobRequest(job_id=job_id)
        await self._ask(lambda cluster: job_requests.cancellation(request, cluster.engine))

    def order_once(self, mutation_of: Callable[[Any], Mutation]) -> None:
        """Let somebody ask for something; who gets no answer, or a refusal, leaves it."""
        self._process.spawn(self._order_once(mutation_of))

    async def _order_once(self, mutation_of: Callable[[Any], Mutation]) -> None:
        host = self._world.schedulers[0]
        if host.loop is None or host.process is None:
            return
        answer: asyncio.Future[str] = self._world.loop.create_future()
        host.process.spawn(_answer(host.scheduling._cluster, mutation_of, answer))
        with contextlib.suppress(TimeoutError, SchedulerServiceError):
            await asyncio.wait_for(answer, _PATIENCE_S)

    async def _ask(self, mutation_of: Callable[[Any], Mutation]) -> str:
        """Ask until there is an answer; who is asked may die meanwhile."""
        while True:
            host = self._world.schedulers[0]
            if host.loop is not None and host.process is not None:
                answer: asyncio.Future[str] = self._world.loop.create_future()
                host.process.spawn(_answer(host.scheduling._cluster, mutation_of, answer))
                try:
                    return await asyncio.wait_for(answer, _PATIENCE_S)
                except UnknownJobError:
                    return ""
                except (TimeoutError, SchedulerServiceError):
                    pass
            await asyncio.sleep(0.5)


async def _answer(cluster: Any, mutation_of: Callable[[Any], Mutation], answer: asyncio.Future[str]) -> None:
    try:
        found = await cluster.loop.mutate(mutation_of(cluster))
    except SchedulerServiceError as error:
        if not answer.done():
            answer.set_exception(error)
    except KilledError:
        raise
    else:
        if not answer.done():
            answer.set_result(found)

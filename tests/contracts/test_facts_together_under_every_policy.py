"""Whatever the policy, facts that are handed in together leave the cluster as right as those that come one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import ENDED_PHASES, Phase
from scheduler_service.policy_registry import POLICIES, make_policy
from tests.support.engine_invariants import check
from tests.support.scheduling import job, memory, node, pair, prediction

WIDTHS = (1, 2, 1, 1, 2, 1, 1, 1)
ROUNDS_MAX = 60
SECOND_MS = 1_000


class Cluster:
    """Two nodes of two GPUs whose agents and predictor answer everything at once, each second as one group of facts."""

    def __init__(self, policy: str, *, is_together: bool) -> None:
        self.engine = SchedulerEngine(make_policy=make_policy, policy=policy)
        self.is_together = is_together
        self.now_ms = 0
        self.answers: list[events.Event] = []
        self.steps: dict[str, int] = {}

    def tell(self, facts: list[events.Event]) -> None:
        """Hand in what is known now."""
        for number, fact in enumerate(facts, start=1):
            is_followed = self.is_together and number < len(facts)
            orders = self.engine.handle(replace(fact, is_followed=is_followed))
            check(self.engine.state)
            assert not self.engine.state.rejected
            assert not is_followed or not any(isinstance(one, commands.LaunchJob) for one in orders)
            self.answers += [answer for one in orders for answer in self.answer(one)]
        assert self.engine.state.put_off is None

    def answer(self, order: commands.Command) -> Iterator[events.Event]:
        """Answer as predictor."""
        if isinstance(order, commands.RequestPrediction):
            known = prediction(order.key, memory=memory(1, 2), step_ms={(1, 1): 1_000.0, (2, 1): 700.0})
            yield events.PredictionArrived(at_ms=self.now_ms, prediction=known)
        elif isinstance(order, commands.RequestPairPredictions):
            keys = [member.key for member in order.members]
            pairs = tuple(pair(one, two) for one in keys for two in keys)
            yield events.PairPredictionsArrived(at_ms=self.now_ms, pairs=pairs)

    def reports(self) -> Iterator[events.Event]:
        """Report as agents: what starts has started, what runs has done another step, what shall stop has stopped."""
        for record in list(self.engine.state.jobs.values()):
            name: dict[str, Any] = {
                "at_ms": self.now_ms,
                "job_id": record.job_id,
                "attempt": record.attempt,
                "fence": record.fence,
            }
            if record.phase is Phase.STARTING:
                yield events.JobStarted(**name)
            elif record.phase is Phase.RUNNING:
                done = self.steps[record.job_id] = self.steps.get(record.job_id, 0) + 1
                kind = events.JobFinished if done >= record.request.steps_total else events.JobProgressed
                yield kind(**name, steps_done=done)
            elif record.phase is Phase.STOPPING:
                yield events.JobStopped(**name, exit_class="checkpointed", checkpoint_step=self.steps[record.job_id])

    def run(self) -> None:
        """Go on until every job has ended."""
        self.tell([events.NodeJoined(at_ms=0, node=node(name, 2)) for name in ("n0", "n1")])
        lengths = {f"j{n}": 2 + n % 3 for n in range(len(WIDTHS))}
        requests = [job(name, gpus=WIDTHS[n], steps_total=lengths[name]) for n, name in enumerate(lengths)]
        self.tell([events.JobSubmitted(at_ms=0, request=one, graph_sha256="g") for one in requests])
        for _ in range(ROUNDS_MAX):
            self.now_ms += SECOND_MS * 30
            facts, self.answers = [*self.answers, *self.reports()], []
            self.tell([*facts, events.TimerFired(at_ms=self.now_ms)])
            if all(one.phase in ENDED_PHASES for one in self.engine.state.jobs.values()):
                return


@pytest.mark.parametrize("is_together", [False, True])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_job_ends_well_whether_facts_come_singly_or_together(policy: str, *, is_together: bool) -> None:
    cluster = Cluster(policy, is_together=is_together)
    cluster.run()
    jobs = cluster.engine.state.jobs.values()
    assert {one.phase for one in jobs} == {Phase.FINISHED}
    assert len(jobs) == len(WIDTHS)

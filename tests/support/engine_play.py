"""An engine that gets one fact after another."""

from __future__ import annotations

from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Phase
from scheduler_service.policy_registry import make_policy
from tests.support.engine_invariants import check
from tests.support.scheduling import job, node


class Play:
    """An engine with a clock that moves one second per fact."""

    def __init__(self, policy: str = "horus", *, nodes: int = 1, gpus: int = 1, **options: Any) -> None:
        self.engine = SchedulerEngine(make_policy=make_policy, policy=policy, **options)
        self.now_ms = 0
        for index in range(nodes):
            self.tell(events.NodeJoined, node=node(f"n{index}", gpus))

    def tell(self, kind: type[events.Event], *, after_ms: int = 1_000, **values: Any) -> list[commands.Command]:
        self.now_ms += after_ms
        found = self.engine.handle(kind(at_ms=self.now_ms, **values))
        check(self.engine.state)
        assert not self.engine.state.rejected
        return found

    def submit(self, job_id: str = "j0", *, graph: str = "", **changes: Any) -> list[commands.Command]:
        return self.tell(events.JobSubmitted, request=job(job_id, **changes), graph_sha256=graph)

    def report(self, kind: type[events.AttemptReport], job_id: str = "j0", **values: Any) -> list[commands.Command]:
        record = self.engine.state.jobs[job_id]
        return self.tell(kind, job_id=job_id, **{"attempt": record.attempt, "fence": record.fence, **values})

    def code(self, job_id: str = "j0") -> str:
        return self.engine.state.decisions[job_id].reason.code

    def phase(self, job_id: str = "j0") -> Phase:
        return self.engine.state.jobs[job_id].phase

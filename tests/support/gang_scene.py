"""An engine with one gang, whose every fact is written and read again before it is told."""

from __future__ import annotations

from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase
from tests.support.engine_invariants import check


class GangScene:
    """Tells an engine what becomes of the job j0, a second after each other."""

    def __init__(self, engine: SchedulerEngine) -> None:
        self.now_ms = 0
        self.engine = engine

    def tell(self, kind: type[events.Event], **values: Any) -> list[Any]:
        """Return the orders that follow from a fact."""
        self.now_ms += 1_000
        event = decode_event(encode_event(kind(at_ms=self.now_ms, **values)))
        found = self.engine.handle(event)
        check(self.engine.state)
        return [one for one in found if not isinstance(one, commands.WakeAt)]

    def say(self, node_id: str, kind: type[events.AttemptReport], **values: Any) -> list[Any]:
        """Return what follows from what a node says of the present attempt."""
        record = self.record
        return self.tell(kind, job_id="j0", attempt=record.attempt, fence=record.fence, node_id=node_id, **values)

    @property
    def record(self) -> JobRecord:
        return self.engine.state.jobs["j0"]

    @property
    def phase(self) -> Phase:
        return self.record.phase

"""A policy of somebody else may answer anything: it is an error of the policy, and the cluster goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Hold, HoldMany, Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Assignment, Reason
from tests.support.engine_invariants import check
from tests.support.scheduling import job, node

FULL: Any = Reason(code="CLUSTER_FULL")
WORDS: Any = "because"
GPUS = (Assignment(gpu_id="g0", rank=0),)
NONSENSE: list[tuple[Any, str]] = [
    (None, "object is not iterable"),
    (7, "object is not iterable"),
    ([42], "decide(view) returned 42, which is no decision"),
    (["j0"], "decide(view) returned 'j0', which is no decision"),
    ([Hold(job_id="j0", reason=WORDS)], "the reason of job j0 is 'because', not a Reason"),
    ([Hold(job_id=["j0"], reason=FULL)], "is about job ['j0'], not about a job's id"),  # type: ignore[arg-type]
    ([HoldMany(job_ids=WORDS, reason=FULL)], "the jobs of a hold are 'because', not a tuple"),
    ([Start(job_id="j0", reason=FULL, assignments=(WORDS,), micro_batch_size=1)], "('because',), not assignments"),
    ([Start(job_id="j0", reason=FULL, assignments=None, micro_batch_size=1)], "not iterable"),  # type: ignore[arg-type]
    ([Start(job_id="j0", reason=FULL, assignments=GPUS, micro_batch_size=WORDS)], "passes ('because', 1), not"),
]


@dataclass
class Odd:
    """A policy that answers what it was given."""

    answer: Any

    def decide(self, view: SchedulingView) -> Any:
        return self.answer


@pytest.mark.parametrize(("answer", "complaint"), NONSENSE, ids=[complaint for _, complaint in NONSENSE])
def test_an_answer_that_is_no_list_of_decisions_is_an_error_of_the_policy(answer: Any, complaint: str) -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: Odd(answer), policy="odd")
    engine.handle(events.NodeJoined(at_ms=0, node=node()))
    engine.handle(events.JobSubmitted(at_ms=1, request=job("j0")))
    check(engine.state)
    assert engine.state.decisions["j0"].reason.code == "POLICY_FAILED"
    assert complaint in engine.state.rejected[-1].detail

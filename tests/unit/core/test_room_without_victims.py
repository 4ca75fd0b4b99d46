"""GPUs that nobody holds any more are found without a look at the jobs that run, and whoever leaves them."""

from __future__ import annotations

from typing import NoReturn

import pytest

from scheduler_service.core.cluster_view.ledger import Ledger
from scheduler_service.core.cluster_view.view import RunningJob
from scheduler_service.core.records import Reason
from scheduler_service.policies.placement.long_running import LongRunning
from scheduler_service.policies.placement.preemption import PreemptionPlanner
from scheduler_service.policies.srtf import Srtf
from tests.support.scheduling import job, node, pending, prediction, running, store, view

KNOWN = store([prediction("key", step_ms={(1, 1): 10.0})])


def holder(job_id: str, gpu_id: str, *, is_stopping: bool = False) -> RunningJob:
    return running(job(job_id, key="key", steps_total=1_000_000), [gpu_id], is_stopping=is_stopping)


def test_a_job_that_only_waits_for_a_gpu_to_be_released_ranks_no_running_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a running job was ranked")

    holding = [holder("leaving", "n0.0", is_stopping=True), *(holder(f"stays-{i}", f"n0.{i}") for i in range(1, 4))]
    waiting = [pending(job("short", key="key", steps_total=5))]
    seen = view(nodes=[node("n0", 4)], holding=holding, waiting=waiting, predictions=KNOWN)
    monkeypatch.setattr(PreemptionPlanner, "_rank", refuse)
    (hold,) = Srtf().decide(seen)
    assert hold.reason == Reason(code="GPU_RELEASING", gpu_ids=("n0.0",))


def test_a_gpu_that_a_job_of_a_higher_class_is_leaving_counts_as_one_that_will_be_free() -> None:
    holding = [holder("leaving", "n0.0", is_stopping=True), holder("stays", "n0.1")]
    both = frozenset({"leaving", "stays"})
    seen = view(nodes=[node("n0", 2)], holding=holding, predictions=KNOWN, protected_job_ids=both)
    found = LongRunning(Ledger(seen))
    assert (found.reach_ms(1), found.reach_ms(2)) == (float("inf"), float("-inf"))

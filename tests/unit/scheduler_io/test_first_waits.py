"""The metric first_wait_seconds: once per job, from submission until its process first ran."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.core import commands, events
from scheduler_service.grpc_api.metrics import Metrics
from tests.support.engine_play import Play

NAME = "cotenant_scheduler_first_wait_seconds"


class CountedPlay(Play):
    """An engine whose facts are counted as the live loop does it."""

    def __init__(self, **options: Any) -> None:
        self.metrics = Metrics(
            state=lambda: self.engine.state,
            sessions=AgentSessions(),
            now_ms=lambda: self.now_ms,
            storage_failure=lambda: "",
        )
        super().__init__("fifo", **options)

    def tell(self, kind: type[events.Event], *, after_ms: int = 1_000, **values: Any) -> list[commands.Command]:
        found = super().tell(kind, after_ms=after_ms, **values)
        event = kind(at_ms=self.now_ms, **values)
        self.metrics.event_handled(event, found, duration_ns=1)
        return found

    def waits(self) -> tuple[float, float]:
        """How many first waits the page counts, and their sum in s."""
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        found = dict(line.split(" ") for line in lines if line.startswith((f"{NAME}_count", f"{NAME}_sum")))
        return float(found[f"{NAME}_count"]), float(found[f"{NAME}_sum"])


def test_a_first_wait_lasts_until_the_process_runs_and_counts_once() -> None:
    play = CountedPlay()
    play.submit()
    assert play.waits() == (0, 0)
    play.report(events.JobStarted, after_ms=2_500)
    assert play.waits() == (1, 2.5)
    play.report(events.JobProgressed, steps_done=1, after_ms=0)
    play.report(events.JobStarted)
    assert play.waits() == (1, 2.5)


@pytest.mark.parametrize("first", [events.JobStarted, events.JobProgressed])
def test_a_second_attempt_is_no_first_wait_and_progress_may_be_the_first_word(first: type[events.Event]) -> None:
    play = CountedPlay()
    play.submit()
    values = {"steps_done": 1} if first is events.JobProgressed else {}
    play.report(first, after_ms=4_000, **values)  # type: ignore[arg-type]
    play.report(events.JobFailed, exit_class="gpu_fault")
    while play.phase().value != "starting":
        play.tell(events.TimerFired, after_ms=60_000)
    play.report(events.JobStarted)
    assert play.waits() == (1, 4.0)


def test_the_wait_of_a_job_behind_another_is_the_whole_time() -> None:
    play = CountedPlay()
    play.submit("a")
    play.report(events.JobStarted, "a")
    play.submit("b")
    play.report(events.JobFinished, "a", steps_done=10, after_ms=100_000)
    play.report(events.JobStarted, "b", after_ms=3_000)
    assert play.waits() == (2, 1.0 + 103.0)

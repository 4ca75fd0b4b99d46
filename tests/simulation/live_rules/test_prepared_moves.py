"""What a move costs in a simulated run, from nothing and where the next attempt is prepared beside the present one."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant_simulator.run.records import OverheadCosts
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Migrate
from scheduler_service.core.records import Assignment, Reason
from scheduler_service.policies.fifo import Fifo
from tests.support.cases import for_each
from tests.support.simulated_runs import simulation, trace_job, trace_of


class MovesOnce:
    """First in, first out; the second job's arrival moves the first one to another GPU."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.has_moved = False

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        if view.pending and view.running and not self.has_moved:
            self.has_moved = True
            place = (Assignment(gpu_id=self.target),)
            return [Migrate(job_id="first", reason=Reason(code="CANDIDATE"), assignments=place)]
        return Fifo().decide(view)


def finished_s(target: str, cluster: str, **charges: int | None) -> float:
    """Return when a job of 100 s ended that was moved after 10 s of it."""
    trace = trace_of(trace_job("first"), trace_job("second", at_s=10, seconds=1))
    costs = OverheadCosts(launch_ms=0, checkpoint_interval_ms=0, **charges)  # type: ignore[arg-type]
    run = simulation(trace, cluster=cluster, charges=costs)
    run.engine._policy = MovesOnce(target)
    return run.run().jobs[0].finished_at_ms / 1_000


@for_each(
    ("charges", "expected_s"),
    [
        ({}, 115.0),
        ({"prepared_restart_ms": 2_000}, 107.0),
        ({"prepared_restart_ms": 2_000, "prepare_ms": 8_000}, 107.0),
        # Longer than the engine waits: the job is stopped after a minute, and what is prepared by then is used.
        ({"prepared_restart_ms": 2_000, "prepare_ms": 90_000}, 115.0),
        ({"prepared_restart_ms": 2_000, "prepare_ms": 500_000}, 100.0 + 15.0),
    ],
)
def test_a_prepared_move_costs_the_checkpoint_and_the_prepared_start(
    charges: dict[str, int], expected_s: float
) -> None:
    assert finished_s("n00000.1", "1x3", restart_ms=10_000, checkpoint_ms=5_000, **charges) == expected_s


def test_a_move_to_another_node_is_prepared_there() -> None:
    assert finished_s("n00001.0", "2x2", restart_ms=10_000, checkpoint_ms=5_000, prepared_restart_ms=2_000) == 107.0

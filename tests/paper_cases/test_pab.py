"""PAB as the Horus paper describes it (section 5.2): half the steps per second, after a minute."""

from __future__ import annotations

import pytest

from scheduler_service.core.decisions import Decision, Start, Stop, unfolded
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.policies.pab import PerformanceAwareBinPacking
from tests.support.scheduling import all_pairs, job, memory, node, pending, prediction, running, store, view

KNOWN = store([prediction("key", memory=memory(1))], all_pairs(["key"]))


def decided(
    *, old_step_ms: float, new_age_ms: int = 60_000, old_solo_ms: float = 100.0, **changes: object
) -> list[Decision]:
    """An old job and a newer one on one GPU, and one that waits."""
    old = running(job("old", key="key"), ["n0.0"], started_at_ms=0, step_ms=old_step_ms, solo_step_ms=old_solo_ms)
    new = running(job("new", key="key"), ["n0.0"], started_at_ms=500_000 - new_age_ms, **changes)
    seen = view(nodes=[node("n0", 2)], holding=[old, new], predictions=KNOWN, now_ms=500_000)
    return list(unfolded(PerformanceAwareBinPacking().decide(seen)))


@pytest.mark.parametrize(
    ("old_step_ms", "new_age_ms", "stopped"),
    [
        (199.0, 60_000, []),
        (200.0, 60_000, ["new"]),
        (400.0, 59_999, []),
        (0.0, 60_000, []),
    ],
)
def test_section_5_2_the_newest_job_is_requeued_when_half_the_steps_per_second_are_lost(
    old_step_ms: float, new_age_ms: int, stopped: list[str]
) -> None:
    decisions = decided(old_step_ms=old_step_ms, new_age_ms=new_age_ms)
    assert [one.job_id for one in decisions if isinstance(one, Stop)] == stopped


def test_the_newest_leaves_also_when_it_is_the_one_that_suffers() -> None:
    (only,) = decided(old_step_ms=100.0, step_ms=300.0, solo_step_ms=100.0)
    assert isinstance(only, Stop)
    assert (only.job_id, only.checkpoint) == ("new", True)
    assert only.reason.numbers["lost_ratio"] == pytest.approx(2 / 3)


def test_no_job_is_accused_without_a_time_alone_nor_while_another_leaves() -> None:
    assert decided(old_step_ms=900.0, old_solo_ms=0.0) == []
    assert decided(old_step_ms=900.0, is_stopping=True) == []


def test_jobs_are_placed_where_most_memory_is_free() -> None:
    seen = view(
        nodes=[node("n0", 2)],
        holding=[running(job("r", key="key"), ["n0.0"])],
        waiting=[pending(job("new", key="key"))],
        predictions=KNOWN,
    )
    (start,) = PerformanceAwareBinPacking().decide(seen)
    assert isinstance(start, Start)
    assert start.assignments[0].gpu_id == "n0.1"


def test_a_drop_of_everything_or_nothing_is_refused() -> None:
    with pytest.raises(PolicyParameterError, match="between 0 and 1"):
        PerformanceAwareBinPacking(drop_ratio=1.0)

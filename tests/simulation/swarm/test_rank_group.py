"""Which processes the swarm's witness takes for one gang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.simulation.swarm.rank_group import RankGroup, group_of

PART: dict[str, Any] = {
    "is_part": True,
    "incarnation_id": "i",
    "job_id": "job-5",
    "attempt": 1,
    "fence": 6,
    "world_size": 2,
    "ranks": [{}],
}


def started(machine: Any, launcher: str, *, ordered_s: float) -> RankGroup:
    """The group of a part that a scheduler ordered then."""
    group = group_of(machine, PART, launcher, [])
    group.members.append(SimpleNamespace(ordered_s=ordered_s))  # type: ignore[arg-type]
    return group


def machine_of(**copied_s: float) -> Any:
    return SimpleNamespace(world=SimpleNamespace(groups={}, copied_s=copied_s))


def test_a_copy_of_a_scheduler_goes_on_with_the_gang_of_which_the_original_had_started_a_part() -> None:
    """Seed 540641: the original died after the first part; its copy, which had the decision, started the second."""
    machine = machine_of(copy=30.0)
    assert started(machine, "head", ordered_s=25.0) is started(machine, "copy", ordered_s=33.0)


def test_what_two_schedulers_start_under_one_key_after_the_copy_was_made_are_two_gangs() -> None:
    machine = machine_of(copy=30.0)
    assert started(machine, "head", ordered_s=31.0) is not started(machine, "copy", ordered_s=33.0)

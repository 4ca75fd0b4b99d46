"""How much of its life a job lends so that others are measured next to it, and which jobs are too short for that."""

from __future__ import annotations

import pytest

from scheduler_service.core import events
from scheduler_service.core.trial_sharing.first_measurement_rules import lendable_ms, lent_ratio_max
from tests.support.scheduling import job, node
from tests.unit.core.test_first_measurements import FREEZER
from tests.unit.core.test_trials import TrialPlay, launched


def test_what_a_job_lends_is_a_twentieth_of_its_life_at_most() -> None:
    asked = job("a", max_slowdown_ratio=0.2)
    assert lendable_ms(asked, ran_ms=0, remaining_ms=300_000, lent_ms=0, least_ms=15_000) == 15_000
    assert lendable_ms(asked, ran_ms=100_000, remaining_ms=199_000, lent_ms=0, least_ms=15_000) == 0
    assert lendable_ms(asked, ran_ms=0, remaining_ms=600_000, lent_ms=20_000, least_ms=15_000) == 0
    assert lendable_ms(asked, ran_ms=1e9, remaining_ms=None, lent_ms=0, least_ms=15_000) == 60_000


@pytest.mark.parametrize(
    ("accepted_ratio", "lent_ratio"), [(0.01, 0.01), (0.1, 0.05), (0.2, 0.05), (0.5, 0.125), (1.0, 0.25), (9.0, 0.25)]
)
def test_a_job_that_accepts_more_lends_more_never_more_than_it_accepts(
    accepted_ratio: float, lent_ratio: float
) -> None:
    asked = job("a", max_slowdown_ratio=accepted_ratio)
    assert lent_ratio_max(asked) == lent_ratio
    assert lendable_ms(asked, ran_ms=0, remaining_ms=100_000, lent_ms=0, least_ms=1) == int(lent_ratio * 100_000)


def test_jobs_whose_nodes_report_more_often_are_measured_next_to_shorter_jobs() -> None:
    def launched_next_to(remaining_s: int, report_interval_ms: int) -> list[str]:
        play = TrialPlay("sjf_bsbf", nodes=0, report_interval_ms=report_interval_ms)
        play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
        play.unsure("a", steps_total=remaining_s * 10)
        play.measured_alone("a")
        return launched(play.unsure("b"))

    assert [launched_next_to(remaining_s, 2_000) for remaining_s in (200, 400)] == [[], ["b"]]
    assert [launched_next_to(remaining_s, 500) for remaining_s in (50, 100)] == [[], ["b"]]


def test_a_job_that_has_lost_nearly_all_that_it_accepts_is_no_host_any_more() -> None:
    def launched_next_to_one_slowed_by(ratio: float) -> list[str]:
        play = TrialPlay("sjf_bsbf", nodes=0)
        play.tell(events.NodeJoined, node=node("n0", 1, **FREEZER))
        play.unsure("a", steps_total=3_000, max_slowdown_ratio=0.5)
        play.measured_alone("a")
        play.unsure("c", key="key-a", steps_total=100, max_slowdown_ratio=1.0)
        play.report(events.JobStarted, "c")
        while play.engine.state.jobs["a"].steps_done < 2_280:
            play.window("a", round(100 * (1 + ratio)))
        play.report(events.JobFinished, "c", steps_done=100)
        return launched(play.unsure("b", max_slowdown_ratio=0.5))

    assert launched_next_to_one_slowed_by(0.1) == ["b"]
    assert launched_next_to_one_slowed_by(0.49) == []

from __future__ import annotations

from dataclasses import replace

from cotenant_agent.devices.memory_watchdog import MemorySample, MemoryWatchdog, Verdict, claimed_bytes, surge_bytes
from cotenant_agent.records import AttemptKey

CAPACITY = {"gpu-0": 1000}


def sample(job_id: str, used: int, *, limit: int = 0, started_ms: int = 0) -> MemorySample:
    key = AttemptKey(job_id=job_id, attempt=1, fence=1)
    return MemorySample(key=key, gpu_ids=("gpu-0",), used_bytes=used, limit_bytes=limit, started_ms=started_ms)


def judge(times: int, *samples: MemorySample, ending: tuple[str, ...] = ()) -> list[list[tuple[str, bool]]]:
    watchdog = MemoryWatchdog(CAPACITY)
    reported = [item.key for item in samples if item.key.job_id in ending]
    return [[(verdict.key.job_id, verdict.end) for verdict in watchdog.judge(samples, reported)] for _ in range(times)]


def last(*samples: MemorySample) -> Verdict:
    watchdog = MemoryWatchdog(CAPACITY)
    return [watchdog.judge(samples, ()) for _ in range(3)][-1][0]


def test_two_samples_over_a_bound_are_not_enough() -> None:
    assert judge(3, sample("a", 1001)) == [[], [], [("a", True)]]


def test_a_sample_within_the_bound_starts_the_count_anew() -> None:
    watchdog = MemoryWatchdog(CAPACITY)
    verdicts = [watchdog.judge([sample("a", used)], ()) for used in (1001, 1001, 900, 1001, 1001)]
    assert verdicts == [[]] * 5


def test_an_attempt_over_its_own_limit_ends_when_it_takes_what_was_reserved_for_others() -> None:
    assert judge(3, sample("a", 300, limit=200), sample("b", 300, limit=701))[-1] == [("a", True)]


def test_an_attempt_over_its_own_limit_is_only_warned_while_every_reservation_still_fits() -> None:
    reported = judge(5, sample("a", 300, limit=200), sample("b", 300, limit=700))
    assert reported == [[], [], [("a", False)], [], []]


def test_a_warned_job_ends_as_soon_as_an_incoming_job_needs_the_memory() -> None:
    watchdog = MemoryWatchdog(CAPACITY)
    over = sample("a", 300, limit=200)
    for _ in range(4):
        assert not any(verdict.end for verdict in watchdog.judge([over], ()))
    [verdict] = watchdog.judge([over, sample("b", 100, limit=800)], ())
    assert (verdict.key.job_id, verdict.end, verdict.available_bytes) == ("a", True, 200)


def test_an_attempt_over_its_own_limit_but_alone_is_warned_once() -> None:
    assert judge(5, sample("a", 300, limit=200)) == [[], [], [("a", False)], [], []]


def test_over_capacity_the_youngest_goes_when_no_job_broke_a_limit() -> None:
    assert judge(3, sample("old", 600, started_ms=1), sample("young", 600, started_ms=2))[-1] == [("young", True)]


def test_over_capacity_the_worst_offender_goes_before_the_youngest() -> None:
    offender = sample("old", 800, limit=500, started_ms=1)
    assert judge(3, offender, sample("young", 300, limit=300, started_ms=2))[-1] == [("old", True)]


def test_no_other_job_is_judged_while_one_is_ending() -> None:
    assert judge(6, sample("a", 700), sample("b", 700), ending=("a",)) == [[]] * 6


def test_a_verdict_says_what_was_free_and_which_jobs_shared() -> None:
    verdict = last(sample("a", 800, started_ms=2), sample("b", 300, started_ms=1))
    assert verdict.available_bytes == 700
    assert verdict.reason.endswith("co-located: b")


def test_what_a_job_does_not_hold_all_the_time_is_no_claim_on_the_device() -> None:
    """Two peaks of 600 take turns; a third job that takes more than its own ends for what is held all the time only."""
    taking_turns = [replace(sample(name, 300, limit=600), held_bytes=300) for name in "ab"]
    assert judge(3, *taking_turns, sample("c", 250, limit=200))[-1] == [("c", False)]
    assert judge(3, *taking_turns, sample("c", 450, limit=200))[-1] == [("c", True)]


def test_promises_add_up_with_the_largest_part_that_others_may_use() -> None:
    assert claimed_bytes([(600, surge_bytes(600, 300)), (500, surge_bytes(500, 300))]) == 300 + 300 + 300
    assert claimed_bytes([(600, surge_bytes(600, 0)), (500, surge_bytes(500, 0))]) == 1_100
    assert surge_bytes(500, 900) == 0
    assert claimed_bytes([]) == 0


def test_an_attempt_on_trial_ends_in_the_place_of_the_one_that_was_there_before() -> None:
    incoming = replace(sample("new", 500, limit=600, started_ms=2), yields=True)
    grown = sample("old", 550, limit=400, started_ms=1)
    assert judge(3, grown, incoming)[-1] == [("new", True)]
    assert judge(3, grown, replace(incoming, used_bytes=300))[-1] == [("old", False)], "it grows into idle memory"


def test_an_attempt_on_trial_that_takes_what_was_reserved_for_the_other_one_ends() -> None:
    incoming = replace(sample("new", 650, limit=600, started_ms=2), yields=True)
    assert judge(3, sample("old", 100, limit=400, started_ms=1), incoming)[-1] == [("new", True)]

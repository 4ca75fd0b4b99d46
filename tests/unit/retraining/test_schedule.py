"""When a service learns from its running jobs by itself, and when it does not."""

from __future__ import annotations

from predictor_service.retraining.schedule import DRIFT_PAUSE_MS, HOUR_MS, RetrainingSchedule
from tests.support.cases import for_each

WEEK_MS = 168 * HOUR_MS
BEGUN_MS = 1_000 * HOUR_MS
WEEKLY = RetrainingSchedule(every_ms=WEEK_MS, on_drift=True)
NEVER = RetrainingSchedule(every_ms=0, on_drift=False)


def reason(
    schedule: RetrainingSchedule,
    after_ms: int,
    *,
    measured: bool = True,
    is_alarming: bool = False,
    begun_all_ms: int = BEGUN_MS,
) -> str:
    now_ms = BEGUN_MS + after_ms
    newest_ms = now_ms - 1 if measured else BEGUN_MS - 1
    return schedule.reason_now(
        now_ms=now_ms,
        begun_ms=BEGUN_MS,
        begun_all_ms=begun_all_ms,
        oldest_ms=1,
        newest_ms=newest_ms,
        is_alarming=is_alarming,
    )


def test_it_learns_once_a_week_from_what_was_measured_since() -> None:
    assert [reason(WEEKLY, after_ms) for after_ms in (WEEK_MS - 1, WEEK_MS)] == ["", "every 168 hours"]
    assert not reason(WEEKLY, WEEK_MS, measured=False)
    assert not reason(NEVER, 52 * WEEK_MS, is_alarming=True)


def test_an_alarm_makes_it_learn_at_once_but_not_again_the_same_day() -> None:
    found = [reason(WEEKLY, after_ms, is_alarming=True) for after_ms in (DRIFT_PAUSE_MS - 1, DRIFT_PAUSE_MS)]
    assert found == ["", "drift alarm"]
    assert not reason(WEEKLY, DRIFT_PAUSE_MS, is_alarming=True, measured=False), "the same rows teach the same"


def test_an_alarm_that_stays_does_not_keep_other_device_types_from_their_week() -> None:
    """What an alarm starts every day learns only the device types of the alarm."""
    of_last_week_ms = BEGUN_MS - WEEK_MS
    assert reason(WEEKLY, HOUR_MS, is_alarming=True, begun_all_ms=of_last_week_ms) == "every 168 hours"


@for_each("is_alarming", [False, True])
def test_without_a_retraining_before_the_first_measurement_counts(is_alarming: bool) -> None:
    def found(now_ms: int, oldest_ms: int) -> str:
        return WEEKLY.reason_now(
            now_ms=now_ms, begun_ms=0, begun_all_ms=0, oldest_ms=oldest_ms, newest_ms=oldest_ms, is_alarming=is_alarming
        )

    assert not found(BEGUN_MS, 0)
    assert found(BEGUN_MS + HOUR_MS, BEGUN_MS) == ("drift alarm" if is_alarming else "")
    assert found(BEGUN_MS + WEEK_MS, BEGUN_MS)

"""The alarm goes on when outcomes leave their intervals, and does not flicker."""

import math
from pathlib import Path
from typing import Any

import pytest

from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry
from predictor_service.retraining.drift import (
    MEMORY_BOUND,
    ROWS_MIN,
    WINDOW,
    DriftReport,
    TargetDrift,
    describe_drift,
    fewest_by_chance,
    measure_drift,
    read_drift,
)

Joined = list[tuple[PredictionEntry, dict[str, Any]]]


def prediction(number: int = 0, version: str = "v1", **content: Any) -> PredictionEntry:
    fields: dict[str, Any] = {
        "job_key": f"job-{number}",
        "utilization_ratio": 0.5,
        "memory_bytes": 1000.0,
        MEMORY_BOUND: 1400.0,
        "step_ms": 10.0,
        "intervals": [[0.4, 0.6], [800.0, 1200.0], [8.0, 12.0]],
        "confidence": 0.9,
    }
    return PredictionEntry(
        prediction_id=f"{version}-{number}",
        at_ms=number,
        kind="job",
        device="gpu",
        model_version=version,
        content={**fields, **content},
    )


def joined(step_times: list[float], version: str = "v1") -> Joined:
    return [(prediction(number, version), {"step_ms_mean": value}) for number, value in enumerate(step_times)]


def drift_of(outcomes: Joined, target: str = "step_ms") -> TargetDrift:
    (found,) = [item for item in measure_drift(outcomes).targets if item.target == target]
    return found


def test_error_bias_and_coverage_are_those_of_the_window() -> None:
    found = drift_of(joined([8.0, 12.5]))
    assert found.error_ratio == pytest.approx((2 / 8 + 2.5 / 12.5) / 2)
    assert found.bias_ratio == pytest.approx((2 / 8 - 2.5 / 12.5) / 2)
    assert (found.covered_ratio, found.promised_ratio, found.outcomes) == (0.5, 0.9, 2)


def test_a_few_outcomes_are_no_alarm() -> None:
    assert not drift_of(joined([100.0] * (ROWS_MIN - 1))).is_alarming
    assert drift_of(joined([100.0] * ROWS_MIN)).is_alarming


def test_what_was_promised_is_no_alarm() -> None:
    times = [100.0 if number % 10 == 0 else 10.0 for number in range(400)]
    found = drift_of(joined(times))
    assert not found.is_alarming
    assert found.alarms == 0
    assert found.covered_ratio == pytest.approx(0.9)


def test_the_alarm_stays_on_until_coverage_is_back_near_the_promise() -> None:
    """On at a share that chance does not explain, off only within five points of the nominal share: no flicker."""
    drifted = [100.0 if number % 4 == 0 else 10.0 for number in range(WINDOW)]  # 75 % inside
    assert drift_of(joined(drifted)).is_alarming
    between = drifted + [100.0 if number % 5 == 0 else 10.0 for number in range(2 * WINDOW)]  # 80 % inside
    found = drift_of(joined(between))
    assert found.is_alarming
    assert found.alarms == 1
    healed = between + [10.0] * WINDOW
    assert not drift_of(joined(healed)).is_alarming


def test_a_new_version_starts_with_a_clean_window() -> None:
    found = drift_of(joined([100.0] * 50) + joined([10.0] * 5, version="v2"))
    assert (found.model_version, found.outcomes, found.is_alarming) == ("v2", 5, False)


def test_the_memory_bound_is_watched_on_its_own() -> None:
    outcomes: Joined = [(prediction(number), {"memory_peak_bytes": 1500}) for number in range(ROWS_MIN)]
    found = drift_of(outcomes, MEMORY_BOUND)
    assert found.is_alarming
    assert found.promised_ratio == pytest.approx(0.99)


def test_outcomes_that_cannot_be_trusted_are_no_evidence() -> None:
    flagged: Joined = [(prediction(), {"step_ms_mean": 100.0, "quality_flags": ["noisy"]})]
    absurd: Joined = [(prediction(), {"step_ms_mean": value}) for value in (0.0, -1.0, math.inf, math.nan)]
    without: Joined = [(prediction(), {})]
    assert measure_drift(flagged + absurd + without).targets == ()


@pytest.mark.parametrize(("rows", "promised_ratio"), [(20, 0.9), (100, 0.9), (100, 0.99), (40, 0.5)])
def test_the_threshold_is_the_one_that_chance_crosses_less_than_once_in_a_hundred(
    rows: int, promised_ratio: float
) -> None:
    def at_most(covered: int) -> float:
        return sum(
            math.comb(rows, count) * promised_ratio**count * (1 - promised_ratio) ** (rows - count)
            for count in range(covered + 1)
        )

    threshold = fewest_by_chance(rows, promised_ratio)
    assert at_most(threshold) < 0.01 <= at_most(threshold + 1)


def test_drift_is_read_from_the_journal_that_the_service_writes(tmp_path: Path) -> None:
    journal = OutcomeJournal(tmp_path / "journal.sqlite")
    for number in range(ROWS_MIN):
        journal.remember(prediction(number))
    journal.record([(f"v1-{number}", {"step_ms_mean": 50.0}) for number in range(ROWS_MIN)], at_ms=1)
    journal.close()
    report = read_drift(tmp_path / "journal.sqlite")
    assert report.is_alarming
    assert "ALARM" in describe_drift(report)
    assert report.as_json()["targets"][0]["outcomes"] == ROWS_MIN
    assert "no outcome" in describe_drift(DriftReport(targets=()))

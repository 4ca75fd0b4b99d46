"""What was measured of a job alone, beside what was predicted of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_service.core.predictions.measured_alone import MeasuredAlone, with_measured
from scheduler_service.core.records import Level
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, GIB, prediction


def test_a_reliable_prediction_keeps_its_memory_and_utilization_when_the_job_was_measured() -> None:
    play = Play()
    sure = prediction("key-a", measured_micro_batch_sizes=())
    assert sure.level is Level.GRAPH
    play.engine.state.predictions.put_job(sure)
    play.engine.state.predictions.observe_solo(
        "key-a", sure.device, gpus=1, micro_batch_size=1, steps=10, window_ms=1_000
    )
    play.engine.state.predictions.observe_alone(
        "key-a", sure.device, micro_batch_size=1, memory_peak_bytes=5 * GIB, utilization_ratio=0.9
    )
    known = play.engine.state.predictions.job("key-a", sure.device)
    assert known == replace(sure, measured_micro_batch_sizes=(1,), step_ms={(1, 1): 100.0}, measured_gpus=(1,))


@pytest.mark.parametrize(("measured_ratio", "known_ratio"), [(0.15, 0.15), (0.97, 1.0)])
def test_a_reliable_prediction_is_corrected_by_a_utilization_outside_its_range(
    measured_ratio: float, known_ratio: float
) -> None:
    """A script that waits in its own loop is predicted to compute all the time; measured twice, it is believed."""
    play = Play()
    predictions = play.engine.state.predictions
    sure = prediction("key-a", utilization_ratio=1.0, utilization_lower_ratio=0.95, utilization_upper_ratio=1.0)
    predictions.put_job(sure)
    predictions.observe_solo("key-a", sure.device, gpus=1, micro_batch_size=1, steps=10, window_ms=1_000)
    known, seen = sure, []
    for _ in range(2):
        predictions.observe_alone(
            "key-a", sure.device, micro_batch_size=1, memory_peak_bytes=GIB, utilization_ratio=measured_ratio
        )
        known = predictions.job("key-a", sure.device) or sure
        seen.append(known.utilization_ratio)
    assert seen == [1.0, known_ratio]
    assert known.memory == sure.memory


def test_what_was_measured_takes_the_place_of_a_doubtful_prediction_and_of_its_range() -> None:
    doubtful = prediction("k", step_ms={(1, 1): 5.0}, step_ms_lower=4.0, step_ms_upper=6.0, in_domain=False)
    one = MeasuredAlone(step_ms=300.0, memory_peak_bytes=GIB, utilization_ratio=0.2)
    found = with_measured("k", DEVICE, doubtful, {1: one})
    assert found is not None
    assert (found.step_ms, found.step_ms_lower, found.step_ms_upper) == ({(1, 1): 300.0}, 0.0, 0.0)

"""Whether a predicted job fits, in three words."""

from __future__ import annotations

import pytest

from cotenant.memory_verdict import MemoryVerdict, judge_memory
from cotenant.prediction_verdict import may_run, verdict_of
from tests.support.fake_services import GIB, sample_prediction


@pytest.mark.parametrize(
    ("expected_bytes", "bound_bytes", "device_bytes", "verdict"),
    [
        (4, 6, 8, MemoryVerdict.FITS),
        (4, 8, 8, MemoryVerdict.FITS),
        (4, 9, 8, MemoryVerdict.MAY_NOT_FIT),
        (8, 9, 8, MemoryVerdict.MAY_NOT_FIT),
        (9, 9, 8, MemoryVerdict.DOES_NOT_FIT),
        (4, 6, 0, MemoryVerdict.UNKNOWN),
    ],
)
def test_a_job_is_judged_by_what_is_expected_and_then_by_its_bound(
    expected_bytes: float, bound_bytes: float, device_bytes: float, verdict: MemoryVerdict
) -> None:
    found = judge_memory(expected_bytes=expected_bytes, bound_bytes=bound_bytes, device_bytes=device_bytes)
    assert found is verdict


def test_a_job_whose_least_memory_is_too_large_does_not_fit_and_may_not_run() -> None:
    answer = sample_prediction(fits=False)
    answer.memory_bytes.value, answer.memory_bytes.lower = 0.5 * GIB, 3 * GIB
    assert verdict_of(answer) is MemoryVerdict.DOES_NOT_FIT
    assert not may_run(answer)

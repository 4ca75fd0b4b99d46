"""What must hold of the risk that a set of jobs runs out of memory, whatever the jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.selection.conformal import calibrate
from predictor_service.selection.oom_risk import JOBS_MAX, MemoryEstimate, estimate_oom_risk

GIBIBYTE = 1 << 30
BELIEFS = st.builds(
    lambda gibibytes, spread, seed: MemoryEstimate(
        value_bytes=gibibytes * GIBIBYTE,
        bounds=calibrate(np.random.default_rng(seed).normal(0.0, spread, 50), groups=20),
    ),
    st.floats(0.1, 30.0),
    st.floats(0.0, 0.5),
    st.integers(0, 5),
)
SETS = st.lists(BELIEFS, min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(jobs=SETS, more=BELIEFS, capacity=st.floats(4.0, 80.0))
def test_another_job_never_lowers_the_risk(jobs: list[MemoryEstimate], more: MemoryEstimate, capacity: float) -> None:
    before = estimate_oom_risk(jobs, capacity * GIBIBYTE)
    after = estimate_oom_risk([*jobs, more], capacity * GIBIBYTE)
    assert after.independent >= before.independent - 1e-9
    assert after.union_bound >= before.union_bound - 1e-9


@settings(max_examples=40, deadline=None)
@given(jobs=SETS, capacity=st.floats(4.0, 40.0), growth=st.floats(1.0, 3.0))
def test_a_larger_device_never_raises_the_risk(jobs: list[MemoryEstimate], capacity: float, growth: float) -> None:
    small = estimate_oom_risk(jobs, capacity * GIBIBYTE)
    large = estimate_oom_risk(jobs, growth * capacity * GIBIBYTE)
    assert large.independent <= small.independent + 1e-9
    assert large.union_bound <= small.union_bound + 1e-9


@settings(max_examples=40, deadline=None)
@given(jobs=SETS, capacity=st.floats(4.0, 80.0), growth=st.floats(1.0, 3.0))
def test_larger_jobs_never_lower_the_risk(jobs: list[MemoryEstimate], capacity: float, growth: float) -> None:
    larger = [MemoryEstimate(value_bytes=growth * job.value_bytes, bounds=job.bounds) for job in jobs]
    before, after = (estimate_oom_risk(each, capacity * GIBIBYTE) for each in (jobs, larger))
    assert after.independent >= before.independent - 1e-9
    assert after.union_bound >= before.union_bound - 1e-9


@settings(max_examples=40, deadline=None)
@given(jobs=SETS, capacity=st.floats(4.0, 80.0))
def test_the_union_bound_is_never_below_independence(jobs: list[MemoryEstimate], capacity: float) -> None:
    risk = estimate_oom_risk(jobs, capacity * GIBIBYTE)
    assert 0.0 <= risk.independent <= risk.union_bound <= 1.0


def test_the_risk_of_many_equal_jobs_is_that_of_drawing_their_residuals() -> None:
    random = np.random.default_rng(1)
    residuals = random.normal(0.0, 0.2, 900)
    job = MemoryEstimate(value_bytes=10.0 * GIBIBYTE, bounds=calibrate(residuals, groups=900))
    drawn = 10.0 * np.exp(random.choice(residuals, (20_000, 3))).sum(axis=1)
    risk = estimate_oom_risk([job] * 3, 34.0 * GIBIBYTE)
    assert risk.independent == pytest.approx(float((drawn > 34.0).mean()), abs=0.02)


def test_few_groups_leave_a_risk_that_no_residual_showed() -> None:
    certain = calibrate(np.zeros(50), groups=9)
    assert estimate_oom_risk([MemoryEstimate(value_bytes=GIBIBYTE, bounds=certain)], 8 * GIBIBYTE).union_bound == 0.0
    doubtful = calibrate(np.linspace(0.0, 1.0, 50), groups=9)
    job = MemoryEstimate(value_bytes=GIBIBYTE, bounds=doubtful)
    assert estimate_oom_risk([job], 3 * GIBIBYTE).independent == pytest.approx(0.1)


def test_no_jobs_carry_no_risk_and_nonsense_is_refused() -> None:
    assert estimate_oom_risk([], GIBIBYTE).union_bound == 0.0
    job = MemoryEstimate(value_bytes=GIBIBYTE, bounds=calibrate(np.zeros(5), groups=5))
    for jobs, capacity in (([job] * (JOBS_MAX + 1), 1e12), ([job], 0.0), ([job], float("nan"))):
        with pytest.raises(ValueError, match="above 0"):
            estimate_oom_risk(jobs, capacity)

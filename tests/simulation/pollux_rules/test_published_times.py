"""Every completion time that the authors published for Tiresias and Optimus, and every one measured on their engine."""

from __future__ import annotations

import pytest

from tests.support.cases import sampled
from tests.support.pollux_family import PolicyRun, reference_times, simulated_times

PUBLISHED_RUNS = 56
"""Two policies, four loads, seven workloads."""

MEASURED_NAMES = {
    "fifo-strict": "fifo",
    "fifo-skip": "fifo_skip",
    "sjf-strict": "sjf",
    "sjf-skip": "sjf_skip",
    "tiresias": "tiresias",
    "optimus": "optimus",
}


def differences(expected: dict[PolicyRun, dict[str, int]]) -> dict[PolicyRun, list[str]]:
    """Return the jobs that complete at another second, by run."""
    wrong = {}
    for run, times in expected.items():
        found = simulated_times(run)
        assert found.keys() == times.keys()
        wrong[run] = [job_id for job_id, jct_s in times.items() if found[job_id] != jct_s]
    return {run: jobs for run, jobs in wrong.items() if jobs}


def test_every_published_job_of_tiresias_and_optimus_completes_at_the_published_second() -> None:
    published = reference_times("published/job_jct.csv")
    expected = {run: times for run, times in published.items() if run[0] in ("tiresias", "optimus")}
    assert len(expected) == PUBLISHED_RUNS
    assert sum(map(len, expected.values())) == 11_200
    assert differences(expected) == {}


@pytest.mark.parametrize("name", sampled(sorted(MEASURED_NAMES), 3))
def test_every_job_measured_on_the_artifacts_engine_completes_at_the_same_second(name: str) -> None:
    measured = reference_times("measured/job_jct.csv")
    expected = {(MEASURED_NAMES[name], *run[1:]): times for run, times in measured.items() if run[0] == name}
    assert expected
    assert differences(expected) == {}

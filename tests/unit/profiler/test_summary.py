from __future__ import annotations

import statistics

import pytest
from cotenant_profiler.plan import Kind
from cotenant_profiler.summary import summarize

from tests.support.profiler import LENET, LENET_WAIT, RECOMMENDER, record


def test_acceptance_counts_what_the_isolation_check_judged() -> None:
    records = [
        record(Kind.SOLO, LENET),
        record(Kind.SOLO, LENET, status="rejected"),
        record(Kind.SOLO, LENET, status="failed", figures=()),
        record(Kind.MEMORY, LENET, figures=({"peak_bytes": 1.0},)),
    ]
    summary = summarize(records)
    assert (summary.attempts, summary.accepted, summary.failed) == (2, 1, 1)
    assert summary.accepted_ratio == 0.5


def test_the_noise_floor_is_the_spread_of_repeated_groups_only() -> None:
    records = [record(Kind.SOLO, LENET, step_ms=10.0), record(Kind.SOLO, RECOMMENDER, step_ms=10.0)]
    records += [record(Kind.GROUP, LENET, RECOMMENDER, step_ms=[20.0 + noise, 20.0]) for noise in (-1, 0, 1)]
    records += [record(Kind.GROUP, LENET, LENET, step_ms=[10.0, 90.0])]
    summary = summarize(records)
    spread = statistics.stdev([0.9, 1.0, 1.1])
    assert summary.repeat_deviation_max == pytest.approx(spread)
    assert summary.repeat_deviation_median == pytest.approx(spread / 2)


def test_slowdown_that_grows_with_summed_utilization_correlates() -> None:
    records = [
        record(Kind.SOLO, job, figures=({**record(Kind.SOLO, job).figures[0], "utilization_ratio": share},))
        for job, share in ((LENET, 1.0), (LENET_WAIT, 0.4), (RECOMMENDER, 0.8))
    ]
    records += [
        record(Kind.GROUP, LENET, RECOMMENDER, step_ms=[18.0, 18.0]),
        record(Kind.GROUP, LENET, LENET_WAIT, step_ms=[14.0, 14.0]),
        record(Kind.GROUP, LENET_WAIT, RECOMMENDER, step_ms=[12.0, 12.0]),
    ]
    correlation = summarize(records).load_correlation
    assert correlation is not None
    assert correlation > 0.99


def test_an_empty_campaign_has_no_figures() -> None:
    summary = summarize([])
    assert summary.accepted_ratio is None
    assert summary.load_correlation is None
    assert summary.jobs == ()

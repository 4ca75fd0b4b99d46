"""The workloads that stand in for the papers', and the figures that are taken of their runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks.papers.colocation_workloads import cluster_of, draw_philly, draw_testbed, settings_of
from benchmarks.papers.horus import PATTERNS
from benchmarks.papers.seeds import as_order_row, as_row, interval_of, means_of
from benchmarks.papers.sharing_causes import TiresiasByIterations
from benchmarks.papers.sharing_runs import (
    ANYBODY,
    MIX,
    STAND_INS,
    WORKLOADS,
    committed_mix,
    measured_slowdowns,
    on_one_gpu,
    run,
    with_measured_slowdowns,
    with_slowdown,
)
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.truth.kinds import EVERY_DEVICE
from cotenant_simulator.truth.trace import GIB
from tests.support.scheduling import job, node, pending, view
from tests.support.shared_data import shared_data


def test_means_of_runs_leave_a_rest_out_and_take_all_of_few() -> None:
    assert means_of([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 6.0]
    assert means_of([1.0, 3.0, 5.0], 3) == [3.0]
    assert means_of([1.0, 3.0], 3) == [2.0]


def test_the_interval_of_a_mean_is_students() -> None:
    low, high = interval_of([1.0, 2.0, 3.0, 4.0])
    assert low == pytest.approx(2.5 - 3.18245 * 1.290994 / 2, abs=1e-4)
    assert high == pytest.approx(2.5 + 3.18245 * 1.290994 / 2, abs=1e-4)
    assert interval_of([2.0]) == (2.0, 2.0)


def test_a_range_is_compared_by_its_middle() -> None:
    row = as_row("Table 1", "", (0.8, 1.2), [2.0, 2.0])
    assert row["ratio"] == 2.0
    assert row["interval"] == [2.0, 2.0]


def test_an_order_is_scored_by_its_pairs_among_policies_that_were_run() -> None:
    row = as_order_row("Fig. 1", "", ["a", "b", "c", "d"], {"a": [1.0], "b": [3.0], "d": [2.0]})
    assert row["ours"] == ["a", "d", "b"]
    assert row["ratio"] == 0.667


def test_the_committed_mix_is_what_its_head_says() -> None:
    classes = tomllib.loads((WORKLOADS / f"{MIX}.toml").read_text(encoding="utf-8"))["classes"]
    large, small = ([one for one in classes if (one["gpus"][0] > 4) == is_large] for is_large in (True, False))
    assert sum(one["weight"] for one in large) / sum(one["weight"] for one in classes) == 0.12
    assert _mean_h(large) == pytest.approx(1.69, abs=0.01)
    assert _mean_h(small) == pytest.approx(0.59, abs=0.01)
    gpu_s = sum(one["weight"] * one["mean_s"] * one["gpus"][0] for one in classes) / 100
    assert gpu_s / 120.0 / 64 == pytest.approx(1.5, abs=0.05)


def _mean_h(classes: list[dict[str, float]]) -> float:
    return sum(one["weight"] * one["mean_s"] for one in classes) / sum(one["weight"] for one in classes) / 3_600


def test_twice_the_jobs_come_in_the_same_time() -> None:
    few, many = committed_mix(MIX, 3), committed_mix(MIX, 3, jobs=480)
    assert len(many.jobs) == 2 * len(few.jobs)
    assert many.jobs[-1].submitted_at_ms == pytest.approx(few.jobs[-1].submitted_at_ms, rel=0.2)


def test_sharing_costs_what_was_asked_for() -> None:
    trace = with_slowdown(committed_mix(MIX, 0), 1.75)
    first, second = list({job.request.key for job in trace.jobs})[:2]
    assert trace.truth.true_slowdown_ratio(first, second, "gpu") == 0.75


def test_every_pair_of_applications_has_a_measured_slowdown() -> None:
    ratios = measured_slowdowns(shared_data("traces").parent)
    assert set(ratios) == {(victim, other) for victim in STAND_INS for other in STAND_INS}
    assert min(ratios.values()) >= 0.0
    trace = with_measured_slowdowns(committed_mix(MIX, 0), ratios)
    keys = [key for key, device in trace.truth.kinds if device == EVERY_DEVICE]
    ncf, bert = (next(key for key in keys if key.startswith(name)) for name in ("ncf", "bert"))
    assert trace.truth.true_slowdown_ratio(ncf, bert, "gpu") == ratios["ncf", "bert"]


def test_a_run_reports_what_became_of_large_and_small_jobs() -> None:
    outcome = run(committed_mix("sjf_bsbf_physical", 0), "sjf_bsbf", seed=0, cluster="4x4")
    assert min(outcome.large_jct_h, outcome.small_jct_h) <= outcome.jct_h
    assert outcome.jct_h <= max(outcome.large_jct_h, outcome.small_jct_h)
    assert 0 < outcome.queueing_h < outcome.jct_h < outcome.makespan_s / 3_600


def test_two_equal_jobs_on_one_gpu_yield_what_theorem_1_says_of_a_pair() -> None:
    one = {"gpus": [1], "length": "fixed", "mean_s": 100.0}
    pair = draw(Path("pair"), {"jobs": 2, "arrival": {"kind": "at_once"}, "classes": [one]}, ANYBODY, seed=0)
    shared = run(with_slowdown(pair, 1.5), "sjf_ffs", seed=0, cluster="1x1")
    assert shared.shared_ratio == pytest.approx(1.0)
    assert shared.shared_yield_ratio == pytest.approx(2 / 1.5)
    alone = run(pair, "sjf", seed=0, cluster="1x1")
    assert (alone.shared_ratio, alone.shared_yield_ratio) == (0.0, 0.0)


def test_jobs_on_one_gpu_keep_their_arrivals_and_lengths() -> None:
    wide = committed_mix(MIX, 0)
    narrow = on_one_gpu(wide)
    assert [job.submitted_at_ms for job in wide.jobs] == [job.submitted_at_ms for job in narrow.jobs]
    for before, after in zip(wide.jobs, narrow.jobs, strict=True):
        kinds = [trace.truth.kinds[before.request.key, EVERY_DEVICE] for trace in (wide, narrow)]
        assert after.request.gpus == 1
        assert kinds[1].step_ms(gpus=1) == kinds[0].step_ms(gpus=before.request.gpus)
        assert after.request.steps_total == before.request.steps_total
        assert after.request.global_batch_size == before.request.global_batch_size // before.request.gpus


def test_tiresias_by_iterations_counts_steps_and_not_time() -> None:
    policy = TiresiasByIterations(limit=100.0)
    seen = view(nodes=[node("n0", 1)])
    few, many = (pending(job(name, gpus=2), steps_done=steps) for name, steps in (("few", 49), ("many", 50)))
    assert [policy.order(seen, one)[0] for one in (few, many)] == [0, 1]


def test_jobs_that_never_finish_are_no_mean() -> None:
    with pytest.raises(RuntimeError, match="did not finish under fifo"):
        run(committed_mix("sjf_bsbf_physical", 0), "fifo", seed=0, cluster="1x8")


def test_both_patterns_of_horus_meet_the_same_arrivals_and_utilizations() -> None:
    settings = settings_of("testbed")
    small, large = (draw_testbed(settings, pattern, 1) for pattern in PATTERNS)
    assert [job.submitted_at_ms for job in small.jobs] == [job.submitted_at_ms for job in large.jobs]
    assert [job.request.key for job in small.jobs] == [job.request.key for job in large.jobs]
    assert sum(job.request.steps_total for job in small.jobs) < sum(job.request.steps_total for job in large.jobs)
    assert {gpu.memory_bytes for node in cluster_of(settings).nodes for gpu in node.gpus} == {8 * GIB}


def test_jobs_of_horus_slow_each_other_down_by_their_summed_utilization() -> None:
    truth = draw_testbed(settings_of("testbed"), "W-Small", 0).truth
    keys = sorted(key for key, _ in truth.kinds)
    light = next(key for key in keys if key.startswith("0.2/"))
    heavy = next(key for key in keys if key.startswith("0.95/"))
    assert truth.true_slowdown_ratio(light, light, "gpu") == pytest.approx(0.25 * 0.4)
    assert truth.true_slowdown_ratio(light, heavy, "gpu") == pytest.approx(0.25 * 1.15**2)


def test_the_sample_of_philly_keeps_within_its_limits() -> None:
    settings = settings_of("simulation")
    trace = draw_philly(settings, shared_data("traces", "philly", "philly_jobs.csv"), 0)
    assert len(trace.jobs) == 398
    assert trace.jobs[0].submitted_at_ms == 0
    assert trace.jobs[-1].submitted_at_ms == 86_400_000
    assert all(60 <= job.request.steps_total <= 86_400 and job.request.gpus <= 32 for job in trace.jobs)

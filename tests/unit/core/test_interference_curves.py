"""Horus' curve of a device type follows the pairs measured there, and is what the policy reckons with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_service.core.cluster_view.interference_curves import INTERVAL_MS, PAIRS_MIN, InterferenceCurve, fit_curve
from scheduler_service.core.decisions import Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.records import Share
from scheduler_service.policies.horus import Horus
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, all_pairs, job, memory, node, pending, prediction, running, store, view


def curve(*points: tuple[float, float], before: InterferenceCurve | None = None) -> InterferenceCurve | None:
    return fit_curve(points, before, at_ms=7)


def test_few_pairs_fit_no_curve() -> None:
    assert curve(*[(0.8, 0.1)] * (PAIRS_MIN - 1)) is None


def test_many_pairs_tell_both_slopes() -> None:
    below = [(0.1 * n, 0.2 * 0.1 * n) for n in range(1, 11)]
    above = [(1 + 0.1 * n, 0.8 * (1 + 0.1 * n) ** 2) for n in range(1, 11)]
    points = [*below, *above] * 30
    fitted = curve(*points)
    assert fitted is not None
    assert fitted.linear_ratio == pytest.approx(0.2, rel=0.05)
    assert fitted.quadratic_ratio == pytest.approx(0.8, rel=0.05)
    assert (fitted.pairs, fitted.version, fitted.fitted_at_ms) == (600, 1, 7)


def test_a_part_that_was_not_measured_keeps_the_ranges_of_the_paper() -> None:
    fitted = curve(*[(0.9, 0.0)] * 50)
    assert fitted is not None
    assert fitted.linear_ratio < 0.05
    assert fitted.quadratic_ratio == 0.5


def test_a_speedup_counts_as_no_slowdown_and_no_slope_is_below_zero() -> None:
    fitted = curve(*[(0.9, -0.5)] * 50, *[(2.0, -0.5)] * 50)
    assert fitted is not None
    assert 0 < fitted.linear_ratio < 0.05
    assert 0 < fitted.quadratic_ratio < 0.05


def test_a_curve_that_has_moved_little_stays_and_one_that_has_moved_is_the_next_version() -> None:
    first = curve(*[(0.5, 0.1)] * 50)
    assert first is not None
    assert curve(*[(0.5, 0.1)] * 51, before=first) is first
    second = curve(*[(0.5, 0.1)] * 50, *[(0.5, 0.4)] * 50, before=first)
    assert second is not None
    assert (second.version, second.pairs) == (2, 100)
    assert second.linear_ratio > first.linear_ratio


def choice(learned: dict[str, InterferenceCurve], **parameters: Any) -> Start:
    """What Horus does with a light job where one GPU holds much memory, and another a busy job."""
    jobs = {"busy": 0.9, "large": 0.05, "new": 0.6}
    sizes = {"busy": 0.5, "large": 5.0, "new": 0.5}
    known = store(
        jobs=[prediction(key, utilization_ratio=ratio, memory=memory(sizes[key])) for key, ratio in jobs.items()],
        pairs=all_pairs(list(jobs), 0.01),
    )
    seen = view(
        nodes=[node("n0", 2)],
        holding=[
            running(job("busy", key="busy", share=Share.ANY), ["n0.0"]),
            running(job("large", key="large", share=Share.ANY), ["n0.1"]),
        ],
        waiting=[pending(job("new", key="new", share=Share.ANY))],
        predictions=known,
        interference_curves=learned,
    )
    (start,) = Horus(**parameters).decide(seen)
    assert isinstance(start, Start)
    return start


def test_the_policy_prices_gpus_by_the_fitted_curve_and_says_so() -> None:
    assert choice({}).assignments[0].gpu_id == "n0.1"
    flat = {DEVICE: InterferenceCurve(linear_ratio=0.01, quadratic_ratio=0.01, pairs=9)}
    start = choice(flat)
    assert start.assignments[0].gpu_id == "n0.0", "summed utilization costs nothing here"
    assert start.reason.numbers["curve_pairs_count"] == 9
    stated = {DEVICE: {"linear": [0, 0.5], "quadratic": [0, 0, 0.5]}}
    assert choice(flat, curves=stated).assignments[0].gpu_id == "n0.1", "what is stated comes first"


def observe(play: Play, pairs: int, slowdown_ratio: float) -> None:
    predictions = play.engine.state.predictions
    for number in range(pairs):
        predictions.put_job(prediction(f"k{number}", utilization_ratio=0.4))
        predictions.observe_pair(f"k{number}", "k0", DEVICE, slowdown_ratio)
    predictions.fit_curve(DEVICE, at_ms=play.engine.state.now_ms)


def test_a_curve_survives_a_restart_and_is_not_fitted_faster_than_once_a_minute() -> None:
    play = Play("horus")
    observe(play, PAIRS_MIN, 0.1)
    first = play.engine.state.predictions.curves[DEVICE]
    observe(play, PAIRS_MIN, 3.0)
    assert play.engine.state.predictions.curves[DEVICE] == first
    play.now_ms = play.engine.state.now_ms = INTERVAL_MS + first.fitted_at_ms
    observe(play, PAIRS_MIN, 3.0)
    second = play.engine.state.predictions.curves[DEVICE]
    assert second.version == 2
    restored = SchedulerEngine.restore(json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy)
    assert restored.state.predictions.curves == {DEVICE: second}


def test_doubtful_pairs_fit_no_curve() -> None:
    play = Play("horus")
    predictions = play.engine.state.predictions
    for number in range(2 * PAIRS_MIN):
        predictions.put_job(prediction(f"k{number}", utilization_ratio=0.4))
        predictions.observe_pair(f"k{number}", "k0", DEVICE, 1.0, is_doubtful=True)
    predictions.fit_curve(DEVICE, at_ms=1)
    assert not predictions.curves

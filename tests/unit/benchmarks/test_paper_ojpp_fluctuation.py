"""Fig. 10 of OJPP: what is drawn, and how a run is read."""

from __future__ import annotations

import pytest

from benchmarks.papers.ojpp_fluctuation import MINUTE_MS, Watched, draw_fluctuation, watch
from cotenant_simulator.run.records import JobResult
from scheduler_service.core.records import Share


def test_every_type_and_width_trains_alone_before_any_job_shares() -> None:
    jobs = draw_fluctuation(0).trace.jobs
    alone = [one for one in jobs if one.request.share is Share.NEVER]
    assert {(one.request.key, one.request.gpus) for one in alone} == {
        (kind, gpus) for kind in ("vgg19", "alexnet", "cnn") for gpus in range(1, 11)
    }
    assert max(one.submitted_at_ms for one in alone) < min(
        one.submitted_at_ms for one in jobs if one.request.share is Share.ANY
    )


@pytest.mark.parametrize("seed", range(3))
def test_unseen_jobs_are_predicted_like_the_others_and_disturb_more(seed: int) -> None:
    workload = draw_fluctuation(seed)
    for (_, other, _), ratio in workload.trace.truth.slowdowns.items():
        assert (ratio >= 0.2) == (other in {"starters", "latecomers"})
    assert max(workload.predicted.slowdowns.values()) <= 0.187
    kept = {
        pair: ratio for pair, ratio in workload.predicted.slowdowns.items() if pair[1] in {"vgg19", "alexnet", "cnn"}
    }
    assert kept == {pair: workload.trace.truth.slowdowns[pair] for pair in kept}


def test_latecomers_come_at_the_rise_and_not_before() -> None:
    workload = draw_fluctuation(1)
    late = {one.submitted_at_ms for one in workload.trace.jobs if one.request.key == "latecomers"}
    assert late == {workload.rise_at_ms}


def test_a_run_is_read_by_minutes_and_by_what_moved_jobs_did_not_train() -> None:
    moved = JobResult(
        job_id="j1", gpus=1, submitted_at_ms=0, solo_ms=80.0, held_ms=100, trained_ms=90, alone_ms=75.0, migrations=1
    )
    aside = JobResult(job_id="a1", gpus=1, submitted_at_ms=0, solo_ms=1.0, held_ms=9, trained_ms=9, alone_ms=1.0)
    seen = Watched(worst_by_minute={3: 0.3, 4: 0.1, 9: 0.25}, moves_by_minute={4: 2, 9: 1}, jobs=[moved, aside])
    assert seen.moves(until_ms=9 * MINUTE_MS) == 2
    assert seen.moves(from_ms=9 * MINUTE_MS) == 1
    assert seen.minutes_above(0.2, from_ms=0) == 2
    assert seen.minutes_above(0.2, from_ms=4 * MINUTE_MS) == 1
    assert seen.slowdown_percent == pytest.approx(20.0)
    assert seen.cost_percent == pytest.approx(10.0)


def test_a_lasting_rise_ends_under_ojpap_and_so_do_the_moves() -> None:
    """On this workload two jobs once fled from each other for ever, without a moment passing."""
    workload = draw_fluctuation(0)
    above = {
        policy: watch(workload, policy).minutes_above(0.2, from_ms=workload.rise_at_ms) for policy in ("ojpp", "ojpap")
    }
    assert 0 < 4 * above["ojpap"] < above["ojpp"]

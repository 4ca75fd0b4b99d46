"""Jobs of unknown length under SJF-BSBF: weighed by how long they have run, with columns as without."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold, Start, unfolded
from scheduler_service.core.records import Share
from scheduler_service.policies.pairing import sjf_sharing
from scheduler_service.policies.sjf_bsbf import SjfBsbf
from tests.support.crowds import dense_view, starts
from tests.support.scheduling import job, node, pair, pending, prediction, running, store, view

HOUR_MS = 3_600_000
STEP = {"step_ms": {(1, 1): 1_000.0}}


def decide(*, total: int, running_total: int, elapsed_ms: int, slowdown_ratio: float = 0.1) -> Decision:
    """One GPU with one job, another one waits; both consent to what sharing costs."""
    consent: dict[str, Any] = {"share": Share.SAFE, "max_slowdown_ratio": 5.0}
    there = running(job("b", key="b", steps_total=running_total, **consent), ["n0.0"], started_at_ms=HOUR_MS)
    new = pending(job("a", key="a", steps_total=total, **consent), submitted_at_ms=HOUR_MS)
    pairs = [pair("a", "b", slowdown_ratio), pair("b", "a", slowdown_ratio)]
    found = view(
        nodes=[node("n0", 1)],
        waiting=[new],
        holding=[there],
        predictions=store([prediction("a", **STEP), prediction("b", **STEP)], pairs),
        now_ms=HOUR_MS + elapsed_ms,
    )
    (decision,) = unfolded(SjfBsbf().decide(found))
    return decision


def test_a_job_joins_one_of_unknown_length_that_has_run_longer_than_it_needs() -> None:
    assert isinstance(decide(total=600, running_total=0, elapsed_ms=HOUR_MS), Start)


def test_a_long_job_waits_for_one_that_has_just_begun() -> None:
    """Slowed down to less than half they would both end later together, and the one that runs may be gone soon."""
    found = decide(total=36_000, running_total=0, elapsed_ms=1_000, slowdown_ratio=1.5)
    assert isinstance(found, Hold)
    assert found.reason.code == "SHARING_NOT_WORTH_IT"


@pytest.mark.parametrize(("slowdown_ratio", "kind"), [(0.2, Start), (0.7, Hold)])
def test_a_waiting_job_of_unknown_length_counts_as_long_as_the_one_it_would_join(
    slowdown_ratio: float, kind: type[Decision]
) -> None:
    """Of two equally long jobs sharing is better up to a slowdown of one half."""
    for running_total in (0, 3_600):
        found = decide(total=0, running_total=running_total, elapsed_ms=HOUR_MS, slowdown_ratio=slowdown_ratio)
        assert isinstance(found, kind)


def forgetful(seed: int) -> SchedulingView:
    """A crowded cluster in which half of the jobs state no length, and run since different instants."""
    drawn, full = random.Random(seed), dense_view(seed, nodes_max=1)
    chosen = [drawn.random() < 0.5 for _ in range(len(full.pending) + len(full.running))]
    waiting = [
        replace(one, request=replace(one.request, steps_total=0)) if forget else one
        for one, forget in zip(full.pending, chosen, strict=False)
    ]
    there = {
        name: replace(
            one,
            request=replace(one.request, steps_total=0 if forget else one.request.steps_total),
            started_at_ms=full.now_ms - drawn.randrange(10 * HOUR_MS),
        )
        for (name, one), forget in zip(full.running.items(), reversed(chosen), strict=False)
    }
    return replace(full, pending=tuple(waiting), running=there, index=FreshIndex())


@pytest.mark.parametrize("block", range(4))
def test_columns_weigh_unknown_lengths_as_one_look_at_each_gpu_does(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = 0
    for seed in range(10 * block, 10 * block + 10):
        found = []
        for least in (0, 10**9):
            monkeypatch.setattr(sjf_sharing, "GPUS_IN_ARRAYS_MIN", least)
            cluster = forgetful(seed)
            found.append(starts(SjfBsbf().decide(cluster)))
        assert found[0] == found[1], seed
        unknown = {one.request.job_id for one in cluster.pending if not one.request.steps_total}
        shared += sum(job_id in unknown for job_id, _, _ in found[0])
    assert shared

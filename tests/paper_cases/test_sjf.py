"""SJF as the SJF-BSBF paper describes it, on instances small enough for a pencil."""

from __future__ import annotations

import pytest

from scheduler_service.core.cluster_view.step_times import remaining_ms_of, step_ms_of
from scheduler_service.core.cluster_view.view import PendingJob
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.records import JobPrediction
from scheduler_service.policies.sjf import Sjf
from tests.support.cases import for_each
from tests.support.scheduling import job, node, pending, prediction, running, store, view

# L_k = iteration time x iterations (Algorithm 1, line 1), in seconds: a 40, b 30, c 60; nothing is known of d.
STEP_MS = {"a": 4_000.0, "b": 1_000.0, "c": 2_000.0}
STEPS = {"a": 10, "b": 30, "c": 30, "d": 1}


def known() -> list[JobPrediction]:
    return [prediction(f"key-{name}", step_ms={(1, 1): step_ms}) for name, step_ms in STEP_MS.items()]


def waiting(names: str) -> list[PendingJob]:
    """Jobs are written "a2" = job a on two GPUs, in order of arrival, a second apart."""
    return [
        pending(
            job(
                name,
                key=f"key-{name[0]}",
                gpus=int(name[1]),
                global_batch_size=int(name[1]),
                steps_total=STEPS[name[0]],
            ),
            submitted_at_ms=position * 1_000,
        )
        for position, name in enumerate(names.split())
    ]


def starts(policy: Sjf, names: str, *, free: int = 1, now_ms: int = 10_000) -> list[str]:
    machine = node("n0", 3)
    holding = [running(job(f"r{index}"), [f"n0.{index}"]) for index in range(3 - free)]
    seen = view(nodes=[machine], waiting=waiting(names), holding=holding, predictions=store(known()), now_ms=now_ms)
    return [one.job_id for one in unfolded(policy.decide(seen)) if isinstance(one, Start)]


@for_each(
    ("names", "free", "expected"),
    [
        ("a1 b1 c1", 1, ["b1"]),
        ("a1 b1 c1", 2, ["b1", "a1"]),
        ("c1 a1 b1", 3, ["b1", "a1", "c1"]),
        ("b2 c1", 1, ["c1"]),
        ("d1 c1", 1, ["c1"]),
        ("d1", 1, ["d1"]),
    ],
)
def test_algorithm_1_lines_1_to_3_the_least_remaining_time_goes_first(
    names: str, free: int, expected: list[str]
) -> None:
    assert starts(Sjf(), names, free=free) == expected


def test_algorithm_1_line_1_steps_that_are_done_count_no_more() -> None:
    """Of c's 30 steps 20 are done: 20 s are left, less than the 30 s of b."""
    (b, c) = waiting("b1 c1")
    seen = view(
        nodes=[node()],
        waiting=[b, pending(c.request, submitted_at_ms=1_000, steps_done=20)],
        predictions=store(known()),
    )
    started = [one.job_id for one in unfolded(Sjf().decide(seen)) if isinstance(one, Start)]
    assert started == ["c1"]


def test_an_aged_job_goes_first_and_lets_no_job_pass() -> None:
    assert starts(Sjf(aging_ms=10_000), "c1 b1", now_ms=9_999) == ["b1"]
    assert starts(Sjf(aging_ms=10_000), "c1 b1", now_ms=10_000) == ["c1"]
    assert starts(Sjf(), "c2 b1", now_ms=10_000) == ["b1"]
    assert starts(Sjf(aging_ms=10_000), "c2 b1", now_ms=10_000) == []
    assert starts(Sjf(aging_ms=10_000), "c9 b1", now_ms=10_000) == ["b1"]


def test_equation_7_the_time_of_a_step_at_a_micro_batch_that_was_not_predicted() -> None:
    """Batch 32: a pass of 8 takes at most as long as one of 16, so four passes take at most twice two passes."""
    request = job(global_batch_size=32, steps_total=10)
    predicted = prediction(step_ms={(1, 32): 100.0, (1, 16): 120.0, (1, 1): 700.0})
    assert step_ms_of(request, predicted, gpus=1) == pytest.approx(100.0)
    assert step_ms_of(request, predicted, gpus=1, micro_batch_size=16) == pytest.approx(120.0)
    assert step_ms_of(request, predicted, gpus=1, micro_batch_size=8) == pytest.approx(240.0)
    assert step_ms_of(request, predicted, gpus=2) == pytest.approx(60.0)
    assert step_ms_of(request, predicted, gpus=1, micro_batch_size=64) is None
    assert remaining_ms_of(request, predicted, steps_done=4, gpus=1) == pytest.approx(600.0)
    assert remaining_ms_of(request, None, steps_done=4, gpus=1) is None

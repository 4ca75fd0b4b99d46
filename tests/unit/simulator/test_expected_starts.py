"""When waiting jobs start: the present state is simulated with lengths drawn from what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import exp
from typing import Any

import pytest

from cotenant_simulator.commands.forecast import answer
from cotenant_simulator.errors import InputError
from cotenant_simulator.run.expected_starts import expect_starts
from cotenant_simulator.run.present_run import PresentRun, Starts
from scheduler_service.core import events
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Share
from tests.support.engine_play import Play
from tests.support.scheduling import all_pairs, prediction

CPU_S = 20


def step(ms: float, *, range_ratio: float = 1.02) -> dict[str, Any]:
    """A step time at every micro-batch, with a range of 90 %."""
    bounds = {"step_ms_lower": ms / range_ratio, "step_ms_upper": ms * range_ratio}
    return {"step_ms": {(1, 1_000_000): ms}, **bounds}


class Cluster:
    """An engine with one GPU, whose jobs are predicted when they come."""

    def __init__(self, policy: str = "fifo", gpus: int = 1) -> None:
        self.play = Play(policy, gpus=gpus)

    def submit(self, job_id: str, *, steps: int, range_ratio: float = 1.02, **changes: Any) -> None:
        self.play.submit(job_id, graph="g", steps_total=steps, **changes)
        key = self.play.engine.state.jobs[job_id].request.key
        self.play.tell(events.PredictionArrived, prediction=prediction(key, **step(1_000, range_ratio=range_ratio)))
        if any(key in (pair[0], pair[1]) for pair in self.play.engine.state.predictions.stored().outstanding_pairs):
            keys = sorted(self.play.engine.state.living_keys)
            self.play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(keys)))
        job = self.play.engine.state.jobs[job_id]
        if job.phase.value == "starting":
            self.play.report(events.JobStarted, job_id)

    def expect(self, **changes: object) -> Mapping[str, Any]:
        """Return what the process would print about each job, from a file's form."""
        engine, now_ms = self.play.engine.snapshot(), self.play.now_ms
        question = {"engine": engine, "now_ms": now_ms, "report_interval_ms": 2_000, "changes": changes}
        jobs: Mapping[str, Any] = answer(json.loads(json.dumps(question)), cpu_s=CPU_S)["jobs"]
        return jobs


def test_a_job_is_expected_when_those_before_it_have_done_what_is_left_of_them() -> None:
    cluster = Cluster()
    for name, steps in (("a", 100), ("b", 50), ("c", 10)):
        cluster.submit(name, steps=steps)
    cluster.play.report(events.JobProgressed, "a", steps_done=40, after_ms=40_000)
    found = cluster.expect()
    assert [found[name]["position"] for name in "bc"] == [1, 2]
    assert found["b"]["wait_ms"] == pytest.approx(60_000, rel=0.05)
    assert found["c"]["wait_ms"] == pytest.approx(112_000, rel=0.05)  # with two seconds for the launch of b
    assert found["b"]["wait_lower_ms"] <= found["b"]["wait_ms"] <= found["b"]["wait_upper_ms"]


def test_a_running_job_has_made_steps_since_its_newest_report() -> None:
    cluster = Cluster()
    cluster.submit("a", steps=100)
    cluster.submit("b", steps=10)
    cluster.play.report(events.JobProgressed, "a", steps_done=10, window_steps=10, window_ms=10_000, after_ms=10_000)
    cluster.play.tell(events.TimerFired, after_ms=50_000)
    assert cluster.expect()["b"]["wait_ms"] == pytest.approx(40_000, rel=0.15)


def test_the_interval_is_as_wide_as_the_predictions_are_unsure() -> None:
    widths = []
    for range_ratio in (1.1, 3.0):
        cluster = Cluster()
        cluster.submit("a", steps=1_000, range_ratio=range_ratio)
        cluster.submit("b", steps=10)
        found = cluster.expect()["b"]
        widths.append(found["wait_upper_ms"] / found["wait_lower_ms"])
    assert 1.03 < widths[0] < 1.3
    assert widths[1] > 2


class DrawnRun:
    """Stands for a run of which only the start of one job matters."""

    waiting = ("b",)

    def __init__(self, draw: str | None) -> None:
        self._start_ms = 10_000 if draw is None else 1_000 * (int(draw) + 1)

    def run(self, *, goes_on: Callable[[], bool]) -> Starts:
        return Starts(at_ms={"b": self._start_ms}, depend_on={})


@pytest.mark.parametrize(
    ("runs", "interval_ms"), [(20, (2_000, 19_000)), (15, (1_000, 15_000)), (9, (1_000, 9_000)), (8, (-1, -1))]
)
def test_the_interval_leaves_a_tenth_on_either_side_for_the_true_start(runs: int, interval_ms: tuple[int, int]) -> None:
    """Of 20 drawn starts and the true one, 21 in all, 17 lie between the second and the last but one."""
    asked: list[str | None] = []

    def run_of(draw: str | None) -> Any:
        asked.append(draw)
        return DrawnRun(draw)

    found = expect_starts(run_of, now_ms=0, goes_on=lambda: len(asked) < runs + 2).jobs["b"]
    assert (found.wait_lower_ms, found.wait_upper_ms) == interval_ms


def test_a_long_queue_is_expected_to_take_less_than_its_stated_lengths_in_sum() -> None:
    """They differ by no more than their errors, so most of the long ones are not that long."""
    cluster = Cluster()
    cluster.submit("a", steps=100)
    stated_s = [round(100 * exp(0.5 * (number - 8) / 5)) for number in range(17)]
    for number, steps in enumerate(stated_s):
        cluster.submit(f"b{number}", steps=steps, range_ratio=exp(0.5 * 1.645))
    cluster.submit("last", steps=100, range_ratio=exp(0.5 * 1.645))
    found = cluster.expect()["last"]
    assert sum(stated_s) > 1.08 * 17 * 100
    assert found["wait_ms"] - 17 * 2_000 == pytest.approx(18 * 100_000, rel=0.03)
    assert found["wait_upper_ms"] < 1.5 * 18 * 100_000


def test_the_first_of_many_alike_jobs_to_end_is_not_expected_as_early_as_the_least_stated_length() -> None:
    """They have just started, so nothing is measured: the shortest are hardly that short."""
    cluster = Cluster(gpus=17)
    stated_s = [round(100 * exp(0.5 * (number - 8) / 5)) for number in range(17)]
    for number, steps in enumerate(stated_s):
        cluster.submit(f"a{number}", steps=steps, range_ratio=exp(0.5 * 1.645))
    cluster.submit("b", steps=100, range_ratio=exp(0.5 * 1.645))
    found = cluster.expect()["b"]
    assert min(stated_s) == 45
    assert found["wait_ms"] > 80_000


def test_jobs_of_one_prediction_are_all_off_by_the_same_error() -> None:
    cluster = Cluster()
    cluster.submit("a", steps=1)
    for name in ("b", "c", "d", "e", "f", "g", "h", "i", "last"):
        cluster.submit(name, steps=100, key="same", range_ratio=3.0)
    found = cluster.expect()["last"]
    assert found["wait_upper_ms"] > 3 * found["wait_lower_ms"]


def test_a_run_goes_by_the_report_interval_of_its_cluster() -> None:
    snapshot = Cluster().play.engine.snapshot()
    assert PresentRun(snapshot, now_ms=0, report_interval_ms=250).engine.state.report_interval_ms == 250


def test_behind_a_job_of_unknown_length_nothing_is_expected_and_the_job_is_named() -> None:
    cluster = Cluster()
    cluster.submit("endless", steps=0)
    cluster.submit("b", steps=10)
    found = cluster.expect()["b"]
    assert (found["wait_ms"], list(found["depends_on"]), found["position"]) == (-1, ["endless"], 1)


def test_an_unknown_length_elsewhere_hides_nothing() -> None:
    cluster = Cluster(gpus=2)
    cluster.submit("endless", steps=0)
    cluster.submit("a", steps=10)
    cluster.play.tell(events.TimerFired, after_ms=3_600_000)
    cluster.submit("b", steps=10)
    assert cluster.expect()["b"]["wait_ms"] == pytest.approx(10_000, rel=0.1)


def test_another_policy_or_another_job_changes_what_is_expected() -> None:
    cluster = Cluster()
    for name, steps in (("a", 100), ("long", 1_000), ("short", 10)):
        cluster.submit(name, steps=steps, global_batch_size=64)
    assert [name for name, one in sorted(cluster.expect().items(), key=lambda item: item[1]["position"])] == [
        "long", "short"
    ]  # fmt: skip
    assert cluster.expect(policy="sjf")["short"]["position"] == 1
    assert cluster.expect(job_id="long", policy="sjf", steps=5)["long"]["position"] == 1
    sooner = cluster.expect(job_id="long", batch_size=32)["short"]["wait_ms"]
    assert sooner == pytest.approx(cluster.expect()["short"]["wait_ms"], rel=0.2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policy": "fastest"}, "there is no policy 'fastest'"),
        ({"job_id": "gone", "steps": 5}, "no job 'gone'"),
        ({"job_id": "b", "batch_size": 128}, "cotenant predict --batch-size"),
        ({"job_id": "b", "colour": "red"}, "cannot be changed"),
    ],
)
def test_what_cannot_be_is_said_in_words(changes: Mapping[str, object], why: str) -> None:
    cluster = Cluster()
    for name in "ab":
        cluster.submit(name, steps=10, global_batch_size=64)
    with pytest.raises(InputError, match=why):
        cluster.expect(**changes)


def test_a_job_that_starts_in_no_run_says_what_holds_it_with_the_changes() -> None:
    cluster = Cluster()
    cluster.submit("a", steps=100)
    cluster.submit("b", steps=10)
    cluster.play.submit("c", terms=QueueTerms(is_held=True))
    found = cluster.expect(job_id="b", gpus=9)
    assert (found["b"]["wait_ms"], found["c"]["wait_ms"]) == (-1, -1)
    assert found["b"]["held_by"].startswith("9 GPUs of one kind are needed, but the cluster has 1 usable")
    assert "cotenant release" in found["c"]["held_by"]
    assert cluster.expect()["b"]["held_by"] == ""


def test_jobs_that_start_stop_or_stand_still_now_are_gone_on_with() -> None:
    cluster = Cluster("horus")
    cluster.submit("a", steps=100)
    cluster.submit("b", steps=10, share=Share.NEVER)
    cluster.play.tell(events.PauseRequested, job_id="a", paused_ms_max=60_000)
    cluster.play.report(events.AttemptPaused, "a")
    assert cluster.play.phase("a").value == "paused"
    assert cluster.expect()["b"]["wait_ms"] == pytest.approx(100_000, rel=0.1)
    cluster.play.tell(events.JobCancelled, job_id="a")
    assert cluster.play.phase("a").value == "stopping"
    assert 0 <= cluster.expect()["b"]["wait_ms"] <= 10_000

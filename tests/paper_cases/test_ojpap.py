"""OJPAP of the OJPP paper (section 4.4, Algorithm 4, Eq. 18 and 19, Fig. 10) by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core import commands, events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Migrate, unfolded
from scheduler_service.core.records import Share
from scheduler_service.policies.ojpap import Ojpap
from scheduler_service.policies.packing import adjustment
from tests.support.engine_play import Play
from tests.support.packing import Instance, Packed
from tests.support.scheduling import all_pairs, memory, prediction

STEPS, SOLO_MS = 100, 10_000


class Fluctuation:
    """Fig. 10: two jobs on one GPU, another GPU idle; every window lasts about ten seconds."""

    def __init__(self) -> None:
        self.play = Play("ojpap", gpus=2, parameters={"cost_max_ms": 60_000, "unshare": False})
        self.play.submit("a", **self._shape())
        known = prediction("key", memory=memory(1), utilization_ratio=0.3, sm_activity_ratio=0.3)
        self.play.tell(events.PredictionArrived, prediction=known)
        self.play.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(["key"], 0.1)))
        self.steps = {"a": 0, "b": 0}
        for _ in range(3):
            self.window("a", 0.0)
        self.play.submit("b", **self._shape())
        self.window("b", 0.1)
        self.play.tell(events.TimerFired, after_ms=60_000)

    def _shape(self) -> dict[str, Any]:
        return {"key": "key", "graph": "g", "share": Share.ANY, "max_slowdown_ratio": 9.0, "steps_total": 10_000}

    def window(self, job_id: str, slowdown_ratio: float) -> None:
        """Report a window in which a job was so much slower than alone."""
        window_ms = round(SOLO_MS * (1 + slowdown_ratio))
        self.steps[job_id] += STEPS
        values = {"steps_done": self.steps[job_id], "window_steps": STEPS, "window_ms": window_ms}
        self.play.report(events.JobProgressed, job_id, after_ms=window_ms, **values)

    def moved(self) -> list[str]:
        """Ask the policy and return which job is being moved."""
        found = self.play.tell(events.TimerFired)
        return [one.job_id for one in found if isinstance(one, commands.StopJob) and one.cause == "moved"]


def test_fig_10_at_t2_a_single_spike_does_not_trigger() -> None:
    world = Fluctuation()
    world.window("a", 1.22)
    assert world.moved() == []
    for _ in range(5):
        world.window("a", 0.1)
        assert world.moved() == []


def test_fig_10_at_t6_a_lasting_rise_does() -> None:
    world = Fluctuation()
    assert world.play.engine.state.jobs["a"].gpu_ids == world.play.engine.state.jobs["b"].gpu_ids
    world.window("a", 1.22)
    assert world.moved() == []
    world.window("a", 1.22)
    assert world.moved() == ["a"]
    (order,) = world.play.report(
        events.JobStopped, "a", exit_class="checkpointed", steps_done=world.steps["a"], checkpoint_step=world.steps["a"]
    )
    assert isinstance(order, commands.LaunchJob)
    assert order.assignments[0].gpu_id != world.play.engine.state.jobs["b"].gpu_ids[0]
    assert world.play.engine.state.jobs["a"].counts.migrations == 1


FOUR = Instance(
    jobs=tuple(Packed(name=name, alpha=0.1, gamma=0.1) for name in "abcd"),
    gpus=3,
    slowdowns={("a", "b"): 0.5, ("b", "a"): 0.5, ("c", "d"): 0.15, ("d", "c"): 0.15},
    held={"a": ["g0"], "b": ["g0"], "c": ["g1"], "d": ["g1"]},
)


def suffering(instance: Instance, measured: Mapping[str, float], costs_ms: Mapping[str, int]) -> SchedulingView:
    """Return the view with these moving averages by GPU and migration costs by job."""
    seen = instance.view()
    ratios = {gpu_id: measured.get(f"g{entry.gpu.index}", 0.0) for gpu_id, entry in seen.gpus.items()}
    running = {
        name: replace(job, request=replace(job.request, migration_cost_ms=costs_ms.get(name, 1_000)))
        for name, job in seen.running.items()
    }
    return replace(seen, slowdown_ewma_ratios=ratios, running=running)


def moves_of(seen: SchedulingView, **parameters: Any) -> dict[str, list[str]]:
    policy = Ojpap(**{"settle_ms": 0, "cost_max_ms": 10_000, "unshare": False, **parameters})
    decisions = unfolded(policy.decide(seen))
    return {
        one.job_id: [part.gpu_id.replace("n0.", "g") for part in one.assignments]
        for one in decisions
        if isinstance(one, Migrate)
    }


def test_algorithm_4_the_cheapest_worker_of_the_worst_device_goes_where_interference_is_lowest() -> None:
    """No job slows down any but its partner, so `b`, the cheaper one, goes to the other device in use."""
    seen = suffering(FOUR, {"g0": 0.5}, {"a": 2_000, "b": 1_000})
    assert moves_of(seen) == {"b": ["g1"]}


def test_algorithm_4_only_half_of_the_devices_is_rearranged() -> None:
    slow = dict.fromkeys([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")], 0.5)
    assert moves_of(suffering(replace(FOUR, slowdowns=slow), {"g0": 0.5, "g1": 0.4}, {})) == {"a": ["g2"]}


@pytest.mark.parametrize(("limit_ms", "moved"), [(1_999, 1), (2_000, 2)])
def test_eq_19_bounds_the_sum_over_the_whole_plan(limit_ms: int, moved: int) -> None:
    """Each move costs 1 s, so the listing's look at single costs would allow both."""
    jobs = tuple(Packed(name=name, alpha=0.1, gamma=0.1) for name in "abcdefgh")
    slow = dict.fromkeys([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")], 0.5)
    held = {name: [f"g{index // 2}"] for index, name in enumerate("abcd")}
    held |= {"e": ["g2"], "f": ["g3"]}
    instance = Instance(jobs=jobs[:6], gpus=4, slowdowns=slow, held=held)
    seen = suffering(instance, {"g0": 0.5, "g1": 0.5}, {})
    assert len(moves_of(seen, cost_max_ms=limit_ms)) == moved


def test_below_the_limit_nothing_is_triggered_and_a_plan_that_lowers_nothing_is_empty() -> None:
    assert moves_of(suffering(FOUR, {"g0": 0.2}, {})) == {}
    everywhere = {(one, two): 0.5 for one in "abcd" for two in "abcd"}
    shared = replace(FOUR, slowdowns=everywhere, gpus=2)
    assert moves_of(suffering(shared, {"g0": 0.5, "g1": 0.5}, {})) == {}


def test_without_a_stated_limit_it_is_a_share_of_the_remaining_time_and_unknown_time_moves_no_job() -> None:
    assert moves_of(suffering(FOUR, {"g0": 0.5}, {}), cost_max_ms=0) == {}


def test_a_device_is_judged_when_its_jobs_have_been_together_for_a_while() -> None:
    seen = suffering(FOUR, {"g0": 0.5}, {})
    assert moves_of(seen, settle_ms=1_000) != {}
    assert moves_of(seen, settle_ms=1_001) == {}


def test_a_device_within_its_limit_is_left_alone() -> None:
    """The half of four devices is two, but only one of them violates the limit."""
    jobs = tuple(Packed(name=name, alpha=0.1, gamma=0.1) for name in "abcdef")
    slow = {("a", "b"): 0.5, ("b", "a"): 0.5, ("c", "d"): 0.15, ("d", "c"): 0.15}
    held = {"a": ["g0"], "b": ["g0"], "c": ["g1"], "d": ["g1"], "e": ["g2"], "f": ["g3"]}
    dense = Instance(jobs=jobs, gpus=5, slowdowns=slow, held=held)
    assert moves_of(suffering(dense, {"g0": 0.5}, {})) == {"a": ["g2"]}


def wide(workers: int, **parameters: Any) -> Instance:
    """Two jobs co-located on every GPU that they have, which slow each other down by 0.5."""
    jobs = tuple(Packed(name=name, workers=workers) for name in "ab")
    held = {name: [f"g{index}" for index in range(workers)] for name in "ab"}
    return Instance(jobs=jobs, slowdowns={("a", "b"): 0.5, ("b", "a"): 0.5}, held=held, **parameters)


def test_eq_8_workers_that_suffer_together_move_together() -> None:
    """Both workers lose 0.5; if one of them moved alone they would differ by 0.5."""
    measured = {"g0": 0.5, "g1": 0.5}
    assert moves_of(suffering(wide(1, gpus=6), {"g0": 0.5}, {})) == {"a": ["g1"]}
    assert moves_of(suffering(wide(2, gpus=6), measured, {})) == {"a": ["g2", "g3"]}
    assert moves_of(suffering(wide(2, gpus=6), measured, {}), theta_diff=9.0) == {"a": ["g2", "g1"]}


def test_eq_8_no_job_moves_where_there_is_no_room_for_all_who_suffer() -> None:
    assert moves_of(suffering(wide(2, gpus=3), {"g0": 0.5, "g1": 0.5}, {})) == {}


def test_eq_19_moving_several_workers_of_a_job_is_one_restart() -> None:
    seen = suffering(wide(2, gpus=6), {"g0": 0.5, "g1": 0.5}, {})
    assert len(moves_of(seen, cost_max_ms=1_000)) == 1
    assert not moves_of(seen, cost_max_ms=999)


def test_where_the_cheapest_job_cannot_go_the_next_one_does() -> None:
    """The job `a` would slow all others down on whatever device there is."""
    held = {"a": ["g0"], "b": ["g0"], "c": ["g1"]}
    jobs = tuple(Packed(name=name) for name in "abc")
    slow = {("a", "b"): 0.5, ("b", "a"): 0.5, ("c", "a"): 0.5}
    dense = Instance(jobs=jobs, gpus=2, slowdowns=slow, held=held)
    assert moves_of(suffering(dense, {"g0": 0.5}, {"a": 1_000, "b": 2_000})) == {"b": ["g1"]}


def test_unpredicted_slowdown_is_fled_to_unused_devices() -> None:
    """Nothing is predicted of any job; by the paper's order the device with a job would come first."""
    jobs = tuple(Packed(name=name) for name in "abc")
    dense = Instance(jobs=jobs, gpus=3, held={"a": ["g0"], "b": ["g0"], "c": ["g1"]})
    assert moves_of(suffering(dense, {"g0": 0.5}, {})) == {"a": ["g2"]}
    assert moves_of(suffering(replace(dense, gpus=2), {"g0": 0.5}, {})) == {"a": ["g1"]}


def test_workers_flee_from_every_device_on_which_more_is_measured_than_predicted() -> None:
    """A moving average shows how slow the job is and not which of its workers is to blame."""
    jobs = (Packed(name="a", workers=2), Packed(name="b"), Packed(name="c", workers=3))
    dense = Instance(jobs=jobs, gpus=6, held={"a": ["g0", "g1"], "b": ["g0"], "c": ["g1", "g2", "g3"]})
    seen = suffering(dense, {"g0": 0.5, "g1": 0.5}, {"b": 9_000})
    assert moves_of(seen) == {"a": ["g4", "g5"]}


def test_what_was_measured_before_a_job_came_does_not_count_against_it() -> None:
    """Otherwise a job that has just left for a device leaves it again, and two jobs take turns for ever."""
    jobs = tuple(Packed(name=name) for name in "abcdef")
    held = {"a": ["g0"], "b": ["g0"], "c": ["g1"], "d": ["g1"], "e": ["g2"], "f": ["g3"]}
    seen = suffering(Instance(jobs=jobs, gpus=6, held=held), {"g0": 0.5, "g1": 0.5}, {})
    assert moves_of(seen, settle_ms=1) == {"a": ["g4"], "c": ["g5"]}
    changed = {**seen.running, "d": replace(seen.running["d"], neighbours_since_ms=seen.now_ms)}
    assert moves_of(replace(seen, running=changed), settle_ms=1) == {"a": ["g4"]}


def test_a_plan_ends_with_what_it_has_found_when_it_has_looked_at_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"a": ["g0"], "b": ["g0"], "c": ["g1"], "d": ["g1"], "e": ["g2"], "f": ["g3"]}
    jobs = tuple(Packed(name=name) for name in "abcdef")
    seen = suffering(Instance(jobs=jobs, gpus=6, held=held), {"g0": 0.5, "g1": 0.5}, {})
    assert moves_of(seen) == {"a": ["g4"], "c": ["g5"]}
    monkeypatch.setattr(adjustment, "LOOKS_MAX", 1)
    assert moves_of(seen) == {"a": ["g4"]}

"""GPUs are kept back for a wide job that narrower jobs of other lanes would pass for ever."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.core import commands, events, queue_events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision, Hold
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.queue.reservations import KEPT_MS_MAX, OVERDUE_LEAST_MS
from scheduler_service.core.queue.tenants import TenantRule, TenantRules
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Reason, Share
from scheduler_service.policies.fifo import Fifo
from tests.support.engine_play import Play
from tests.support.scheduling import all_pairs, explained, node, prediction

STEP_MS = 1_000.0
MINUTE_STEPS = 60
POLICIES = ("fifo", "sjf", "sjf_bsbf", "sjf_ffs", "horus", "srtf", "tiresias", "tetris", "best_fit", "ojpp", "pab")


class Scene(Play):
    """Notes when the engine wishes to be woken."""

    wakes_at_ms: tuple[int, ...] = ()

    def tell(self, kind: type[events.Event], *, after_ms: int = 1_000, **values: Any) -> list[commands.Command]:
        orders = super().tell(kind, after_ms=after_ms, **values)
        self.wakes_at_ms += tuple(order.at_ms for order in orders if isinstance(order, commands.WakeAt))
        return orders


def submit(scene: Play, job_id: str, *, minutes: int = 0, gpus: int = 1, priority: int = 0, **changes: Any) -> None:
    """A job that runs so many minutes; 0 = nobody knows how long."""
    terms = changes.pop("terms", QueueTerms(priority=priority))
    asked = {"gpus": gpus, "global_batch_size": gpus, "steps_total": minutes * MINUTE_STEPS, "share": Share.NEVER}
    scene.submit(job_id, graph="g" * 64, terms=terms, **asked | changes)
    known = prediction(f"key-{job_id}", step_ms={(1, 1): STEP_MS, (gpus, 1): STEP_MS})
    scene.tell(events.PredictionArrived, prediction=known)


def finish(scene: Play, job_id: str, *, after_ms: int = 0) -> None:
    steps = scene.engine.state.jobs[job_id].request.steps_total
    scene.now_ms += after_ms
    scene.report(events.JobFinished, job_id, steps_done=steps)


def wake_up(scene: Scene) -> None:
    """Let the timer fire when the engine wished it next; no other fact comes."""
    at_ms = min(one for one in scene.wakes_at_ms if one > scene.now_ms)
    scene.tell(events.TimerFired, after_ms=at_ms - scene.now_ms)


def running(scene: Play) -> list[str]:
    return sorted(scene.engine.state.running)


def full_node(policy: str = "fifo", *, minutes: int = 10, gpus: int = 4, **options: Any) -> Scene:
    """Four low jobs hold four GPUs, and a wide one of a high class waits for all of them."""
    scene = Scene(policy, gpus=gpus, **options)
    for number in range(gpus):
        submit(scene, f"busy{number}", minutes=minutes, priority=-100)
    submit(scene, "wide", minutes=5, gpus=gpus, priority=100)
    return scene


@pytest.mark.parametrize("policy", POLICIES)
def test_a_wide_job_of_a_high_class_starts_although_narrow_low_ones_never_cease(policy: str) -> None:
    scene = full_node(policy)
    for number in range(4):
        submit(scene, f"low{number}", minutes=600, priority=-100)
    for number in range(4):
        if f"busy{number}" in scene.engine.state.running:
            finish(scene, f"busy{number}", after_ms=60_000)
    for job_id in [name for name in running(scene) if scene.engine.state.jobs[name].phase.value == "stopping"]:
        scene.report(events.JobStopped, job_id, exit_class="checkpointed", exit_code=85)
    assert running(scene) == ["wide"]


def test_both_read_why_with_numbers() -> None:
    scene = full_node()
    submit(scene, "low", minutes=600, priority=-100)
    finish(scene, "busy0", after_ms=60_000)
    own, other = (explained(scene.engine, name).reason for name in ("wide", "low"))
    assert (own.code, own.numbers["gpus_needed"], own.numbers["gpus_kept"]) == ("RESERVED", 4, 1)
    assert 0 < own.numbers["wait_ms"] <= 600_000
    assert sorted(own.gpu_ids) == [f"n0.{index}" for index in range(4)]
    assert (other.code, other.job_ids, other.gpu_ids) == ("KEPT_FOR_OTHER", ("wide",), ("n0.0",))
    assert "the free ones (1 now) are kept back" in describe_reason(own)
    assert "kept back for wide, which comes first and needs 4 at once" in describe_reason(other)


def test_a_job_that_ends_before_the_wide_one_can_start_has_the_gpus_meanwhile() -> None:
    scene = full_node(minutes=10)
    submit(scene, "long", minutes=30, priority=-100)
    submit(scene, "short", minutes=2, priority=-100)
    finish(scene, "busy0", after_ms=60_000)
    assert running(scene) == ["busy1", "busy2", "busy3", "short"]
    assert scene.code("wide") == "RESERVED"
    finish(scene, "short", after_ms=120_000)
    for number in (1, 2, 3):
        finish(scene, f"busy{number}", after_ms=60_000)
    assert running(scene) == ["wide"]


def test_two_short_jobs_do_not_share_a_gpu_that_is_kept_back() -> None:
    scene = full_node("horus", minutes=10)
    for name in ("short0", "short1"):
        submit(scene, name, minutes=2, priority=-100, share=Share.ANY, max_slowdown_ratio=1.0)
    keys = [f"key-{job_id}" for job_id in scene.engine.state.jobs]
    scene.tell(events.PairPredictionsArrived, pairs=tuple(all_pairs(keys, 0.1)))
    finish(scene, "busy0", after_ms=60_000)
    assert running(scene) == ["busy1", "busy2", "busy3", "short0"]


def test_where_nobody_knows_how_long_jobs_run_gpus_are_kept_back_for_a_bounded_time_in_turns() -> None:
    scene = full_node(minutes=0)
    asked_at_ms = scene.engine.state.jobs["wide"].times.submitted_at_ms
    submit(scene, "low0", priority=-100)
    scene.now_ms += 60_000
    scene.report(events.JobFinished, "busy0", steps_done=1)
    assert running(scene) == ["busy1", "busy2", "busy3"]
    assert scene.code("wide") == "RESERVED_FOR_NOW"
    wake_up(scene)
    assert scene.now_ms == asked_at_ms + KEPT_MS_MAX
    assert running(scene) == ["busy1", "busy2", "busy3", "low0"]
    submit(scene, "low1", priority=-100)
    scene.now_ms = asked_at_ms + 2 * KEPT_MS_MAX
    scene.report(events.JobFinished, "busy1", steps_done=1)
    assert running(scene) == ["busy2", "busy3", "low0"]


def test_a_job_that_runs_much_longer_than_foreseen_keeps_no_gpus_idle_for_ever() -> None:
    scene = full_node(minutes=1)
    submit(scene, "low", minutes=600, priority=-100)
    scene.report(events.JobFinished, "busy0", steps_done=1)
    assert running(scene) == ["busy1", "busy2", "busy3"]
    woken = 0
    while "low" not in scene.engine.state.running:
        wake_up(scene)
        woken += 1
    assert woken <= 10
    assert scene.now_ms <= 2 * KEPT_MS_MAX + 2 * OVERDUE_LEAST_MS


def test_a_time_limit_tells_when_a_job_of_unknown_length_ends_at_the_latest() -> None:
    scene = Scene("fifo", gpus=2)
    for number in range(2):
        submit(scene, f"busy{number}", terms=QueueTerms(priority=-100, time_limit_ms=600_000))
    submit(scene, "wide", gpus=2, priority=100)
    submit(scene, "low", priority=-100)
    finish(scene, "busy0")
    assert scene.code("wide") == "RESERVED"
    assert scene.engine.state.decisions["wide"].reason.numbers["wait_ms"] <= 600_000


def test_the_node_is_chosen_on_which_the_job_is_expected_to_fit_first() -> None:
    scene = Scene("fifo", nodes=2, gpus=2)
    for number, minutes in enumerate((100, 100, 5, 5)):
        submit(scene, f"busy{number}", minutes=minutes, priority=-100)
    submit(scene, "wide", minutes=5, gpus=2, priority=100)
    for number in range(3):
        submit(scene, f"low{number}", minutes=600, priority=-100)
    finish(scene, "busy0")
    finish(scene, "busy2")
    assert running(scene) == ["busy1", "busy3", "low0"]
    finish(scene, "busy3")
    assert running(scene) == ["busy1", "low0", "wide"]


@pytest.mark.parametrize("gpus", [5, 100])
def test_a_job_that_fits_nowhere_keeps_nothing_back(gpus: int) -> None:
    scene = Scene("fifo", gpus=4)
    submit(scene, "busy", minutes=10, gpus=3)
    submit(scene, "wide", minutes=5, gpus=gpus, priority=100)
    submit(scene, "low", minutes=600, priority=-100)
    assert running(scene) == ["busy", "low"]


def test_a_wide_job_behind_one_that_fits_nowhere_has_gpus_kept_back() -> None:
    scene = Scene("sjf", gpus=2)
    for number in range(2):
        submit(scene, f"busy{number}", minutes=10, priority=-100)
    submit(scene, "never", minutes=5, gpus=16, priority=100)
    submit(scene, "wide", minutes=5, gpus=2, priority=100)
    submit(scene, "low", minutes=600, priority=-100)
    finish(scene, "busy0")
    assert (running(scene), scene.code("wide")) == (["busy1"], "RESERVED")


class Picky:
    """A policy that starts any job but one."""

    def decide(self, view: SchedulingView) -> list[Decision]:
        reason = Reason(code="NO_FREE_GPU", numbers={"gpus_needed": 2, "gpus_free": 0})
        decisions = Fifo().decide(view)
        return [Hold(job_id=one.job_id, reason=reason) if one.job_id == "wide" else one for one in decisions]


def test_a_job_that_its_policy_does_not_start_on_free_gpus_keeps_nothing_back() -> None:
    scene = Scene("fifo", gpus=2)
    scene.engine = SchedulerEngine(make_policy=lambda name, parameters: Picky(), policy="picky")
    scene.tell(events.NodeJoined, node=node("n0", 2))
    submit(scene, "wide", minutes=5, gpus=2, priority=100)
    submit(scene, "low", minutes=600, priority=-100)
    assert (running(scene), scene.code("wide")) == (["low"], "NO_FREE_GPU")


def test_a_higher_class_is_not_held_up() -> None:
    scene = full_node(minutes=10)
    finish(scene, "busy0")
    submit(scene, "urgent", minutes=600, priority=1_000)
    assert "urgent" in running(scene)


def test_one_class_and_one_tenant_know_no_reservation() -> None:
    scene = Scene("sjf", gpus=4)
    for number in range(4):
        submit(scene, f"busy{number}", minutes=10)
    submit(scene, "wide", minutes=5, gpus=4)
    submit(scene, "low", minutes=600)
    finish(scene, "busy0", after_ms=60_000)
    assert running(scene) == ["busy1", "busy2", "busy3", "low"]
    assert scene.code("wide") == "NO_FREE_GPU"


def test_the_tenant_whose_turn_it_is_has_gpus_kept_back_from_the_others() -> None:
    scene = Scene("fifo", gpus=2)
    scene.tell(queue_events.TenantsChosen, rules=TenantRules(rules={"a": TenantRule(), "b": TenantRule()}))
    for number in range(2):
        submit(scene, f"b{number}", minutes=10, tenant="b")
    submit(scene, "a-wide", minutes=5, gpus=2, tenant="a")
    submit(scene, "b2", minutes=600, tenant="b")
    finish(scene, "b0", after_ms=60_000)
    assert (running(scene), scene.code("a-wide"), scene.code("b2")) == (["b1"], "RESERVED", "KEPT_FOR_OTHER")
    finish(scene, "b1", after_ms=60_000)
    assert running(scene) == ["a-wide"]


def test_a_tenant_without_the_quota_for_its_wide_job_keeps_nothing_back() -> None:
    scene = Scene("fifo", gpus=2)
    scene.tell(queue_events.TenantsChosen, rules=TenantRules(rules={"a": TenantRule(gpus_max=1)}))
    for number in range(2):
        submit(scene, f"b{number}", minutes=10, tenant="b")
    submit(scene, "a-wide", minutes=5, gpus=2, tenant="a")
    submit(scene, "b2", minutes=600, tenant="b")
    finish(scene, "b0", after_ms=60_000)
    assert running(scene) == ["b1", "b2"]


def spanning() -> Scene:
    """Two nodes with two GPUs each that share their storage, all busy, and a gang of four ranks."""
    scene = Scene("fifo", nodes=0)
    for index in range(2):
        shared = {"rendezvous_address": f"10.0.0.{index}", "storage_id": "shared", "machine_id": f"n{index}"}
        scene.tell(events.NodeJoined, node=node(f"n{index}", 2, **shared))
    for number in range(4):
        submit(scene, f"busy{number}", minutes=10)
    return scene


def test_younger_jobs_of_one_node_do_not_pass_a_gang_across_nodes_for_ever() -> None:
    scene = spanning()
    submit(scene, "gang", minutes=5, gpus=4, terms=QueueTerms(across_nodes=True))
    for number in range(4):
        submit(scene, f"young{number}", minutes=600)
    for number in range(4):
        finish(scene, f"busy{number}", after_ms=60_000)
    assert running(scene) == ["gang"]


def test_an_older_job_of_one_node_goes_before_the_gang_and_those_behind_it_do_not() -> None:
    scene = spanning()
    submit(scene, "old", minutes=600)
    submit(scene, "gang", minutes=5, gpus=4, terms=QueueTerms(across_nodes=True))
    submit(scene, "young", minutes=600)
    finish(scene, "busy0", after_ms=60_000)
    finish(scene, "busy1", after_ms=60_000)
    assert running(scene) == ["busy2", "busy3", "old"]


def test_a_lower_class_does_not_wait_for_gpus_that_are_kept_back_where_it_may_stop_a_longer_job() -> None:
    scene = Scene("srtf", nodes=2, gpus=2)
    for number, minutes in enumerate((5, 5, 6_000, 6_000)):
        submit(scene, f"busy{number}", minutes=minutes, priority=0 if number < 2 else -100)
        scene.report(events.JobStarted, f"busy{number}")
    submit(scene, "wide", minutes=3, gpus=2, priority=100)
    assert scene.code("wide") in ("STOPS_LONGER", "RESERVED")


def test_nothing_is_kept_back_between_two_decisions() -> None:
    scene = full_node()
    submit(scene, "low", minutes=600, priority=-100)
    finish(scene, "busy0", after_ms=60_000)
    assert not scene.engine.state.usable_gpus["n0.0"].is_releasing
    assert scene.engine.state.occupancy.kept_gpu_ids == frozenset()
    assert scene.engine.state.gpus_free == 1

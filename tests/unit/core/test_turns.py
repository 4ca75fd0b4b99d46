"""Classes and tenants: whose jobs the policy is asked about first, and what it may touch then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_service.core import commands, events, queue_events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.codec import decode, encode
from scheduler_service.core.decisions import Decision, Hold, Reshape, Stop
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import TenantRulesError
from scheduler_service.core.queue.lanes import PLAIN_LANE
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.queue.tenants import USED_TENANTS_MAX, TenantRule, TenantRules, TenantUse, parse_tenants
from scheduler_service.core.reasons.reason_remedies import describe_remedy
from scheduler_service.core.records import Phase, Reason, Share
from scheduler_service.policies.fifo import Fifo
from scheduler_service.policies.placement.free_gpus import ranked
from scheduler_service.policy_registry import make_policy
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.scheduling import explained, job, node, prediction

HOUR_MS = 3_600_000


def submit(scene: Play, job_id: str, *, priority: int = 0, **changes: Any) -> None:
    scene.submit(job_id, terms=QueueTerms(priority=priority), **changes)


def test_the_lane_that_is_shown_is_the_only_one_or_the_one_that_was_chosen() -> None:
    scene = Play("fifo", gpus=1)
    scene.submit("runs")
    waiting = scene.engine.state.waiting
    shown = [waiting.shown_lane]
    for job_id, priority in (("one", 0), ("other", 7)):
        submit(scene, job_id, priority=priority)
        shown.append(waiting.shown_lane)
    assert shown == [PLAIN_LANE, PLAIN_LANE, None]
    chosen = waiting.lane_of("other")
    assert chosen is not None
    with waiting.showing(chosen):
        shown.append(waiting.shown_lane)
    shown.append(waiting.shown_lane)
    scene.tell(events.JobCancelled, job_id="one")
    assert shown[3:] == [chosen, None]
    assert waiting.shown_lane == chosen


def finish(scene: Play, job_id: str) -> None:
    scene.report(events.JobFinished, job_id, steps_done=10)


def with_tenants(policy: str = "fifo", gpus: int = 4, **rules: TenantRule) -> Play:
    scene = Play(policy, gpus=gpus)
    scene.tell(queue_events.TenantsChosen, rules=TenantRules(rules=rules))
    return scene


def running(scene: Play) -> list[str]:
    return list(scene.engine.state.running)


@for_each("policy", ["fifo", "sjf", "sjf_bsbf", "horus", "srtf", "tetris", "best_fit"])
def test_a_higher_class_goes_first_under_every_policy(policy: str) -> None:
    scene = Play(policy)
    submit(scene, "busy", gpus=1)
    submit(scene, "low", priority=-100)
    submit(scene, "normal")
    submit(scene, "high", priority=100)
    order = []
    for _ in range(4):
        order += running(scene)
        finish(scene, order[-1])
    assert order == ["busy", "high", "normal", "low"]


def test_a_lower_class_gets_what_higher_ones_leave() -> None:
    scene = Play("fifo", gpus=4)
    submit(scene, "busy", gpus=3)
    submit(scene, "high", gpus=5, priority=100)
    submit(scene, "low", priority=-5)
    assert (running(scene), scene.code("high")) == (["busy", "low"], "GPUS_NOT_IN_CLUSTER")


def test_a_policy_stops_jobs_of_its_own_class_and_lower_ones_never_of_a_higher_one() -> None:
    for priority, stopped in ((0, True), (-100, True), (100, False)):
        scene = Play("srtf")
        submit(scene, "long", priority=priority, steps_total=1_000_000, share=Share.NEVER, graph="g" * 64)
        _predict(scene, "long")
        scene.report(events.JobStarted, "long")
        submit(scene, "short", share=Share.NEVER, graph="g" * 64)
        orders = _predict(scene, "short")
        assert any(isinstance(order, commands.StopJob) for order in orders) is stopped
        assert scene.code("short") == ("STOPS_LONGER" if stopped else "NO_FREE_GPU")


def _predict(scene: Play, job_id: str) -> list[commands.Command]:
    known = prediction(f"key-{job_id}", step_ms={(1, 1): 1_000.0})
    return scene.tell(events.PredictionArrived, prediction=known)


class StopsEverything:
    """A policy that knows nothing of protected jobs."""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Stop whatever runs for the first that waits."""
        first = tuple(job.request.job_id for job in view.pending[:1])
        stops = [
            Stop(job_id=job_id, reason=Reason(code="STOPPED_FOR_SHORTER", job_ids=first)) for job_id in view.running
        ]
        return [*(stops if first else ()), *Fifo().decide(view)]


def test_a_policy_that_heeds_nothing_is_not_followed_and_the_job_reads_why() -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: StopsEverything(), policy="stops")
    engine.handle(events.NodeJoined(at_ms=1, node=node("n0", 1)))
    for number, priority in enumerate((5, 0)):
        terms = QueueTerms(priority=priority)
        orders = engine.handle(events.JobSubmitted(at_ms=2 + number, request=job(f"j{number}", terms=terms)))
    assert not [order for order in orders if isinstance(order, commands.StopJob)]
    reason = explained(engine, "j1").reason
    assert (reason.code, reason.job_ids) == ("PROTECTED", ("j0",))


class GrowsWhenNobodyWaits:
    """A policy that lets jobs wait for others, and gives idle GPUs away where it sees no job that waits."""

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Hold the jobs that come later; without any let what runs have all GPUs."""
        if not view.running:
            return Fifo().decide(view)
        reason = Reason(code="RESHAPES_OTHER")
        holds: list[Decision] = [Hold(job_id=one.request.job_id, reason=reason) for one in view.pending]
        grow = [] if holds or view.now_ms < 4 else sorted(view.running)
        return holds + [
            Reshape(job_id=job_id, reason=reason, assignments=ranked(sorted(view.gpus)), micro_batch_size=1)
            for job_id in grow
        ]


@for_each(
    ("waiting", "rules", "grows"),
    [
        ([{"terms": QueueTerms(priority=100)}], {}, False),
        ([{"terms": QueueTerms(priority=-100)}], {}, False),
        ([{"tenant": "b"}], {"b": TenantRule(gpus_max=1)}, False),
        ([{"tenant": "b"}], {"b": TenantRule(is_closed=True)}, True),
        ([{"tenant": "b", "gpus": 2}], {"b": TenantRule(gpus_max=1)}, True),
        ([{"tenant": "a", "gpus": 2}, {"tenant": "b"}], {"a": TenantRule(gpus_max=2)}, False),
    ],
)
def test_no_running_job_grows_into_room_for_which_a_job_of_another_class_or_tenant_waits(
    waiting: list[dict[str, Any]], rules: dict[str, TenantRule], grows: bool
) -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: GrowsWhenNobodyWaits(), policy="grows")
    engine.handle(events.NodeJoined(at_ms=1, node=node("n0", 2)))
    if rules:
        engine.handle(queue_events.TenantsChosen(at_ms=1, rules=TenantRules(rules=rules)))
    elastic = job("runs", allowed_gpus=(1, 2), global_batch_size=2, share=Share.NEVER, tenant="a")
    engine.handle(events.JobSubmitted(at_ms=2, request=elastic))
    for number, terms in enumerate(waiting):
        held = replace(terms.pop("terms", QueueTerms()), is_held=True)
        engine.handle(events.JobSubmitted(at_ms=2, request=job(f"waits-{number}", terms=held, **terms)))
        orders = engine.handle(queue_events.JobReleased(at_ms=3, job_id=f"waits-{number}"))
        assert not orders
    runs = engine.state.jobs["runs"]
    engine.handle(events.JobStarted(at_ms=3, job_id="runs", attempt=runs.attempt, fence=runs.fence))
    orders = engine.handle(events.TimerFired(at_ms=4))
    assert any(isinstance(order, commands.StopJob) for order in orders) is grows


def test_a_tenant_holds_no_more_gpus_than_its_quota() -> None:
    scene = with_tenants(a=TenantRule(gpus_max=2))
    for number in range(3):
        submit(scene, f"a{number}", tenant="a")
    submit(scene, "b0", tenant="b")
    assert (sorted(running(scene)), scene.code("a2")) == (["a0", "a1", "b0"], "QUOTA")
    assert scene.engine.state.decisions["a2"].reason.numbers == {"gpus_held": 2, "gpus_max": 2}
    finish(scene, "a0")
    assert scene.phase("a2") is Phase.STARTING


def test_a_job_wider_than_what_is_left_of_a_quota_waits_and_a_narrower_one_goes() -> None:
    scene = with_tenants("sjf", a=TenantRule(gpus_max=3))
    submit(scene, "a0", tenant="a", gpus=2)
    submit(scene, "a1", tenant="a", gpus=2)
    submit(scene, "a2", tenant="a")
    assert (running(scene), scene.code("a1")) == (["a0", "a2"], "QUOTA")


def test_free_gpus_are_dealt_by_weight() -> None:
    scene = Play("fifo", nodes=0)
    for tenant in ("a", "b"):
        for number in range(8):
            submit(scene, f"{tenant}{number}", tenant=tenant)
    rules = TenantRules(rules={"a": TenantRule(weight=1), "b": TenantRule(weight=3)})
    scene.tell(queue_events.TenantsChosen, rules=rules)
    scene.tell(events.NodeJoined, node=node("n0", 8))
    assert [sum(name.startswith(tenant) for name in running(scene)) for tenant in "ab"] == [2, 6]


def test_what_one_tenant_does_not_want_another_one_gets() -> None:
    scene = with_tenants(gpus=4, a=TenantRule(weight=100))
    submit(scene, "a0", tenant="a")
    for number in range(4):
        submit(scene, f"b{number}", tenant="b")
    assert len(running(scene)) == 4


def test_the_tenant_that_has_had_least_comes_first() -> None:
    scene = with_tenants(gpus=1)
    for number in range(3):
        submit(scene, f"a{number}", tenant="a")
    submit(scene, "b0", tenant="b")
    scene.now_ms += HOUR_MS
    finish(scene, "a0")
    assert (running(scene), scene.code("a1")) == (["b0"], "NO_FREE_GPU")


def test_gpu_time_fades_by_half_in_a_half_life() -> None:
    use = TenantUse()
    use.choose(TenantRules(half_life_ms=HOUR_MS), {}, 0)
    use.change("a", 2, 0)
    use.change("a", -2, 60_000)
    had = use.used_gpu_ms("a", 60_000)
    assert had == pytest.approx(120_000, rel=0.01)
    assert use.used_gpu_ms("a", 60_000 + HOUR_MS) == pytest.approx(had / 2)


def test_inventing_tenants_fills_no_memory_and_forgets_nobody_that_has_had_much() -> None:
    use = TenantUse()
    use.choose(TenantRules(), {}, 0)
    for number in range(USED_TENANTS_MAX + 50):
        held_ms = 10_000 if number == 0 else 1
        use.change(f"t{number}", 1, number * 10_000)
        use.change(f"t{number}", -1, number * 10_000 + held_ms)
    assert len(use.stored()) == USED_TENANTS_MAX
    assert "t0" in use.stored()


def test_rules_and_what_tenants_have_had_survive_a_restart() -> None:
    scene = with_tenants(gpus=1, a=TenantRule(gpus_max=1))
    for name in ("a0", "b0", "b1"):
        submit(scene, name, tenant=name[0])
    scene.now_ms += HOUR_MS
    snapshot = json.loads(json.dumps(scene.engine.snapshot()))
    again = SchedulerEngine.restore(snapshot, make_policy=make_policy)
    assert again.state.tenants.rules == scene.engine.state.tenants.rules
    for tenant in "ab":
        assert again.state.tenants.held_gpus(tenant) == scene.engine.state.tenants.held_gpus(tenant)
        had = scene.engine.state.tenants.used_gpu_ms(tenant, scene.now_ms)
        assert again.state.tenants.used_gpu_ms(tenant, scene.now_ms) == had
    assert again.state.waiting.lanes.keys() == scene.engine.state.waiting.lanes.keys()


def test_without_rules_the_tenants_of_jobs_mean_nothing() -> None:
    scene = with_tenants(gpus=1, a=TenantRule(gpus_max=1))
    submit(scene, "a0", tenant="a")
    submit(scene, "b0", tenant="b")
    scene.tell(queue_events.TenantsChosen, rules=None)
    assert len(scene.engine.state.waiting.lanes) == 1
    submit(scene, "a1", tenant="a")
    finish(scene, "a0")
    assert running(scene) == ["b0"]


def test_a_policy_that_stops_jobs_leaves_those_of_other_tenants_alone() -> None:
    scene = with_tenants("srtf", gpus=1)
    scene.submit("long", tenant="a", steps_total=1_000_000, share=Share.NEVER, graph="g" * 64)
    _predict(scene, "long")
    scene.report(events.JobStarted, "long")
    scene.submit("short", tenant="b", share=Share.NEVER, graph="g" * 64)
    orders = _predict(scene, "short")
    assert not [order for order in orders if isinstance(order, commands.StopJob)]
    assert scene.code("short") == "NO_FREE_GPU"


@for_each(
    ("text", "finding"),
    [
        ("tenants = 3", "tables"),
        ("[tenants.a]\nweight = 0", "weight must be a number from 0.001"),
        ("[tenants.a]\nweight = nan", "weight must be"),
        ("[tenants.a]\ngpus = 1.5", "whole"),
        ("[tenants.a]\ngpus = true", "gpus must be"),
        ("[tenants.a]\ngpu = 1", "unknown key 'gpu'"),
        ('[tenants."two words"]\ngpus = 1', "no name that a tenant can have"),
        ("half_life = 3", "unknown key 'half_life'"),
        ("half_life_hours = -1", "half_life_hours must be"),
        ('[tenants.a]\nusers = "ann"', "users must be a list of names"),
        ('[tenants.a]\nusers = ["ann bob"]', "users must be a list of names"),
        ('[tenants.a]\nusers = ["ann", "bob", "ann"]', "'ann' is named twice"),
        ('[tenants.default]\nusers = ["ann"]', "every user that no tenant names"),
        ("[tenants", "not TOML"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(text: str, finding: str) -> None:
    with pytest.raises(TenantRulesError, match=finding):
        parse_tenants(text)


def test_a_users_jobs_are_the_first_tenants_that_names_them_else_those_of_a_tenant_of_their_own() -> None:
    rules = parse_tenants('[tenants.vision]\nusers = ["ann", "bob"]\n[tenants.speech]\nusers = ["bob"]\n[tenants.cy]')
    assert [rules.tenants_of(name) for name in ("ann", "cy", "dan")] == [["vision"], ["cy"], ["dan"]]
    assert rules.tenants_of("bob") == ["vision", "speech"]
    assert rules.tenants_of("speech") == [], "a user with a tenant's name is not of it"
    assert decode(TenantRules, encode(TenantRules, rules)) == rules


def test_a_quota_of_none_starts_nothing_and_says_so_and_what_runs_goes_on() -> None:
    scene = with_tenants(a=TenantRule(gpus_max=2))
    for number in range(3):
        submit(scene, f"a{number}", tenant="a")
    scene.tell(queue_events.TenantsChosen, rules=parse_tenants("[tenants.a]\ngpus = 0"))
    finish(scene, "a0")
    submit(scene, "b", tenant="b")
    assert (running(scene), scene.code("a2")) == (["a1", "b"], "TENANT_CLOSED")
    reason = scene.engine.state.decisions["a2"].reason
    assert "--tenants" in describe_remedy(reason, scene.engine.state.jobs["a2"].request)


def test_a_job_that_its_tenant_may_never_start_does_not_read_that_it_waits_for_the_end_of_another() -> None:
    scene = with_tenants(a=TenantRule(gpus_max=2))
    submit(scene, "wide", tenant="a", gpus=3)
    assert (scene.code("wide"), running(scene)) == ("QUOTA_TOO_SMALL", [])
    for number in range(3):
        submit(scene, f"a{number}", tenant="a")
    codes = [scene.code(job_id) for job_id in ("wide", "a2")]
    assert (running(scene), codes) == (["a0", "a1"], ["QUOTA_TOO_SMALL", "QUOTA"])
    reason = explained(scene.engine, "wide").reason
    assert reason.numbers == {"gpus_max": 2}
    assert "--gpus" in describe_remedy(reason, scene.engine.state.jobs["wide"].request)


def test_rules_are_read_from_toml() -> None:
    rules = parse_tenants("half_life_hours = 2\n[tenants.a]\ngpus = 4\nweight = 3\n[tenants.default]\npriority_max = 0")
    assert rules.of("a") == TenantRule(gpus_max=4, weight=3.0)
    assert rules.of("b") == TenantRule(priority_max=0)
    assert rules.half_life_ms == 2 * HOUR_MS

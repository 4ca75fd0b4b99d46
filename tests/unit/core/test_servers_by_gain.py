"""Optimus chooses the numbers of workers and parameter servers of jobs of a running cluster, by what was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_service.core import commands, events, fit_events
from scheduler_service.core.decisions import Start, unfolded
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicyError
from scheduler_service.core.jobs.replica_terms import ReplicaTerms
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.predictions.task_speeds import TaskSpeedFit, needs_task_fit, task_step_ms_of, tasks_to_fit
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import Phase, Share, TaskDemand
from scheduler_service.policies.optimus import Optimus
from scheduler_service.policy_registry import make_policy
from tests.support.engine_play import Play
from tests.support.scheduling import DEVICE, job, node, pending, prediction, running, store, view

FIRST_OF_ITS_KIND = {"key": "command-1", "graph": "", "global_batch_size": 8, "share": Share.NEVER}


def submit(play: Play, name: str = "a", *, servers: tuple[int, ...] = (1, 2, 3), **changes: Any) -> None:
    terms = ReplicaTerms(servers=servers[0], allowed_servers=servers)
    demand = TaskDemand(cpu_cores=1.0)
    fields = {"cpu_cores": float(servers[0]), "server_demand": demand, "replicas": terms, "steps_total": 10**9}
    play.submit(name, **{**FIRST_OF_ITS_KIND, "gpus": 1, "allowed_gpus": (1,), **fields, **changes})


def numbers_of(play: Play, name: str) -> tuple[int, int]:
    job = play.engine.state.jobs[name]
    return len(job.assignments), job.request.replicas.servers


def run(play: Play, step_ms: dict[tuple[int, int], int], name: str = "a", windows: int = 2) -> tuple[int, int]:
    """Report windows of the present attempt at the speed of its numbers; stop it where it is told to; return them."""
    play.report(events.JobStarted, name)
    held = numbers_of(play, name)
    for _ in range(windows):
        done = play.engine.state.jobs[name].steps_done + 10
        window = {"steps_done": done, "checkpoint_step": done, "window_steps": 10, "window_ms": 10 * step_ms[held]}
        found = play.report(events.JobProgressed, name, after_ms=10 * step_ms[held] + 100, **window)
        if any(isinstance(one, commands.StopJob) for one in found):
            play.report(events.JobStopped, name, exit_class="checkpointed", exit_code=85)
            break
    return held


def rounds(play: Play, step_ms: dict[tuple[int, int], int], count: int) -> list[tuple[int, int]]:
    return [run(play, step_ms) for _ in range(count)]


def optimus(*, gpus: int = 4, **parameters: Any) -> Play:
    return Play("optimus", gpus=gpus, parameters=parameters)


def test_a_range_of_servers_is_measured_and_then_the_fastest_number_is_kept() -> None:
    play = optimus()
    submit(play)
    taken = {(1, 1): 900, (1, 2): 400, (1, 3): 700}
    assert rounds(play, taken, 4) == [(1, 1), (1, 3), (1, 2), (1, 2)]
    job = play.engine.state.jobs["a"]
    assert (job.phase, job.attempt, job.request.cpu_cores) == (Phase.RUNNING, 3, 2.0)


def test_once_all_were_measured_the_job_goes_back_to_the_number_that_was_fastest() -> None:
    play = optimus()
    submit(play)
    assert rounds(play, {(1, 1): 400, (1, 2): 900, (1, 3): 700}, 5) == [(1, 1), (1, 3), (1, 2), (1, 1), (1, 1)]
    reasons = [line.message for line in play.engine.state.jobs["a"].history if line.kind == "move"]
    assert [one.split(": ")[1] for one in reasons] == ["TRIES_SERVERS", "TRIES_SERVERS", "RESHAPED_BY_GAIN"]


def test_without_exploration_nothing_is_gained_by_servers_that_never_ran() -> None:
    play = optimus(explored_servers=0)
    submit(play)
    assert rounds(play, {(1, 1): 400}, 3) == [(1, 1)] * 3


def test_the_next_job_of_the_kind_starts_with_what_the_first_one_learned() -> None:
    play = optimus()
    submit(play)
    rounds(play, {(1, 1): 900, (1, 2): 400, (1, 3): 700}, 4)
    submit(play, "b")
    assert numbers_of(play, "b") == (1, 2)
    reason = play.engine.state.jobs["b"].reason
    assert reason is not None
    assert reason.numbers["servers_count"] == 2


def test_what_jobs_measure_with_servers_says_nothing_of_jobs_without() -> None:
    play = optimus()
    submit(play)
    rounds(play, {(1, 1): 900, (1, 2): 400, (1, 3): 700}, 4)
    speeds = play.engine.state.predictions.speeds
    assert speeds.sound_step_ms("command-1", DEVICE) == {}
    assert speeds.sound_task_step_ms("command-1", DEVICE) == {(1, 1): 900.0, (1, 2): 400.0, (1, 3): 700.0}


def question_of(play: Play, taken: dict[tuple[int, int], int], count: int) -> list[commands.RequestTaskSpeedFit]:
    found: list[commands.Command] = []
    handle = play.engine.handle

    def kept(event: events.Event) -> list[commands.Command]:
        answer = handle(event)
        found.extend(answer)
        return answer

    play.engine.handle = kept  # type: ignore[method-assign]
    rounds(play, taken, count)
    return [one for one in found if isinstance(one, commands.RequestTaskSpeedFit)]


def test_three_measured_numbers_ask_for_equation_4_which_tells_the_others() -> None:
    play = optimus()
    submit(play, servers=(1, 2, 3, 4, 5, 6))
    taken = {(1, 1): 1_000, (1, 6): 600, (1, 3): 500, (1, 4): 300, (1, 2): 700}
    [question] = question_of(play, taken, 3)
    assert question.samples == ((1, 1, 1_000.0), (1, 4, 300.0), (1, 6, 600.0))
    assert question.asked == tuple((1, servers) for servers in range(1, 7))
    curve = {(1, servers): float(1_000 - 100 * servers) for servers in range(1, 7)}
    play.tell(fit_events.TaskSpeedFitted, key="command-1", device=DEVICE, step_ms=curve)
    found = play.engine.state.predictions.job("command-1", DEVICE)
    assert found is not None
    assert (found.task_step_ms[1, 2], found.task_step_ms[1, 4]) == (800.0, 300.0)
    restored = SchedulerEngine.restore(json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy)
    assert restored.state.predictions.job("command-1", DEVICE) == found


@pytest.mark.parametrize("wrong_ms", [0.0, -1.0, 1e-9, 1e308, float("nan")])
def test_a_curve_over_servers_that_cannot_be_is_not_used_and_a_crash_asks_again(wrong_ms: float) -> None:
    play = optimus()
    submit(play, servers=(1, 2, 3, 4))
    taken = {(1, 1): 1_000, (1, 4): 600, (1, 3): 500, (1, 2): 700}
    assert question_of(play, taken, 3)
    restored = SchedulerEngine.restore(json.loads(json.dumps(play.engine.snapshot())), make_policy=make_policy)
    assert [one for one in restored.reissue() if isinstance(one, commands.RequestTaskSpeedFit)]
    play.tell(fit_events.TaskSpeedFitted, key="command-1", device=DEVICE, step_ms={(1, 2): wrong_ms})
    found = play.engine.state.predictions.job("command-1", DEVICE)
    assert found is not None
    assert (1, 2) not in found.task_step_ms


def test_a_curve_is_asked_about_workers_only_where_two_numbers_of_them_ran() -> None:
    measured = {(1, 1): 3.0, (1, 2): 2.0, (1, 3): 1.0}
    assert tasks_to_fit(measured, (1, 2), (1, 2, 3, 4)) == ((1, 1), (1, 2), (1, 3), (1, 4))
    both = {**measured, (2, 1): 1.0}
    assert (4, 4) in tasks_to_fit(both, (1, 2, 4), (1, 2, 3, 4))
    assert tasks_to_fit({(1, 1): 1.0, (1, 2): 1.0}, (1, 2), (1, 2)) == ()
    fit = TaskSpeedFit(
        samples=((1, 1, 3.0),), asked=tuple(tasks_to_fit(measured, (1,), (1, 2, 3, 4))), global_batch_size=1
    )
    assert needs_task_fit(None, measured, fit.asked)
    assert not needs_task_fit(fit, {(1, 1): 3.05}, fit.asked)
    assert needs_task_fit(fit, {(1, 1): 3.5}, fit.asked)


def test_numbers_that_never_ran_follow_what_was_foreseen_of_workers_and_nothing_of_servers() -> None:
    known = prediction("k", step_ms={(1, 8): 100.0, (2, 4): 60.0}, task_step_ms={(1, 1): 200.0, (1, 3): 150.0})
    assert task_step_ms_of(known, (1, 2)) == 200.0
    assert task_step_ms_of(known, (2, 3)) == pytest.approx(90.0)
    assert task_step_ms_of(known, (4, 1)) is None
    assert task_step_ms_of(prediction("k"), (1, 1)) is None


TASKS = {(1, 1): 900.0, (1, 2): 400.0, (1, 3): 300.0, (2, 1): 800.0, (2, 2): 200.0, (2, 3): 190.0}


def served(name: str, servers: int = 1) -> Any:
    terms = ReplicaTerms(servers=servers, allowed_servers=(1, 2, 3))
    return job(
        name, key="k", gpus=1, allowed_gpus=(1, 2), global_batch_size=8, steps_total=1_000, share=Share.NEVER,
        cpu_cores=1.0 + 2.0 * servers, server_demand=TaskDemand(cpu_cores=2.0), replicas=terms,
    )  # fmt: skip


@pytest.mark.parametrize(("cores", "expected"), [(64.0, (2, 3)), (6.0, (2, 2)), (5.0, (1, 2)), (3.0, (1, 1))])
def test_workers_and_servers_are_chosen_by_gain_and_get_room_on_the_host(
    cores: float, expected: tuple[int, int]
) -> None:
    known = store([prediction("k", task_step_ms=TASKS, measured_tasks=tuple(TASKS))])
    now = view(nodes=[node("n0", 4, cpu_cores=cores)], waiting=[pending(served("a"))], predictions=known)
    [start] = list(unfolded(Optimus().decide(now)))
    assert isinstance(start, Start)
    assert (len(start.assignments), start.servers, start.reason.numbers["servers_count"]) == (*expected, expected[1])
    assert check_plan(now, {"a": now.pending[0]}, [start]).rejections == ()


def test_a_host_that_is_narrower_than_the_cluster_gets_fewer_servers() -> None:
    """Eight cores in all would do for three servers, and no host has them."""
    known = store([prediction("k", task_step_ms=TASKS, measured_tasks=tuple(TASKS))])
    nodes = [node("n0", 1, cpu_cores=5.0), node("n1", 1, cpu_cores=5.0)]
    now = view(nodes=nodes, waiting=[pending(served("a"))], predictions=known, nodes_per_job_max=1)
    [start] = list(unfolded(Optimus().decide(now)))
    assert isinstance(start, Start)
    assert (len(start.assignments), start.servers) == (1, 2)


def test_a_running_job_gets_more_servers_once_per_interval_as_far_as_its_host_has_room() -> None:
    known = store([prediction("k", task_step_ms=TASKS, measured_tasks=tuple(TASKS))])

    def decided(since_ms: int) -> Any:
        held = running(served("a"), ["n0.0", "n0.1"], micro_batch_size=4, started_at_ms=10**9 - since_ms)
        now = view(now_ms=10**9, nodes=[node("n0", 2, cpu_cores=6.0)], holding=[held], predictions=known)
        found = list(unfolded(Optimus().decide(now)))
        assert check_plan(now, {}, found).rejections == ()
        return found

    assert decided(1_000) == []
    [grown] = decided(1_200_000)
    assert (grown.servers, grown.reason.code) == (2, "RESHAPED_BY_GAIN")
    assert "2 parameter servers instead of 2 and 1" in describe_reason(grown.reason)


def test_a_job_of_a_snapshot_is_told_its_number_of_servers_and_none_is_ordered() -> None:
    known = store([prediction("k", task_step_ms=TASKS)])
    request = job("a", key="k", steps_total=10, server_demand=TaskDemand(cpu_cores=1.0))
    now = view(nodes=[node("n0", 1)], waiting=[pending(request)], predictions=known)
    [start] = list(unfolded(Optimus().decide(now)))
    assert isinstance(start, Start)
    assert (start.servers, start.reason.numbers["servers_count"]) == (None, 3)


@pytest.mark.parametrize("value", [-1, 9])
def test_a_number_of_explored_servers_without_a_meaning_is_refused(value: int) -> None:
    with pytest.raises(PolicyError, match="explored_servers"):
        make_policy("optimus", {"explored_servers": value})

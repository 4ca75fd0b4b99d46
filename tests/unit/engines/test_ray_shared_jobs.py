"""What a driver does with its jobs on Ray: waits, starts each once, hands results on, ends what it is told to end."""

from __future__ import annotations

import math

import pytest

import cotenant.ray
from cotenant.engines.ray.adapter import RayEngine
from cotenant.engines.ray.connection import import_ray
from cotenant.engines.ray.job_records import PROGRESS, ProgressRecord, decode, encode
from cotenant.errors import InputError
from cotenant.ray.attempts import Outcome, Work
from cotenant.ray.progress import Reporter
from cotenant.ray.shared_jobs import JobStoppedError
from cotenant.ray.submission import function_of, job_id_of, tag_of
from cotenant.ray.trials import reports_of
from tests.support.fake_ray import DEVICES, TAG, FakeRay, place, running


def test_a_job_waits_until_it_is_released_and_says_why() -> None:
    ray = FakeRay()
    job = ray.submit("1", TAG)
    RayEngine(ray, DEVICES).annotate("1", "cotenant: waits for memory")
    ray.pass_time()
    with pytest.raises(TimeoutError, match="waits for memory"):
        job.actor(0)
    with pytest.raises(TimeoutError):
        job.result(0)
    assert not ray.attempts


def test_what_a_task_returns_is_its_result_and_everything_about_it_is_forgotten() -> None:
    ray = FakeRay()
    job = running(ray)
    ray.finish("1", 42)
    ray.pass_time()
    assert not job.has_ended
    ray.pass_time()
    assert job.result(0) == 42
    assert ray.values == {}


def test_what_a_task_raises_is_raised_again() -> None:
    ray = FakeRay()
    job = running(ray)
    ray.attempts["1"].ended = Outcome(error=ZeroDivisionError("by zero"))
    ray.pass_time()
    ray.pass_time()
    with pytest.raises(ZeroDivisionError):
        job.result(0)


def test_a_process_that_dies_ends_its_job_with_an_error() -> None:
    ray = FakeRay()
    job = running(ray)
    ray.attempts.clear()
    ray.pass_time()
    with pytest.raises(JobStoppedError, match="has ended before its task"):
        job.result(0)
    assert ray.values == {}


def test_a_gpu_counts_as_held_until_the_process_has_ended() -> None:
    ray = FakeRay()
    running(ray)
    attempt = ray.attempts["1"]
    attempt.end = lambda: None  # type: ignore[method-assign]
    ray.finish("1")
    ray.pass_time()
    ray.pass_time()
    assert RayEngine(ray, DEVICES).read().jobs[0].held_slots == {"n1/g0": 25}


def test_a_stopped_job_has_its_grace_and_is_killed_after_it() -> None:
    ray = FakeRay()
    job = running(ray)
    attempt = ray.attempts["1"]
    RayEngine(ray, DEVICES).stop("1", grace_s=10)
    ray.pass_time()
    ray.pass_time(9)
    assert attempt.orders == []
    ray.pass_time(1)
    assert attempt.orders == ["kill"]
    ray.pass_time()
    with pytest.raises(JobStoppedError, match="by an operator"):
        job.result(0)


def test_a_stopped_job_that_returns_in_time_keeps_its_result() -> None:
    ray = FakeRay()
    job = running(ray)
    RayEngine(ray, DEVICES).stop("1", grace_s=10)
    ray.pass_time()
    ray.finish("1", "checkpoint")
    ray.pass_time()
    ray.pass_time()
    assert job.result(0) == "checkpoint"


def test_a_job_that_is_queued_again_waits_and_runs_once_more_elsewhere() -> None:
    ray = FakeRay()
    job = running(ray)
    RayEngine(ray, DEVICES).requeue("1", grace_s=1)
    ray.write(PROGRESS + "1", encode(ProgressRecord(steps=5, at_ms=1)))
    for _ in range(4):
        ray.pass_time()
    assert not job.has_ended
    with pytest.raises(TimeoutError):
        job.actor(0)
    assert job.progress.steps == 0
    place(ray, gpu_id="n2/g1")
    assert ray.started == {"1": 2}
    ray.finish("1", "second")
    ray.pass_time()
    ray.pass_time()
    assert job.result(0) == "second"


@pytest.mark.parametrize("by_operator", [True, False])
def test_a_job_that_waits_is_taken_off_the_queue(by_operator: bool) -> None:
    ray = FakeRay()
    job = ray.submit("1", TAG)
    if by_operator:
        RayEngine(ray, DEVICES).stop("1", grace_s=1)
    else:
        job.end()
    ray.pass_time()
    with pytest.raises(JobStoppedError):
        job.actor(0)
    assert ray.values == {}


def test_an_actor_runs_until_its_owner_ends_it() -> None:
    ray = FakeRay()
    job = ray.watch.add("1", TAG, Work(target=dict, is_task=False), now_ms=1)
    place(ray)
    assert job.actor(0) is ray.attempts["1"].handle
    for _ in range(9):
        ray.pass_time()
    assert "1" in ray.attempts
    job.end()
    ray.pass_time()
    ray.pass_time()
    assert job.result(0) is None


def test_a_job_that_cannot_be_started_says_so_and_gives_its_gpu_back() -> None:
    ray = FakeRay()
    job = ray.watch.add("1", TAG, Work(target=None, is_task=True), now_ms=1)  # type: ignore[arg-type]
    place(ray)
    with pytest.raises(TypeError, match="nothing to run"):
        job.result(0)
    assert RayEngine(ray, DEVICES).read().jobs == ()


def test_reports_keep_the_newest_numbers_and_leave_out_what_is_none() -> None:
    ray, reporter = FakeRay(), Reporter(job_id="1")
    reporter.note(3, {"loss": 0.5}, 1_000)
    reporter.note(7, {"loss": math.nan, "accuracy": 0.25}, 2_000)
    reporter.exchange(ray)
    assert decode(ProgressRecord, ray.read(PROGRESS + "1")) == ProgressRecord(
        steps=7, at_ms=2_000, metrics={"accuracy": 0.25}
    )
    reporter.note(-5, {f"m{number}": 1.0 for number in range(1_000)}, 3_000)
    assert (reporter.latest.steps, len(reporter.latest.metrics)) == (0, 50)
    with pytest.raises(ValueError, match="could not convert"):
        reporter.note(8, {"loss": "low"}, 4_000)  # type: ignore[dict-item]


def test_a_job_that_has_not_reported_yet_says_nothing() -> None:
    ray = FakeRay()
    Reporter(job_id="1").exchange(ray)
    assert ray.values == {}


def test_a_job_learns_that_it_is_to_end() -> None:
    ray = FakeRay()
    running(ray)
    reporter = Reporter(job_id="1")
    found = []
    for _ in range(2):
        reporter.exchange(ray)
        found.append(reporter.ending)
        RayEngine(ray, DEVICES).stop("1", grace_s=10)
    assert found == ["", "stop"]


def test_outside_of_a_job_reports_do_nothing() -> None:
    cotenant.ray.report(1, loss=0.5)
    assert not cotenant.ray.should_stop()


def test_a_trial_passes_reports_on_once_each_and_the_result_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    job = running(ray)
    story = iter([(1, 10), (1, 10), (2, 20)])

    def wait(_: int) -> None:
        if told := next(story, None):
            ray.write(PROGRESS + "1", encode(ProgressRecord(steps=told[0], at_ms=told[1], metrics={"loss": 0.5})))
        else:
            if "1" in ray.attempts:
                ray.finish("1", {"accuracy": 0.9})
            ray.pass_time()

    monkeypatch.setattr("cotenant.ray.trials.system_clock.wait_ms", wait)
    assert list(reports_of(job)) == [{"loss": 0.5, "step": 1}, {"loss": 0.5, "step": 2}, {"accuracy": 0.9}]


@pytest.mark.parametrize("wishes", ["memory=lots", "memroy=8GiB", "utilization=7", "memory=1GiB " * 200])
def test_wrong_wishes_are_refused_at_once(wishes: str) -> None:
    with pytest.raises(InputError, match="wishes"):
        tag_of(wishes)


def test_jobs_are_named_after_what_they_run_and_never_alike() -> None:
    assert tag_of("") == "cotenant"
    names = {job_id_of(lambda: None) for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("lambda-") for name in names)
    assert len(job_id_of(type("X" * 500, (), {}))) < 63


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InputError) as raised:
        import_ray()
    assert "cotenant[ray]" in raised.value.remedy
    with pytest.raises(InputError):
        cotenant.ray.submit("memory=1GiB", print)


def test_a_function_is_no_actor_and_is_refused_at_once_with_the_call_that_takes_it() -> None:
    with pytest.raises(InputError, match="is a function, no class"):
        cotenant.ray.start("memory=1GiB", print)


def test_a_class_is_no_task_and_what_ray_made_of_a_function_is_that_function() -> None:
    class Remote:
        _function = print
        remote = options = None

    assert function_of(Remote()) is print  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is a function, no class"):
        cotenant.ray.start("memory=1GiB", Remote())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dict is a class, no function"):
        cotenant.ray.submit("memory=1GiB", dict)

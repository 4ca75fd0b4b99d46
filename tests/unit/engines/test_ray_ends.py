"""How jobs of a driver on Ray end, are given up, or do not begin: no user waits for ever, and no GPU is kept."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from cotenant.engines.errors import EngineUnreachableError
from cotenant.ray.attempts import Work
from cotenant.ray.shared_jobs import JobStoppedError
from cotenant.ray.submission import advance_for_ever
from tests.support.fake_ray import TAG, FakeRay, place, running


def test_a_process_that_does_not_end_by_itself_is_killed_and_its_gpu_given_back() -> None:
    ray = FakeRay()
    job = running(ray)
    attempt = ray.attempts["1"]
    attempt.end = lambda: None  # type: ignore[method-assign]
    ray.finish("1", 42)
    ray.pass_time()
    ray.pass_time(29)
    assert not job.has_ended
    ray.pass_time(1)
    ray.pass_time()
    assert attempt.orders == ["kill"]
    assert job.result(0) == 42
    assert ray.values == {}


def test_the_jobs_of_a_process_that_has_left_the_cluster_are_not_waited_for_any_longer() -> None:
    ray = FakeRay()
    jobs = [running(ray), ray.submit("2", TAG)]
    before = dict(ray.values)
    advance_for_ever(ray.watch, lambda: contextlib.nullcontext(False))
    for job in jobs:
        with pytest.raises(JobStoppedError, match="left the Ray cluster"):
            job.result(0)
    assert ray.values == before, "it may be connected to another cluster by now"


def test_an_actor_ends_behind_what_it_was_asked_to_do_unless_it_is_given_a_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray = FakeRay()
    job = ray.watch.add("1", TAG, Work(target=dict, is_task=False), now_ms=1)
    place(ray)
    attempt = ray.attempts["1"]
    attempt.end = lambda: attempt.orders.append("end")  # type: ignore[method-assign]
    job.end()
    with caplog.at_level(logging.WARNING, "cotenant.ray"):
        for _ in range(9):
            ray.pass_time(60)
    assert attempt.orders == ["end"]
    [said] = caplog.messages
    assert "end(grace_s=...) kills it" in said
    job.end(grace_s=5)
    ray.pass_time()
    ray.pass_time(4)
    assert attempt.orders == ["end"]
    ray.pass_time(1)
    ray.pass_time()
    assert attempt.orders == ["end", "kill"]
    assert job.result(0) is None


def test_no_look_at_jobs_goes_on_behind_the_end_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends a process that asks it anything then."""
    asked: list[bool] = []
    is_held = False

    class WatchedRay(FakeRay):
        def read(self, key: str) -> bytes | None:
            asked.append(is_held)
            return super().read(key)

    @contextlib.contextmanager
    def held_open() -> Iterator[bool]:
        nonlocal is_held
        is_held = True
        yield len(asked) < 3
        is_held = False

    ray = WatchedRay()
    running(ray)
    asked.clear()
    monkeypatch.setattr("cotenant.ray.submission.system_clock.wait_ms", lambda _: None)
    advance_for_ever(ray.watch, held_open)
    assert asked == [True] * 3


def test_a_program_that_ends_gives_the_gpus_of_its_jobs_back_at_once() -> None:
    ray = FakeRay()
    running(ray)
    ray.submit("2", TAG)
    ray.watch.leave("the program has ended", is_connected=True)
    assert (ray.attempts, ray.values) == ({}, {})


def test_a_program_that_ends_without_its_head_asks_for_one_job_only() -> None:
    class DeadRay(FakeRay):
        asked = 0

        def remove(self, key: str) -> None:
            self.asked += 1
            raise EngineUnreachableError("the head is gone")

    ray = DeadRay()
    jobs = [ray.submit(name, TAG) for name in ("1", "2", "3")]
    ray.watch.leave("the program has ended", is_connected=True)
    assert ray.asked == 1
    assert all(job.has_ended for job in jobs)


def test_a_program_that_ends_while_its_jobs_are_looked_at_leaves_none_behind() -> None:
    class SlowRay(FakeRay):
        def write(self, key: str, value: bytes) -> None:
            if threading.current_thread() is look:
                # It goes on only after the other thread has had time to forget the job.
                is_looking.set()
                has_left.wait(0.5)
            super().write(key, value)

    is_looking, has_left = threading.Event(), threading.Event()
    look = threading.Thread(target=lambda: ray.pass_time(600))
    ray = SlowRay()
    running(ray)
    look.start()
    assert is_looking.wait(60)
    ray.watch.leave("the program has ended", is_connected=True)
    has_left.set()
    look.join()
    assert ray.values == {}


def test_a_user_is_told_once_that_no_bridge_looks_at_a_job(caplog: pytest.LogCaptureFixture) -> None:
    ray = FakeRay()
    ray.submit("1", TAG)
    with caplog.at_level(logging.WARNING, "cotenant.ray"):
        ray.pass_time()
        ray.pass_time(59)
        assert caplog.messages == []
        ray.pass_time(1)
        ray.pass_time(600)
        [said] = caplog.messages
    assert "no bridge has looked at it" in said


def test_a_process_that_ray_does_not_start_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ray = FakeRay()
    ray.submit("1", TAG)
    ray.is_slow = True
    place(ray)
    with caplog.at_level(logging.WARNING, "cotenant.ray"):
        ray.pass_time(59)
        assert caplog.messages == []
        for _ in range(3):
            ray.pass_time(1)
    [said] = caplog.messages
    assert "Ray has not started its process" in said

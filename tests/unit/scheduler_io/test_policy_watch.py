"""What stops a policy that does not answer: it raises among the policy's own lines, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler_service import policy_registry
from scheduler_service.adapters.policy_watch import REPLAY_FACTOR, PolicyWatch, SilenceRecord, ask_again
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.core import engine as engine_module
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicyParameterError, PolicySilentError
from scheduler_service.core.events import Event, PolicyChosen, TimerFired
from scheduler_service.core.planning.policy_answer import answer_of
from scheduler_service.core.planning.silent_policy import note_silence
from scheduler_service.core.policy_events import PolicySilenced
from tests.support.scheduler_process import wait_until

DEADLINE_S = 0.5
VIEW = cast(SchedulingView, None)


class Answering:
    """A policy that does something before it answers."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        self._work()
        return ()


def compute() -> None:
    while True:
        try:
            sum(range(1_000))
        except Exception:
            continue


def generate() -> Iterator[Decision]:
    compute()
    yield from ()


@pytest.fixture
def watch() -> Iterator[PolicyWatch]:
    before = signal.getsignal(signal.SIGUSR2)
    found = PolicyWatch(lambda: "odd", deadline_s=DEADLINE_S, doors=policy_registry.BUILDING)
    with found.running():
        yield found
    assert signal.getsignal(signal.SIGUSR2) is before


@pytest.mark.parametrize(
    "work", [compute, lambda: time.sleep(600), lambda: threading.Event().wait(600), lambda: list(generate())]
)
def test_a_policy_that_computes_or_waits_for_ever_is_stopped(watch: PolicyWatch, work: Callable[[], object]) -> None:
    with pytest.raises(PolicySilentError, match=r"policy odd did not answer in .* is not asked any more"):
        answer_of(Answering(work), VIEW)
    wait_until(lambda: watch.overdue == "", "the next look sees that it is over")


def test_a_policy_that_answers_again_and_again_is_not_late(watch: PolicyWatch) -> None:
    until_s = time.monotonic() + 3 * DEADLINE_S
    while time.monotonic() < until_s:
        assert answer_of(Answering(lambda: time.sleep(0.01)), VIEW) == ()
    assert watch.overdue == ""


def test_a_policy_that_cannot_be_built_in_time_is_stopped_too(watch: PolicyWatch) -> None:
    with pytest.raises(PolicyParameterError, match="policy odd cannot be built: PolicySilentError"):
        policy_registry._built(cast(Any, lambda: compute()), "odd", {})


class Looked:
    """A watch whose looks are a test's, and which signals nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signalled = 0
        self.marks: list[str] = []
        self.watch = PolicyWatch(lambda: "odd", deadline_s=10.0, mark=self.marks.append, doors=policy_registry.BUILDING)
        monkeypatch.setattr(signal, "pthread_kill", lambda *_: self._note())

    def _note(self) -> None:
        self.signalled += 1

    def during(self, *pauses_s: float) -> list[bool]:
        """Whether the policy was late at looks after these pauses, in one call of it."""
        late: list[bool] = []
        answer_of(Answering(lambda: late.extend(self.watch._is_late(pause_s) for pause_s in pauses_s)), VIEW)
        return late


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


def test_only_the_time_between_looks_counts_so_that_a_machine_may_stand_still(looked: Looked) -> None:
    """The first look that sees a call counts nothing: it may have begun just now."""
    assert looked.during(*[1.0] * 12) == [False] * 10 + [True] * 2
    assert looked.signalled == 2
    assert looked.during(*[1.0] * 10) == [False] * 10


def test_a_replay_has_more_time(looked: Looked) -> None:
    looked.watch.is_replaying = True
    assert looked.during(*[10.0] * (REPLAY_FACTOR + 1)) == [False] * REPLAY_FACTOR + [True]


def test_what_cannot_be_stopped_is_named(looked: Looked, caplog: pytest.LogCaptureFixture) -> None:
    looked.during(*[1.0] * 100)
    assert looked.watch.overdue.startswith("policy odd has not answered for 99 s; if that lasts, kill the scheduler")
    assert [record.message for record in caplog.records] == ["policy_not_stopped"]


def test_a_policy_that_catches_what_stops_it_stays_named_and_is_interrupted_again(looked: Looked) -> None:
    watch, raised = looked.watch, list[bool]()

    def catch(pause_s: float) -> None:
        watch._is_late(pause_s)
        try:
            watch._interrupt(0, sys._getframe())
        except PolicySilentError:
            raised.append(True)
        else:
            raised.append(False)

    def work() -> None:
        for pause_s in (*[1.0] * 11, *[0.25] * 8):
            catch(pause_s)
        assert watch.overdue.startswith("policy odd has not answered for 12 s")

    answer_of(Answering(work), VIEW)
    assert raised == [False] * 10 + ([True] + [False] * 3) * 2 + [True]
    answer_of(Answering(lambda: catch(1.0)), VIEW)
    assert watch.overdue == ""


def test_an_event_is_marked_once_and_only_where_the_engine_waits(looked: Looked) -> None:
    looked.during(*[1.0] * 13)
    (words,) = looked.marks
    assert words.startswith("policy odd did not answer in 10 s and is not asked any more")
    building = cast(Any, lambda: [looked.watch._is_late(1.0) for _ in range(13)])
    policy_registry._built(building, "odd", {})
    assert looked.signalled > 3
    assert len(looked.marks) == 1


def test_a_marker_says_upon_which_event_until_the_policy_has_answered(tmp_path: Path) -> None:
    marker = SilenceMarker(tmp_path, "this state")
    marker.begin(17)
    marker.mark("it is late")
    silence = PolicySilenced(at_ms=0, sequence=17, answers=0, words="it is late")
    assert SilenceMarker(tmp_path, "this state").read() == silence
    assert SilenceMarker(tmp_path, "another state").read() is None
    marker.begin(18, [silence])
    assert SilenceMarker(tmp_path, "this state").read() == silence
    marker.begin(18)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_comes_while_the_marker_is_written_takes_it_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = SilenceMarker(tmp_path, "this state")
    marker.begin(17)
    answering = threading.Thread(target=lambda: marker.begin(18))

    def sync(_: int) -> None:
        if answering.ident is None:
            answering.start()
            answering.join(0.3)

    monkeypatch.setattr(os, "fsync", sync)
    marker.mark("it is late")
    answering.join()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"state_id": "s"}', '{"state_id": "s", "silence": {"kind": "X"}}']
)
def test_a_marker_that_is_none_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "silent_policy.json").write_text(content)
    assert SilenceMarker(tmp_path, "s").read() is None


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_answer_that_came_after_all_takes_the_marker_back_before_anything_follows(
    tmp_path: Path, is_silent: bool
) -> None:
    engine = SchedulerEngine(make_policy=policy_registry.make_policy, policy="fifo")
    marker, noted = SilenceMarker(tmp_path, "this state"), list[Event]()
    record = SilenceRecord(engine, lambda: 4, noted.append, marker)
    record.begin()
    marker.mark("it is late")
    found = marker.read()
    assert found is not None
    assert found.sequence == 5
    if is_silent:
        note_silence(engine.state, engine.policy, "it was late")
    record.event_handled(TimerFired(at_ms=1), (), duration_ns=0)
    assert (marker.read() is not None) is is_silent
    assert [type(event) for event in noted] == [PolicySilenced] * is_silent


@pytest.mark.parametrize(
    ("own", "silence", "chosen"), [({"fifo"}, "it was slow", 3), ({"fifo"}, "", 0), ({"sjf"}, "it may hang", 0)]
)
def test_only_a_policy_of_this_package_that_was_given_up_is_asked_again_by_itself(
    own: set[str], silence: str, chosen: int
) -> None:
    parameters = {"overtaking": True}
    engine = SchedulerEngine(make_policy=policy_registry.make_policy, policy="fifo", parameters=parameters)
    told: list[Event] = []

    async def tell(event: Event) -> None:
        told.append(event)
        engine.handle(event)
        assert not engine.state.silence
        note_silence(engine.state, engine.policy, silence)
        if len(told) == chosen:
            raise asyncio.CancelledError

    note_silence(engine.state, engine.policy, silence)
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(ask_again(engine, tell, own, pause_s=0.0), timeout=0.2 if not chosen else 60))
    assert [(type(event), event.policy, event.parameters) for event in cast(list[Any], told)] == [
        (PolicyChosen, "fifo", parameters)
    ] * chosen


@pytest.mark.parametrize(
    ("files", "is_raised"),
    [
        (["theirs.py"], True),
        ([], True),
        ([str(Path(engine_module.__file__).parent / "cluster_view" / "cluster_index.py")], False),
        (["theirs.py", str(Path(engine_module.__file__).parent / "queue" / "turns.py"), "theirs.py"], False),
    ],
)
def test_nothing_is_raised_where_the_engines_own_lines_run(
    looked: Looked, files: Sequence[str], is_raised: bool
) -> None:
    watch = looked.watch
    frame = watch._call = cast(Any, SimpleNamespace(f_code=answer_of.__code__, f_back=None))
    watch.overdue = "it is late"
    for file in files:
        frame = SimpleNamespace(f_code=compile("", file, "exec"), f_back=frame)
    raised = False
    try:
        watch._interrupt(0, frame)
    except PolicySilentError:
        raised = True
    assert raised is is_raised


def test_a_signal_that_comes_after_the_answer_raises_nothing(looked: Looked) -> None:
    watch = looked.watch
    watch.overdue = "it is late"
    watch._call = cast(Any, SimpleNamespace(f_code=answer_of.__code__, f_back=None))
    watch._interrupt(0, cast(Any, SimpleNamespace(f_code=answer_of.__code__, f_back=None)))
    watch._interrupt(0, None)

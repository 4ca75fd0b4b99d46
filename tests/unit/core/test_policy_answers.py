"""A policy of somebody else may answer anything: it is an error of the policy, and the cluster goes on."""

from __future__ import annotations

import linecache
import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import pytest

from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.decisions import Hold, HoldMany, Start
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.event_handling.next_looks import heeds_some_report
from scheduler_service.core.planning.explanation import Explanation
from scheduler_service.core.planning.policy_parameters import require_interval
from scheduler_service.core.records import Assignment, Phase, Reason
from scheduler_service.policies.fifo import Fifo
from tests.support.engine_invariants import check
from tests.support.scheduling import job, node

FULL: Any = Reason(code="CLUSTER_FULL")
WORDS: Any = "because"
GPUS = (Assignment(gpu_id="g0", rank=0),)
NONSENSE: list[tuple[Any, str]] = [
    (None, "object is not iterable"),
    (7, "object is not iterable"),
    ([42], "decide(view) returned 42, which is no decision"),
    (["j0"], "decide(view) returned 'j0', which is no decision"),
    ([Hold(job_id="j0", reason=WORDS)], "the reason of job j0 is 'because', not a Reason"),
    ([Hold(job_id=["j0"], reason=FULL)], "is about job ['j0'], not about a job's id"),  # type: ignore[arg-type]
    ([HoldMany(job_ids=WORDS, reason=FULL)], "the jobs of a hold are 'because', not a tuple"),
    ([Start(job_id="j0", reason=FULL, assignments=(WORDS,), micro_batch_size=1)], "('because',), not assignments"),
    ([Start(job_id="j0", reason=FULL, assignments=None, micro_batch_size=1)], "not iterable"),  # type: ignore[arg-type]
    ([Start(job_id="j0", reason=FULL, assignments=GPUS, micro_batch_size=WORDS)], "passes ('because', 1), not"),
]


@dataclass
class Odd:
    """A policy that answers what it was given."""

    answer: Any

    def decide(self, view: SchedulingView) -> Any:
        return self.answer


@pytest.mark.parametrize(("answer", "complaint"), NONSENSE, ids=[complaint for _, complaint in NONSENSE])
def test_an_answer_that_is_no_list_of_decisions_is_an_error_of_the_policy(answer: Any, complaint: str) -> None:
    engine = SchedulerEngine(make_policy=lambda name, parameters: Odd(answer), policy="odd")
    engine.handle(events.NodeJoined(at_ms=0, node=node()))
    engine.handle(events.JobSubmitted(at_ms=1, request=job("j0")))
    check(engine.state)
    assert engine.state.decisions["j0"].reason.code == "POLICY_FAILED"
    assert complaint in engine.state.rejected[-1].detail


class Leaving:
    """A policy of which a library calls sys.exit()."""

    def decide(self, view: SchedulingView) -> Any:
        raise SystemExit(0)


class Halting(Fifo):
    """Decides well, and fails where it is asked when to be asked again."""

    interval_ms = 1_000
    fault: ClassVar[BaseException | None] = None

    def next_look_ms(self, view: SchedulingView) -> Any:
        if self.fault is not None:
            raise self.fault
        return float("nan")


class Unsettled(Fifo):
    """Fails where it is asked whether its answer stands, and whether a report matters."""

    interval_ms = 1_000

    def next_look_ms(self, view: SchedulingView) -> int | None:
        return None

    def settles(self, view: SchedulingView) -> bool:
        raise ZeroDivisionError("settles")

    def heeds_report(self, *, lost_ratio: float) -> bool:
        raise SystemExit(1)


def played(policy: Any) -> SchedulerEngine:
    engine = SchedulerEngine(make_policy=lambda name, parameters: policy, policy="odd")
    engine.handle(events.NodeJoined(at_ms=0, node=node()))
    engine.handle(events.JobSubmitted(at_ms=1, request=job("j0")))
    for at_ms in (1_000, 2_000, 3_000):
        engine.handle(events.TimerFired(at_ms=at_ms))
    check(engine.state)
    return engine


def test_a_policy_that_leaves_the_program_ends_it_as_little_as_one_that_raises() -> None:
    engine = played(Leaving())
    assert engine.state.decisions["j0"].reason.code == "POLICY_FAILED"
    explanation = engine.explanation("j0")
    assert isinstance(explanation, Explanation)
    assert explanation.find().reason.code == "POLICY_FAILED"


@pytest.mark.parametrize("fault", [ZeroDivisionError("0 / 0"), SystemExit(0), None], ids=str)
def test_a_policy_that_cannot_say_when_it_is_to_be_asked_is_asked_always_and_named(
    fault: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halting, "fault", fault)
    engine = played(Halting())
    assert engine.state.jobs["j0"].phase is Phase.STARTING
    words = "which is no instant in ms" if fault is None else f"{type(fault).__name__}: {fault}"
    assert words in engine.state.rejected[-1].detail


def test_an_instant_may_be_a_number_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halting, "next_look_ms", lambda self, view: numpy.int64(60_000))
    assert not played(Halting()).state.rejected


def test_an_instant_before_all_others_is_the_next_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halting, "next_look_ms", lambda self, view: -math.inf)
    engine = played(Halting())
    assert engine.state.jobs["j0"].phase is Phase.STARTING
    assert not engine.state.rejected


def test_a_fault_whose_own_words_fail_is_named_by_its_kind_without_reading_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise AttributeError("words")

    monkeypatch.setattr(Leaving, "decide", lambda self, view: (_ for _ in ()).throw(MuteError()))
    read = list[str]()

    def note(name: str, *_: object) -> str:
        read.append(name)
        return ""

    monkeypatch.setattr(linecache, "getline", note)
    engine = played(Leaving())
    assert engine.state.decisions["j0"].reason.code == "POLICY_FAILED"
    assert not read
    assert engine.state.rejected[-1].detail.startswith("MuteError: it has no words (core/test_policy_answers.py:")


def test_a_policy_that_cannot_say_whether_its_answer_stands_is_asked_and_named() -> None:
    engine = played(Unsettled())
    assert engine.state.jobs["j0"].phase is Phase.STARTING
    assert engine.state.rejected[-1].detail.startswith("ZeroDivisionError: settles")
    assert heeds_some_report(engine.policy)


def test_a_fault_names_the_line_of_the_policys_own_file() -> None:
    class Deep:
        def decide(self, view: SchedulingView) -> Any:
            return sorted(view.pending, key=operator.attrgetter("urgency"))

    line = Deep.decide.__code__.co_firstlineno + 1
    assert played(Deep()).state.rejected[-1].detail.endswith(f" (core/test_policy_answers.py:{line})")


@pytest.mark.parametrize("interval_ms", [0, 1_000, 1_000.0, numpy.int64(1_000)])
def test_whole_milliseconds_are_an_interval_whatever_holds_them(interval_ms: Any) -> None:
    require_interval(type("Odd", (), {"interval_ms": interval_ms})())


@pytest.mark.parametrize("interval_ms", ["often", -5, 0.5, True, float("nan"), float("inf"), -(10**400)])
def test_times_that_are_none_are_no_interval(interval_ms: Any) -> None:
    policy = type("Odd", (), {"interval_ms": interval_ms})()
    with pytest.raises(PolicyParameterError, match="interval_ms must be 0 or more whole milliseconds, but is"):
        require_interval(policy)

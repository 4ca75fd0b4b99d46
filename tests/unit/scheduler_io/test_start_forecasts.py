"""A scheduler asks the simulator when its jobs start: bounded, with an age, and without secrets in the question."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant.errors import CotenantError
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters import start_forecasts
from scheduler_service.adapters.start_forecasts import Forecast, StartForecasts
from scheduler_service.core import events, queue_events
from scheduler_service.core.records import Share
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.jobs import expected_starts
from scheduler_service.grpc_api.jobs.expected_starts import add_expected_starts, explanation_violations
from tests.support.cases import for_each
from tests.support.engine_play import Play
from tests.support.live_scheduler import running_scheduler
from tests.support.scheduler_process import SchedulerClient
from tests.support.scheduling import job

ORDERS = [
    queue_events.JobHeld(at_ms=1, job_id="b"),
    queue_events.JobReleased(at_ms=1, job_id="b"),
    queue_events.JobAltered(at_ms=1, job_id="b", priority=1, share=Share.SAFE, max_slowdown_ratio=0.2, time_limit_ms=0),
    queue_events.NodeCordoned(at_ms=1, node_id="n0"),
    queue_events.NodeUncordoned(at_ms=1, node_id="n0"),
    queue_events.TenantsChosen(at_ms=1),
    events.PolicyChosen(at_ms=1, policy="srtf"),
]
ANSWER = {
    "confidence": 0.8,
    "runs": 20,
    "jobs": {
        "b": {"position": 1, "wait_ms": 60_000, "wait_lower_ms": 50_000, "wait_upper_ms": 80_000, "depends_on": []},
        "c": {"position": 2, "wait_ms": -1, "wait_lower_ms": -1, "wait_upper_ms": -1, "depends_on": ["a"]},
    },
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes a second, or many where the machine is busy."""
    monkeypatch.setattr(expected_starts, "PATIENCE_S", 200.0)
    monkeypatch.setattr(expected_starts, "CHANGES_PATIENCE_S", 200.0)


@pytest.fixture
def play() -> Play:
    """One GPU, a job that ran before, one that runs, two that wait; each with a secret in its environment."""
    found = Play("fifo")
    for name in ("old", "a", "b", "c"):
        launch = {"environment": {"TOKEN": f"secret-of-{name}"}}
        found.tell(events.JobSubmitted, request=job(name, key=""), launch=launch)
        if name == "old":
            found.report(events.JobFinished, "old", steps_done=10)
    return found


def simulator(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the process be a few lines of Python; the question's path is in sys.argv[1]."""

    def command(verb: str, arguments: Sequence[str]) -> list[str]:
        assert verb == "forecast"
        return [sys.executable, "-c", code, *arguments]

    monkeypatch.setattr(start_forecasts, "command_line", command)


class Asker:
    """Asks with a clock of its own."""

    def __init__(self, play: Play, folder: Path) -> None:
        self.now_ms = 1_000_000
        self.forecasts = StartForecasts(
            folder=folder,
            freeze=play.engine.freeze,
            now_ms=lambda: self.now_ms,
            living_jobs=lambda: 3,
            report_interval_ms=250,
        )

    def about(self, job_id: str, *, seconds_left: float = 240, **changes: str) -> scheduling_pb2.ExplainJobResponse:
        return asyncio.run(self._about(job_id, seconds_left, changes))

    async def _about(
        self, job_id: str, seconds_left: float, changes: dict[str, str]
    ) -> scheduling_pb2.ExplainJobResponse:
        answer = scheduling_pb2.ExplainJobResponse()
        request = scheduling_pb2.ExplainJobRequest(job_id=job_id, expected_start=True, changes=changes)
        await add_expected_starts(answer, request, self.forecasts, seconds_left)
        await self.forecasts.close()
        return answer


@pytest.fixture
def asker(play: Play, tmp_path: Path) -> Asker:
    return Asker(play, tmp_path / "forecasts")


def test_the_real_simulator_answers_about_a_real_engine_and_leaves_no_file(asker: Asker, tmp_path: Path) -> None:
    found = asker.about("b", policy="srtf")
    # Nothing is predicted of these jobs, so the first one may run for ever.
    assert found.expected_start.unknown_reason.startswith("it may have to wait for a,")
    assert (found.expected_start.position, found.expected_start.waiting_jobs) == (1, 2)
    assert (found.expected_start.as_of_ms, found.changed_start.waiting_jobs) == (1_000_000, 2)
    assert list((tmp_path / "forecasts").iterdir()) == []


def test_the_question_is_private_and_holds_no_environment_and_no_ended_job(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    simulator(
        monkeypatch,
        "import json, os, shutil, sys; shutil.copy2(sys.argv[1], " + repr(str(kept)) + "); "
        f"print({json.dumps(json.dumps(ANSWER))})",
    )
    assert asker.about("b").expected_start.wait_ms == 60_000
    question = kept.read_text()
    assert "secret-of" not in question
    assert '"old"' not in question
    assert json.loads(question)["report_interval_ms"] == 250
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_fresh_answer_is_given_again_and_an_old_one_with_its_age_while_a_new_one_is_made(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator(monkeypatch, f"print({json.dumps(json.dumps(ANSWER))})")
    first = asker.about("b").expected_start
    assert (first.wait_lower_ms, first.wait_upper_ms, first.as_of_ms) == (50_000, 80_000, 1_000_000)
    assert asker.about("c").expected_start.unknown_reason.startswith("it may have to wait for a,")
    simulator(monkeypatch, "raise SystemExit('not asked')")
    asker.now_ms += start_forecasts.FRESH_MS
    assert asker.about("b").expected_start == first
    simulator(monkeypatch, "import time; time.sleep(60)")
    asker.now_ms += 60_000
    assert asker.about("b", seconds_left=0.2).expected_start == first


def answering(wait_ms: int, *job_ids: str) -> str:
    """The lines of a simulator that lets these jobs wait so long."""
    row = {"position": 1, "wait_ms": wait_ms, "wait_lower_ms": wait_ms, "wait_upper_ms": wait_ms, "depends_on": []}
    answer = {"confidence": 0.8, "runs": 20, "jobs": dict.fromkeys(job_ids, row)}
    return f"print({json.dumps(json.dumps(answer))})"


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_of_people_makes_an_earlier_answer_old_at_once_and_a_report_does_not(
    order: events.Event, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator(monkeypatch, answering(1_000, "b"))
    assert asker.about("b").expected_start.wait_ms == 1_000
    simulator(monkeypatch, answering(2_000, "b"))
    asker.forecasts.event_handled(events.TimerFired(at_ms=1), (), duration_ns=0)
    assert asker.about("b").expected_start.wait_ms == 1_000
    asker.forecasts.event_handled(order, (), duration_ns=0)
    assert asker.about("b").expected_start.wait_ms == 2_000


def test_an_order_during_a_simulation_is_followed_by_another_one(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    waits = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
    waits += f"while not pathlib.Path({str(may_end)!r}).exists(): time.sleep(0.01)\n"

    async def ask() -> Forecast:
        simulator(monkeypatch, waits + answering(1_000, "b"))
        asking = asyncio.create_task(asker.forecasts.of_queue("b", patience_s=240))
        while not begun.exists():  # noqa: ASYNC110 - looks at what another process does
            await asyncio.sleep(0.01)
        asker.forecasts.event_handled(ORDERS[0], (), duration_ns=0)
        simulator(monkeypatch, answering(2_000, "b"))
        may_end.touch()
        return await asking

    assert asyncio.run(ask()).waits["b"].wait_ms == 2_000


def test_who_waited_for_a_simulation_that_took_long_waits_for_no_second_one(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[int]()

    def slow(verb: str, arguments: Sequence[str]) -> list[str]:
        begun.append(asker.now_ms)
        asker.now_ms += start_forecasts.FRESH_MS + 1
        return [sys.executable, "-c", answering(1_000, "b"), *arguments]

    monkeypatch.setattr(start_forecasts, "command_line", slow)
    assert asker.about("b").expected_start.wait_ms == 1_000
    assert len(begun) == 1


def test_a_job_that_came_after_the_newest_simulation_is_simulated_when_it_is_asked_about(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator(monkeypatch, answering(1_000, "b"))
    assert asker.about("b").expected_start.wait_ms == 1_000
    simulator(monkeypatch, answering(2_000, "b", "new"))
    assert asker.about("new").expected_start.wait_ms == 2_000
    simulator(monkeypatch, "import time; time.sleep(60)")
    found = asker.about("newer", seconds_left=0.5).expected_start
    assert found.unknown_reason == "the job came after the newest simulation; ask again in some seconds"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('error: no such thing')", "no such thing"),
        ("print('no JSON')", "printed no forecast"),
        ("print('{}')", "printed no forecast"),
        ("import time; time.sleep(60)", "ask again"),
    ],
)
def test_a_simulation_without_an_answer_is_unknown_and_says_why(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    simulator(monkeypatch, code)
    found = asker.about("b", seconds_left=0.5 if "sleep" in code else 240).expected_start
    assert why in found.unknown_reason
    assert not found.unknown_reason.startswith("error")
    assert not found.HasField("wait_ms")


def test_too_many_jobs_and_too_many_questions_are_refused(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    asker.forecasts.living_jobs = lambda: start_forecasts.LIVING_JOBS_MAX + 1
    assert "too many to simulate" in asker.about("b").expected_start.unknown_reason
    monkeypatch.setattr(start_forecasts, "QUESTIONS_MAX", 0)
    with pytest.raises(OverloadedError, match="what-if"):
        asker.about("b", policy="srtf")


def test_a_simulator_that_is_not_installed_is_named(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(verb: str, arguments: Sequence[str]) -> list[str]:
        raise CotenantError("cotenant_simulator needs cotenant[simulator]")

    monkeypatch.setattr(start_forecasts, "command_line", missing)
    assert "cotenant[simulator]" in asker.about("b").expected_start.unknown_reason


@for_each(
    ("changes", "field"),
    [
        ({"colour": "red"}, "changes"),
        ({"policy": "fastest"}, "changes.policy"),
        ({"batch_size": "0"}, "changes.batch_size"),
        ({"gpus": "1e3"}, "changes.gpus"),
        ({"share": "maybe"}, "changes.share"),
        ({"max_slowdown": "nan"}, "changes.max_slowdown"),
        ({"memory": "a lot"}, "changes.memory"),
        ({"steps": "9" * 30}, "changes.steps"),
        ({f"x{number}": "1" for number in range(11)}, "changes"),
    ],
)
def test_absurd_changes_are_refused_by_name(changes: dict[str, str], field: str) -> None:
    request = scheduling_pb2.ExplainJobRequest(job_id="job-1", expected_start=True, changes=changes)
    assert [one.field for one in explanation_violations(request)] == [field]


def test_changes_without_asking_for_the_start_are_refused() -> None:
    request = scheduling_pb2.ExplainJobRequest(job_id="job-1", changes={"policy": "srtf"})
    assert [one.field for one in explanation_violations(request)] == ["changes"]


def test_explain_over_grpc_brings_what_would_change_it_and_the_place_only_when_asked(tmp_path: Path) -> None:
    with running_scheduler(tmp_path / "state") as address, SchedulerClient(address) as client:
        job_id = client.submit(command=["python", "x.py"]).job_id
        plain = client.stub.ExplainJob(scheduling_pb2.ExplainJobRequest(job_id=job_id), timeout=240)
        assert plain.reason.code == "NO_NODE"
        assert "cotenant up" in plain.remedy
        assert not plain.HasField("expected_start")
        asked = scheduling_pb2.ExplainJobRequest(job_id=job_id, expected_start=True, changes={"policy": "srtf"})
        found = client.stub.ExplainJob(asked, timeout=240)
        for one in (found.expected_start, found.changed_start):
            assert (one.position, one.waiting_jobs) == (1, 1)
            assert one.unknown_reason.startswith("it did not start in the simulation: No node has joined the cluster")
    assert list((tmp_path / "state" / "forecasts").iterdir()) == []

"""A policy that does not answer is not asked again until one is chosen, and a replay decides what was decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler_service.adapters.policy_watch import SilenceRecord
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Incarnation
from scheduler_service.adapters.storage.event_log import LogRecord, StoredSnapshot
from scheduler_service.adapters.storage.recovery import (
    JobNumbers,
    Recovered,
    begin_incarnation,
    recover,
    snapshot_state,
)
from scheduler_service.adapters.storage.silence_marker import SilenceMarker
from scheduler_service.core import events
from scheduler_service.core.cluster_view.view import Policy, SchedulingView
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.commands import LaunchJob
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.errors import PolicySilentError
from scheduler_service.core.planning.explanation import Explanation
from scheduler_service.core.policy_events import PolicySilenced
from scheduler_service.core.queue.tenants import TenantRules
from scheduler_service.core.queue_events import TenantsChosen
from scheduler_service.core.records import Phase
from scheduler_service.policies.fifo import Fifo
from tests.support.engine_invariants import check
from tests.support.live_loop import MemoryEventLog
from tests.support.scheduling import job, node

SILENCE = PolicySilentError("policy moody did not answer")


class Moody(Fifo):
    """First in, first out, as long as it answers."""

    silent_at: tuple[int, ...] = ()
    asked = 0

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        Moody.asked += 1
        if Moody.asked in self.silent_at:
            raise SILENCE
        return super().decide(view)


class Hesitating(Fifo):
    """Answers, but for when it is to be asked again, and whether a report matters."""

    interval_ms = 1_000
    is_silent = True
    looks = 0

    def next_look_ms(self, view: SchedulingView) -> Any:
        Hesitating.looks += 1
        if self.is_silent:
            raise SILENCE
        return None


class Mute(Hesitating):
    """Does not answer at all."""

    settles = True

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        raise SILENCE


def make(name: str, parameters: Mapping[str, object]) -> Policy:
    kinds: Mapping[str, Any] = {"moody": Moody, "fifo": Fifo, "hesitating": Hesitating, "mute": Mute}
    made: Policy = kinds[name]()
    return made


def new_engine() -> SchedulerEngine:
    return SchedulerEngine(make_policy=make, policy="fifo")


class Story:
    """An engine, its log, and what is stored of silences."""

    def __init__(self, folder: Path) -> None:
        self.engine = new_engine()
        self.folder = folder
        self.log = MemoryEventLog()
        self.commands: list[object] = []
        self._noted: list[events.Event] = []
        self._record = SilenceRecord(self.engine, self.log.last_sequence, self._noted.append, self.marker())
        self._record.begin()

    def marker(self) -> SilenceMarker:
        """As of a program that starts now."""
        return SilenceMarker(self.folder, "this state")

    def tell(self, *facts: events.Event) -> None:
        self.handle_batch(*facts)
        self.handle_batch(*self._noted)
        self._noted.clear()
        check(self.engine.state)

    def handle_batch(self, *facts: events.Event) -> None:
        """What is noted meanwhile is not stored yet."""
        for fact in facts:
            self._handle(fact)

    def _handle(self, fact: events.Event) -> None:
        self.log.append([LogRecord(event=decode_event(encode_event(fact)))])
        commands = self.engine.handle(fact)
        self.commands += commands
        self._record.event_handled(fact, commands, duration_ns=0)

    def replayed(self, marker: SilenceMarker | None = None) -> Recovered:
        return recover(self.log, new_engine=new_engine, restored_engine=restored, marker=marker)


def restored(state: Mapping[str, Any]) -> SchedulerEngine:
    return SchedulerEngine.restore(state, make_policy=make)


def as_text(engine: SchedulerEngine) -> str:
    return json.dumps(engine.snapshot(), sort_keys=True)


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Story:
    monkeypatch.setattr(Moody, "asked", 0)
    found = Story(tmp_path)
    found.tell(events.NodeJoined(at_ms=0, node=node("n0", 1)), events.PolicyChosen(at_ms=1, policy="moody"))
    return found


def reason_of(engine: SchedulerEngine, job_id: str) -> str:
    return engine.state.decisions[job_id].reason.code


def test_it_is_not_asked_again_and_what_waits_says_why(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "silent_at", (1,))
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")), events.JobSubmitted(at_ms=3, request=job("j1")))
    assert Moody.asked == 1
    assert [reason_of(story.engine, job_id) for job_id in ("j0", "j1")] == ["POLICY_SILENT"] * 2
    explanation = story.engine.explanation("j0")
    assert isinstance(explanation, Explanation)
    assert explanation.find().reason.code == "POLICY_SILENT"
    assert Moody.asked == 1


def test_the_same_policy_chosen_anew_is_asked_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "silent_at", (1,))
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    assert story.engine.state.silence
    story.tell(events.PolicyChosen(at_ms=3, policy="moody"))
    assert story.engine.state.jobs["j0"].phase is Phase.STARTING
    assert not story.engine.state.silence


def test_a_snapshot_keeps_the_silence(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "silent_at", (1,))
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    story.log.store_snapshot(
        StoredSnapshot(sequence=story.log.last_sequence(), state=snapshot_state(story.engine, JobNumbers())),
        retained_events=0,
    )
    engine = story.replayed().engine
    engine.handle(events.JobSubmitted(at_ms=5, request=job("j1")))
    assert (Moody.asked, reason_of(engine, "j1")) == (1, "POLICY_SILENT")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_replay_in_which_the_policy_could_answer_decides_what_was_decided_then(
    story: Story, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    monkeypatch.setattr(Moody, "silent_at", (1,))
    if not is_recorded:
        monkeypatch.setattr(story.log, "silences_from", lambda sequence: {})
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")), events.JobSubmitted(at_ms=3, request=job("j1")))
    story.tell(events.PolicyChosen(at_ms=4, policy="fifo"))
    story.tell(events.JobCancelled(at_ms=5, job_id="j0"))
    monkeypatch.setattr(Moody, "silent_at", ())
    found = story.replayed()
    assert (as_text(found.engine) == as_text(story.engine)) is is_recorded
    assert found.silences == ()


def let_two_tenants_wait(story: Story) -> None:
    """Each tenant is a turn of its own; upon the next fact all are decided."""
    story.tell(
        TenantsChosen(at_ms=1, rules=TenantRules()),
        events.NodeJoined(at_ms=1, node=node("n0", 3)),
        events.JobSubmitted(at_ms=2, request=job("j0", tenant="a"), is_followed=True),
        events.JobSubmitted(at_ms=2, request=job("j1", tenant="b"), is_followed=True),
    )


def test_turns_that_were_decided_before_the_silence_stay_decided(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tenant is a turn of its own: the first one is answered, the second one is not."""
    let_two_tenants_wait(story)
    monkeypatch.setattr(Moody, "asked", 0)
    monkeypatch.setattr(Moody, "silent_at", (2,))
    story.tell(events.JobSubmitted(at_ms=3, request=job("j2", tenant="c")))
    assert Moody.asked == 2
    launched = [command.job_id for command in story.commands if isinstance(command, LaunchJob)]
    assert len(launched) == 1
    (record,) = story.log.silences_from(1).values()
    assert record.answers == 1
    monkeypatch.setattr(Moody, "silent_at", ())
    assert as_text(story.replayed().engine) == as_text(story.engine)


@pytest.mark.parametrize("is_silent_again", [True, False])
def test_a_policy_that_does_not_say_when_to_be_asked_again_is_silent_too(
    story: Story, monkeypatch: pytest.MonkeyPatch, is_silent_again: bool
) -> None:
    story.tell(events.PolicyChosen(at_ms=2, policy="hesitating"), events.JobSubmitted(at_ms=3, request=job("j0")))
    story.tell(events.TimerFired(at_ms=1_000), events.TimerFired(at_ms=2_000))
    assert story.engine.state.silence == str(SILENCE)
    story.tell(events.JobSubmitted(at_ms=2_001, request=job("j1")))
    assert reason_of(story.engine, "j1") == "POLICY_SILENT"
    assert len(story.log.silences_from(1)) == 1
    monkeypatch.setattr(Hesitating, "is_silent", is_silent_again)
    found = story.replayed()
    assert (found.engine.state.silence, reason_of(found.engine, "j1")) == (str(SILENCE), "POLICY_SILENT")
    assert found.silences == ()


def test_one_that_does_not_answer_is_not_asked_when_to_ask_it_again(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hesitating, "looks", 0)
    story.tell(events.PolicyChosen(at_ms=2, policy="mute"), events.JobSubmitted(at_ms=3, request=job("j0")))
    assert (story.engine.state.silence, Hesitating.looks) == (str(SILENCE), 0)


@pytest.mark.parametrize("sequence", [3, 4])
def test_what_was_only_marked_counts_from_its_event_on_and_is_to_be_stored(story: Story, sequence: int) -> None:
    """Upon that event nothing was carried out: the program ended while the policy was at it."""
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    marked = PolicySilenced(at_ms=0, sequence=sequence, answers=0, words="it was late")
    story.marker().keep(marked)
    found = story.replayed(story.marker())
    is_of_log = sequence == 3
    assert any(story.folder.iterdir()) is is_of_log
    assert found.silences == (marked,) * is_of_log
    assert (found.engine.state.silence == "it was late") is is_of_log
    assert (found.engine.state.jobs["j0"].phase is Phase.PENDING) is is_of_log


def test_a_silence_in_a_replay_is_handed_to_whoever_stores_it(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    monkeypatch.setattr(Moody, "asked", 0)
    monkeypatch.setattr(Moody, "silent_at", (1,))
    found = story.replayed()
    assert found.silences == (PolicySilenced(at_ms=0, sequence=3, answers=0, words=str(SILENCE)),)
    assert found.engine.state.silence


def test_a_crash_before_the_fact_is_stored_replays_the_turns_that_were_carried_out(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another policy was chosen in the same batch: what had been decided until then stays so."""
    let_two_tenants_wait(story)
    monkeypatch.setattr(Moody, "asked", 0)
    monkeypatch.setattr(Moody, "silent_at", (2,))
    story.handle_batch(
        events.JobSubmitted(at_ms=3, request=job("j2", tenant="c")), events.PolicyChosen(at_ms=4, policy="fifo")
    )
    assert not story.log.silences_from(1)
    monkeypatch.setattr(Moody, "silent_at", ())
    found = story.replayed(story.marker())
    assert as_text(found.engine) == as_text(story.engine)
    assert [silence.answers for silence in found.silences] == [1]
    assert any(story.folder.iterdir())


def test_the_marker_goes_once_the_fact_is_stored(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moody, "silent_at", (1,))
    story.handle_batch(events.JobSubmitted(at_ms=2, request=job("j0")))
    assert any(story.folder.iterdir())
    story.tell()
    assert story.log.silences_from(1)
    assert not any(story.folder.iterdir())


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_answer_that_comes_late_in_a_replay_takes_the_marker_back(
    story: Story, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Else a crash of that program would leave out what was decided upon that event, and carried out, long ago."""
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    marker = story.marker()

    def decide(policy: Moody, view: SchedulingView) -> Sequence[Decision]:
        marker.mark("it is late")
        if is_silent:
            raise SILENCE
        return Fifo.decide(policy, view)

    monkeypatch.setattr(Moody, "decide", decide)
    found = story.replayed(marker)
    assert bool(found.silences) is is_silent
    assert any(story.folder.iterdir()) is is_silent


def test_the_words_of_a_silence_are_bounded(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    class WordyError(PolicySilentError):
        def __str__(self) -> str:
            return "x" * 100_000

    def decide(policy: Moody, view: SchedulingView) -> Sequence[Decision]:
        raise WordyError

    monkeypatch.setattr(Moody, "decide", decide)
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")))
    assert story.engine.state.silence == "x" * 400


def test_one_that_is_chosen_anew_finds_nothing_that_it_had_half_kept(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped at any of its own lines, and policies keep answers with the index from decision to decision."""
    found: list[Mapping[object, object]] = []

    def decide(policy: Moody, view: SchedulingView) -> Sequence[Decision]:
        found.append(dict(view.index.kept_answers))
        view.index.kept_answers["half"] = "changed"
        raise SILENCE

    monkeypatch.setattr(Moody, "decide", decide)
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")), events.PolicyChosen(at_ms=3, policy="moody"))
    assert found == [{}, {}]


def test_a_silence_upon_the_beginning_of_a_restored_state_is_to_be_stored_too(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Moody, "decides_only_waiting", False)
    story.tell(events.JobSubmitted(at_ms=2, request=job("j0")), events.NodeJoined(at_ms=2, node=node("n1", 1)))
    story.tell(events.JobStarted(at_ms=3, job_id="j0", attempt=1, fence=1))
    # It is lost, since its order may have been carried out: that is to be decided upon, beside what runs.
    story.tell(events.JobSubmitted(at_ms=3, request=job("j1")))
    found = story.replayed()
    monkeypatch.setattr(Moody, "asked", 0)
    monkeypatch.setattr(Moody, "silent_at", (1,))
    lineage = (Incarnation(incarnation_id="a", first_fence=0), Incarnation(incarnation_id="b", first_fence=10**6))
    begun = begin_incarnation(story.log, found, ClusterIdentity(lineage=lineage), wall_ms=10, lost_after_ms=1_000)
    assert begun.engine.state.silence
    assert [silence.sequence for silence in begun.silences] == [begun.sequence]

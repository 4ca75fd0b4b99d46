"""A job whose lease ended while everything stood still: it is held, not run and not ended, until more is known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cotenant_agent.keeper import deadline_watch, shim
from cotenant_agent.keeper.deadline_watch import HELD_MS_MAX
from cotenant_agent.keeper.kept_lease import KeptLease
from cotenant_agent.keeper.shim_records import Records
from cotenant_agent.keeper.standstill import STANDSTILL_MS

DEADLINE_MS, GRACE_MS = 50_000, 20_000
END_MS = DEADLINE_MS + GRACE_MS


class ToldJob:
    """In the place of the job's processes and of what holds them: it does what it is told, and says what that was."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_holdable = self.is_releasable = True
        self.is_paused = False

    def ask_to_stop(self) -> bool:
        self.told.append("stop")
        return True

    def are_asked(self) -> None:
        """The job's processes are asked once a second."""

    ask_newcomers_to_stop = kill_outsiders = are_asked

    def let_go(self) -> None:
        self.is_paused = False


class Holder:
    """In the place of `JobHold`."""

    def __init__(self, job: ToldJob) -> None:
        self._job = job

    def hold(self, now_ms: int) -> bool:
        if self._job.told[-1:] != ["hold"]:
            self._job.told.append("hold")
        return self._job.is_holdable

    def release(self) -> bool:
        if self._job.is_releasable:
            self._job.told.append("go on")
        return self._job.is_releasable


class StandstillBench:
    """A supervisor, its job, and the clock of its machine."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        job = self.job = ToldJob()
        self.directory = directory
        self.now_ms = 0
        monkeypatch.chdir(directory)
        monkeypatch.setattr(shim, "JobProcesses", lambda *_: job)
        monkeypatch.setattr(shim, "JobHold", lambda *_: Holder(job))
        monkeypatch.setattr(shim, "boot_ms", lambda: self.now_ms)
        monkeypatch.setattr(job, "hold", self._pause, raising=False)
        self.write("lease.json", deadline_boot_ms=DEADLINE_MS, grace_ms=GRACE_MS)
        self.supervisor = shim.AttemptSupervisor({"log_limit_bytes": 4096, "environment": {}}, Records())
        monkeypatch.setattr(self.supervisor, "_kill_everything", lambda: job.told.append("kill"))
        # It would collect what other tests of this process have started.
        monkeypatch.setattr(self.supervisor, "_finished", lambda: False)

    def _pause(self, *_: object) -> bool:
        self.job.is_paused = True
        return True

    def write(self, name: str, **record: object) -> None:
        (self.directory / name).write_text(json.dumps(record))

    def look(self, *instants_ms: int) -> list[str]:
        """What the job has been told after these looks."""
        for self.now_ms in instants_ms:
            self.supervisor._supervise()
        return self.job.told

    def stand_still_when_the_lease_is_read(
        self, until_ms: int, monkeypatch: pytest.MonkeyPatch, *, awake: bool = True
    ) -> None:
        """A look reads it after its own clock, and where it is counted on the other clock, that after it."""
        real = KeptLease.left_ms

        def left_ms(lease: KeptLease, now_ms: int) -> int:
            self.now_ms = max(self.now_ms, until_ms)
            return real(lease, now_ms)

        monkeypatch.setattr(KeptLease, "left_ms", left_ms)
        monkeypatch.setattr(deadline_watch, "awake_ms", lambda: self.now_ms)
        awake_ms = {"deadline_awake_ms": DEADLINE_MS} if awake else {}
        self.write("lease.json", deadline_boot_ms=DEADLINE_MS, grace_ms=GRACE_MS, **awake_ms)

    @property
    def cause(self) -> str:
        return self.supervisor._cause

    def interruptions(self) -> int:
        """How often the agent is told to begin its measurements of the job anew."""
        record = self.directory / "paused.json"
        return int(json.loads(record.read_text())["changes"]) if record.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandstillBench:
    return StandstillBench(tmp_path, monkeypatch)


@pytest.mark.parametrize("woke_ms", [DEADLINE_MS, END_MS - 1_000, END_MS, END_MS + 250_000])
def test_a_newer_lease_lets_a_job_go_on_after_a_standstill(bench: StandstillBench, woke_ms: int) -> None:
    assert bench.look(DEADLINE_MS - 10_000, woke_ms) == ["hold"]
    bench.write("lease.json", deadline_boot_ms=woke_ms + 30_000, grace_ms=GRACE_MS)
    assert bench.look(woke_ms + 100, woke_ms + 200) == ["hold", "go on"]
    assert bench.cause == ""


def test_without_a_newer_lease_a_held_job_is_killed_after_a_grace_and_never_runs_again(bench: StandstillBench) -> None:
    woke_ms = END_MS + 9_000
    assert bench.look(DEADLINE_MS - 100, woke_ms, woke_ms + GRACE_MS - 1) == ["hold"]
    told = bench.look(woke_ms + GRACE_MS, woke_ms + GRACE_MS + 100)
    assert set(told[1:]) == {"kill"}
    assert bench.cause == "fenced"


def test_no_job_is_held_longer_than_what_watches_its_namespace_waits(bench: StandstillBench) -> None:
    bench.write("lease.json", deadline_boot_ms=DEADLINE_MS, grace_ms=10 * HELD_MS_MAX)
    woke_ms = DEADLINE_MS + 11 * HELD_MS_MAX
    assert bench.look(DEADLINE_MS - 100, woke_ms, woke_ms + HELD_MS_MAX - 1) == ["hold"]
    assert "kill" in bench.look(woke_ms + HELD_MS_MAX)


def test_an_order_to_stop_kills_a_job_that_is_held_beyond_its_grace(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 100, END_MS + 9_000)
    bench.write("stop.json", cause="cancelled", grace_ms=60_000)
    told = bench.look(END_MS + 9_100, END_MS + 9_200)
    assert set(told[1:]) == {"kill"}
    assert bench.cause == "cancelled"


def test_an_order_to_stop_that_was_there_before_the_first_look_kills_at_once(bench: StandstillBench) -> None:
    bench.write("stop.json", cause="cancelled", grace_ms=60_000)
    bench.supervisor._standstill._looked_ms = DEADLINE_MS - 100
    assert set(bench.look(END_MS + 9_000)) == {"kill"}


def test_within_the_grace_an_order_to_stop_ends_a_held_job_in_good_order(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 100, DEADLINE_MS + 5_000)
    bench.write("stop.json", cause="preempted", grace_ms=60_000)
    assert bench.look(DEADLINE_MS + 5_100) == ["hold", "go on", "stop"]
    assert bench.look(END_MS - 1)[-1] == "stop"
    assert bench.look(END_MS)[-1] == "kill"


def test_half_of_what_is_left_of_the_grace_is_left_for_a_checkpoint(bench: StandstillBench) -> None:
    assert bench.look(DEADLINE_MS - 100, END_MS - 8_000, END_MS - 4_001) == ["hold"]
    assert bench.look(END_MS - 4_000) == ["hold", "go on", "stop"]
    assert (bench.cause, bench.supervisor._kill_at_ms) == ("fenced", END_MS)


@pytest.mark.parametrize("deadline_ms", [DEADLINE_MS - 1, END_MS + 9_050])
def test_a_lease_that_is_over_lets_no_job_go_on(bench: StandstillBench, deadline_ms: int) -> None:
    bench.look(DEADLINE_MS - 100, END_MS + 9_000)
    bench.write("lease.json", deadline_boot_ms=deadline_ms, grace_ms=GRACE_MS)
    assert bench.look(END_MS + 9_100) == ["hold"]


@pytest.mark.parametrize(("woke_ms", "told"), [(END_MS - 8_000, ["hold", "go on", "stop"]), (END_MS, ["hold", "kill"])])
def test_a_job_that_cannot_be_held_whole_ends_as_at_the_end_of_any_lease(
    bench: StandstillBench, woke_ms: int, told: list[str]
) -> None:
    bench.job.is_holdable = False
    assert bench.look(DEADLINE_MS - 100, woke_ms)[: len(told)] == told
    assert bench.cause == "fenced"


@pytest.mark.parametrize(("gap_ms", "told"), [(STANDSTILL_MS - 1, "stop"), (STANDSTILL_MS, "hold")])
def test_only_a_keeper_that_stood_still_holds_its_job(bench: StandstillBench, gap_ms: int, told: str) -> None:
    assert bench.look(DEADLINE_MS - 1, DEADLINE_MS - 1 + gap_ms) == [told]


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("woke_ms", [DEADLINE_MS, END_MS - 8_000, END_MS + 9_000])
def test_a_standstill_that_begins_within_a_look_holds_the_job_too(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch, woke_ms: int, awake: bool
) -> None:
    bench.stand_still_when_the_lease_is_read(woke_ms, monkeypatch, awake=awake)
    assert bench.look(DEADLINE_MS - 10_000) == ["hold"]
    assert bench.interruptions() == 1
    bench.write("lease.json", deadline_boot_ms=woke_ms + 30_000, grace_ms=GRACE_MS)
    assert bench.look(woke_ms + 100, woke_ms + 200) == ["hold", "go on"]
    assert bench.cause == ""


@pytest.mark.parametrize("awake", [True, False])
def test_a_job_that_cannot_be_held_ends_after_a_standstill_within_a_look_with_all_that_is_left_of_its_grace(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch, awake: bool
) -> None:
    bench.job.is_holdable = False
    bench.stand_still_when_the_lease_is_read(DEADLINE_MS + 5_000, monkeypatch, awake=awake)
    assert bench.look(DEADLINE_MS - 10_000) == ["hold", "go on", "stop"]
    assert (bench.cause, bench.supervisor._kill_at_ms) == ("fenced", END_MS)


def test_a_grace_that_is_over_after_a_standstill_within_a_look_ends_the_job_in_that_look(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked to stop before: what has stood still meanwhile makes no other step."""
    bench.write("stop.json", cause="preempted", grace_ms=5_000)
    assert bench.look(DEADLINE_MS - 30_000) == ["stop"]
    bench.stand_still_when_the_lease_is_read(DEADLINE_MS - 10_000, monkeypatch)
    monkeypatch.setattr(bench.supervisor._pauser, "look", lambda *_: setattr(bench, "now_ms", DEADLINE_MS - 10_000))
    assert bench.look(DEADLINE_MS - 29_000)[1:] == ["kill"]


def test_a_job_that_has_not_begun_does_not_begin_after_a_standstill_beyond_its_lease(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stand_still_when_the_lease_is_read(DEADLINE_MS, monkeypatch)
    read, go = os.pipe()
    bench.now_ms = DEADLINE_MS - 10_000
    bench.supervisor._let_begin(go)
    assert os.read(read, 1) == b""
    os.close(read)
    assert bench.cause == "fenced"


def test_a_look_ends_although_every_reading_of_the_lease_takes_as_long_as_a_standstill(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk of the state directory hardly answers: the job's output and its end are looked at meanwhile."""
    real, read = KeptLease.left_ms, list[int]()

    def left_ms(lease: KeptLease, now_ms: int) -> int:
        read.append(now_ms)
        bench.now_ms += STANDSTILL_MS
        return real(lease, now_ms)

    bench.write("lease.json", deadline_boot_ms=10**12, grace_ms=GRACE_MS)
    monkeypatch.setattr(KeptLease, "left_ms", left_ms)
    assert bench.look(1_000, 1_100) == []
    assert len(read) < 10
    assert bench.cause == ""


def test_a_standstill_within_the_lease_is_none(bench: StandstillBench) -> None:
    assert bench.look(DEADLINE_MS - 40_000, DEADLINE_MS - 1) == []


def test_what_the_kernel_does_not_let_go_on_is_told_again(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 100, END_MS + 9_000)
    bench.write("lease.json", deadline_boot_ms=END_MS + 60_000, grace_ms=GRACE_MS)
    bench.job.is_releasable = False
    assert bench.look(END_MS + 9_100) == ["hold"]
    bench.job.is_releasable = True
    assert bench.look(END_MS + 9_200) == ["hold", "go on"]


def test_a_job_that_the_kernel_does_not_let_go_on_can_be_ended(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 100, END_MS + 9_000)
    bench.write("lease.json", deadline_boot_ms=END_MS + 60_000, grace_ms=GRACE_MS)
    bench.write("stop.json", cause="cancelled", grace_ms=60_000)
    bench.job.is_releasable = False
    assert set(bench.look(END_MS + 9_100)[1:]) == {"kill"}


def test_the_end_of_a_pause_lets_no_held_job_go_on(bench: StandstillBench) -> None:
    bench.write("pause.json", until_boot_ms=END_MS + 10_000)
    bench.look(DEADLINE_MS - 100, END_MS + 9_000, END_MS + 11_000)
    assert bench.job.is_paused
    bench.write("lease.json", deadline_boot_ms=END_MS + 60_000, grace_ms=GRACE_MS)
    bench.look(END_MS + 11_100)
    assert not bench.job.is_paused


def test_a_pause_goes_on_at_once_when_the_hold_is_over(bench: StandstillBench) -> None:
    bench.write("pause.json", until_boot_ms=DEADLINE_MS + 30_000)
    bench.look(DEADLINE_MS - 100, DEADLINE_MS + 5_000)
    bench.write("lease.json", deadline_boot_ms=DEADLINE_MS + 60_000, grace_ms=GRACE_MS)
    bench.job.is_paused = False
    bench.look(DEADLINE_MS + 5_100)
    assert bench.job.is_paused


def test_a_paused_job_that_is_killed_while_held_is_let_go_to_die(bench: StandstillBench) -> None:
    bench.write("pause.json", until_boot_ms=END_MS + 30_000)
    bench.look(DEADLINE_MS - 100, END_MS + 9_000)
    assert bench.job.is_paused
    bench.write("stop.json", cause="cancelled", grace_ms=60_000)
    assert "kill" in bench.look(END_MS + 9_100)
    assert not bench.job.is_paused


def test_nothing_is_measured_across_a_standstill_nor_while_the_job_is_held(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 10_000, DEADLINE_MS - 9_900)
    assert bench.interruptions() == 0
    bench.look(END_MS, END_MS + 100)
    assert bench.interruptions() == 1
    bench.write("lease.json", deadline_boot_ms=END_MS + 30_000, grace_ms=GRACE_MS)
    bench.look(END_MS + 200, END_MS + 300)
    assert bench.interruptions() == 2


def test_nothing_is_measured_across_a_standstill_that_ended_within_the_lease(bench: StandstillBench) -> None:
    bench.look(DEADLINE_MS - 40_000, DEADLINE_MS - 1_000)
    assert bench.interruptions() == 1


def test_a_job_is_held_before_the_disk_is_asked_and_ended_without_asking_it(
    bench: StandstillBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.supervisor._standstill, "_note", lambda: bench.job.told.append("note"))
    assert bench.look(DEADLINE_MS - 100, END_MS) == ["hold", "note"]
    bench.write("stop.json", cause="cancelled", grace_ms=60_000)
    assert set(bench.look(END_MS + 100)[2:]) == {"kill"}

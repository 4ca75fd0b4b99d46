"""When the shim ends a job whose lease is over: at an instant that others can count on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cotenant_agent.keeper import shim
from cotenant_agent.keeper.shim_records import Records

DEADLINE_MS, GRACE_MS = 50_000, 20_000


class SilentProcesses:
    """A job that hears of nothing."""

    def __init__(self, *_: object) -> None:
        self.signals = 0

    def ask_to_stop(self) -> bool:
        self.signals += 1
        return True

    def hold(self, *_: object) -> bool:
        return True

    def let_go(self) -> None:
        pass


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> shim.AttemptSupervisor:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shim, "JobProcesses", SilentProcesses)
    (tmp_path / "lease.json").write_text(json.dumps({"deadline_boot_ms": DEADLINE_MS, "grace_ms": GRACE_MS}))
    return shim.AttemptSupervisor({"log_limit_bytes": 4096, "environment": {}}, Records())


def test_the_grace_of_a_lease_counts_from_its_deadline_also_after_a_standstill(
    supervisor: shim.AttemptSupervisor,
) -> None:
    supervisor._look_for_stop(DEADLINE_MS + 60_000)
    assert (supervisor._cause, supervisor._kill_at_ms) == ("fenced", DEADLINE_MS + GRACE_MS)


@pytest.mark.parametrize("content", [None, '{"deadline_boot'])
def test_a_lease_that_cannot_be_read_any_more_holds_as_it_was_last_read(
    supervisor: shim.AttemptSupervisor, tmp_path: Path, content: str | None
) -> None:
    supervisor._look_for_stop(DEADLINE_MS - 1)
    assert supervisor._kill_at_ms is None
    (tmp_path / "lease.json").unlink()
    if content is not None:
        (tmp_path / "lease.json").write_text(content)
    supervisor._look_for_stop(DEADLINE_MS)
    assert supervisor._cause == "fenced"


@pytest.mark.parametrize(("now_ms", "words"), [(DEADLINE_MS - 1, b"g"), (DEADLINE_MS, b"")])
def test_a_job_whose_lease_is_over_before_it_begins_does_not_begin(
    supervisor: shim.AttemptSupervisor, monkeypatch: pytest.MonkeyPatch, now_ms: int, words: bytes
) -> None:
    monkeypatch.setattr(shim, "boot_ms", lambda: now_ms)
    waiting, go = os.pipe()
    supervisor._let_begin(go)
    assert os.read(waiting, 1) == words
    os.close(waiting)


def test_a_stop_with_a_long_grace_does_not_outlive_the_lease_and_its_grace(
    supervisor: shim.AttemptSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop.json").write_text(json.dumps({"cause": "preempted", "grace_ms": 600_000}))
    killed: list[int] = []
    monkeypatch.setattr(supervisor, "_is_time_to_look", lambda _: False)
    for now_ms in (DEADLINE_MS, DEADLINE_MS + GRACE_MS - 1, DEADLINE_MS + GRACE_MS):
        monkeypatch.setattr(shim, "boot_ms", lambda now_ms=now_ms: now_ms)
        monkeypatch.setattr(supervisor, "_kill_everything", lambda now_ms=now_ms: killed.append(now_ms))
        supervisor._supervise()
    assert killed == [DEADLINE_MS + GRACE_MS]

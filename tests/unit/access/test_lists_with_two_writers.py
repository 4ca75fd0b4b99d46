"""Two commands that lengthen one list at once lose neither's line."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cotenant.access import list_lock, revoked, tokens
from cotenant.access.revoked import revoke
from cotenant.access.tokens import read_token_list
from cotenant.cli import certs_commands
from cotenant.errors import InputError

MEET_S = 0.3
"""So long the first reader waits for a second one, which a lock keeps away."""


def read_at_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let two readers of a list have read it before either goes on, where nothing keeps the second one out."""
    meeting, read = threading.Barrier(2), getattr(owner, name)

    def together(path: Path) -> Any:
        found = read(path)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(MEET_S)
        return found

    monkeypatch.setattr(owner, name, together)


def at_once(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)


def test_two_revocations_at_once_both_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "revoked"
    path.write_text("# lost in May\n")
    read_at_once(monkeypatch, revoked, "_read")
    at_once(lambda: revoke(path, "a" * 64, "alice"), lambda: revoke(path, "b" * 64, "bob"))
    lines = path.read_text().splitlines()
    assert lines[0] == "# lost in May"
    assert sorted(lines[1:]) == [f"{'a' * 64} alice", f"{'b' * 64} bob"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_two_tokens_made_at_once_both_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "callers"
    path.touch(mode=0o600)
    read_at_once(monkeypatch, tokens, "read_token_list")
    make: Any = certs_commands.token.callback

    def made(name: str) -> Callable[[], object]:
        return lambda: make(role="user", name=name, callers_file=path, folder=tmp_path)

    at_once(made("alice"), made("bob"))
    assert {entry.name for entry in read_token_list(path).entries} == {"alice", "bob"}


def test_a_writer_that_does_not_end_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_lock, "LOCK_WAIT_MS", 0)
    with (tmp_path / ".revoked.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another command") as refused:
            revoke(tmp_path / "revoked", "a" * 64, "alice")
    assert "--revoked-file" in str(refused.value.remedy)
    revoke(tmp_path / "revoked", "a" * 64, "alice")


@pytest.mark.parametrize("place", ["absent/revoked", "link"])
def test_a_list_whose_lock_cannot_be_made_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / ".link.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot write"):
        revoke(tmp_path / place, "a" * 64, "alice")
    assert not (tmp_path / "elsewhere").exists()

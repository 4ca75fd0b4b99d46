"""Each tenant has a user of its own, for good."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from cotenant.client_errors import InputError
from cotenant_agent.errors import CommandRefusedError, OperatorError
from cotenant_agent.isolation.job_users import JobUsers, hand_over
from cotenant_agent.settings import SETTINGS

RANGE = "700000-700002"


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_tenants_have_users_of_their_own_and_keep_them_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "job_users.json"
    users = JobUsers(path, users=RANGE)
    found = {tenant: users.find(tenant) for tenant in ("one", "", "other")}
    assert list(found.values()) == [(700_000, 700_000), (700_001, 700_001), (700_002, 700_002)]
    later = JobUsers(path, users=RANGE)
    assert {tenant: later.find(tenant) for tenant in reversed(found)} == found
    assert later.login_name("one") == "job-700000"


def test_a_tenant_without_a_user_is_refused_and_shares_none(tmp_path: Path) -> None:
    users = JobUsers(tmp_path / "job_users.json", users="700000-700000")
    users.find("one")
    with pytest.raises(CommandRefusedError, match="all 1 users of --job-users have a tenant"):
        users.find("other")
    with pytest.raises(CommandRefusedError, match="at most 128"):
        JobUsers(tmp_path / "long.json", users=RANGE).find("x" * 129)


def test_a_user_outside_of_a_changed_range_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job_users.json"
    JobUsers(path, users=RANGE).find("one")
    with pytest.raises(CommandRefusedError, match="user 700000, which is not of --job-users"):
        JobUsers(path, users="700001-700002").find("one")


@pytest.mark.parametrize("content", ["[]", "{", "\x00" * 10, '{"one": 700000' + " " * (1 << 20) + "}"])
def test_a_file_that_cannot_be_read_starts_no_job_as_anothers_user(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job_users.json"
    path.write_text(content)
    with pytest.raises(CommandRefusedError, match="cannot be read"):
        JobUsers(path, users=RANGE).find("one")


@pytest.mark.parametrize("text", ["x", "5-6", "0-2000", "2000-1000", "700000", "1000-9999999999", "5000-9000"])
def test_what_is_no_range_of_free_users_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(OperatorError, match="name FIRST-LAST"):
        JobUsers(tmp_path / "none", users=text)


def test_without_a_range_every_tenant_has_the_one_user(tmp_path: Path) -> None:
    assert JobUsers(tmp_path / "none").find("one") is None
    assert JobUsers(tmp_path / "none", user="0").find("one") == (0, 0)
    assert not (tmp_path / "none").exists()


def test_a_range_with_somebodys_number_is_refused_by_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = pwd.struct_passwd(("ada", "x", 700_001, 1, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [record])
    with pytest.raises(OperatorError, match="user ada is 700001"):
        JobUsers(tmp_path / "none", users=RANGE)


def test_only_root_may_become_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(OperatorError, match="--job-users needs an agent that runs as root"):
        JobUsers(tmp_path / "none", users=RANGE)


def test_one_user_for_all_and_one_for_each_exclude_each_other() -> None:
    flags = {"state_dir": "/tmp/x", "nvml": True, "job_user": "nobody", "job_users": RANGE}
    with pytest.raises(InputError, match="one user for all jobs"):
        SETTINGS.load(flags, {})


def test_a_checkpoint_is_handed_over_but_what_lies_elsewhere_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, elsewhere = tmp_path / "1", tmp_path / "elsewhere"
    (checkpoint / "parts").mkdir(parents=True)
    elsewhere.write_text("another user's")
    (checkpoint / "parts" / "weights").write_text("")
    (checkpoint / "hard").hardlink_to(elsewhere)
    (checkpoint / "soft").symlink_to(elsewhere)
    changed: list[str] = []
    monkeypatch.setattr(os, "chown", lambda name, *_, **__: changed.append(Path(name).name))
    hand_over(checkpoint, (os.getuid() + 1, 1))
    assert sorted(changed) == ["1", "parts", "weights"]
    changed.clear()
    hand_over(checkpoint, (os.getuid(), 1))
    assert changed == []

"""The rules for tenants are read again when their file changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from cotenant.access import watched_list
from cotenant.errors import InputError
from scheduler_service.adapters.tenants_file import FILE_LIMIT_BYTES, WatchedTenants, read_tenants
from scheduler_service.core.queue.tenants import TenantRules, parse_tenants

EDITS = ["# a note\n[tenants.vision]\nweight = 3\n[tenants.speech]\n", "[tenants.vision]\nweight = 5\n", ""]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watched_list, "LOOK_EVERY_MS", 0)
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.vision]\nweight = 3\n")
    return file


def test_other_rules_are_chosen_once_as_soon_as_the_file_has_them(file: Path) -> None:
    tenants, in_force, edits = WatchedTenants(file), [read_tenants(file)], iter(EDITS)

    def edit() -> None:
        content = next(edits, None)
        if content is None:
            raise asyncio.CancelledError
        file.write_text(content)

    async def choose(rules: TenantRules) -> None:
        in_force.append(rules)
        edit()

    edit()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(tenants.follow(lambda: in_force[-1], choose, every_ms=1), 60))
    assert [[(name, rule.weight) for name, rule in rules.rules.items()] for rules in in_force] == [
        [("vision", 3)], [("vision", 3), ("speech", 1)], [("vision", 5)], [],
    ]  # fmt: skip


class SeenRules(WatchedTenants):
    """A file that holds one thing after the other, look by look."""

    def __init__(self, contents: list[str]) -> None:
        self._contents = iter(contents)

    def rules(self) -> TenantRules:
        content = next(self._contents, None)
        if content is None:
            raise asyncio.CancelledError
        return parse_tenants(content)


def test_a_file_that_is_empty_while_it_is_written_lifts_no_quota() -> None:
    closed, other = "[tenants.vision]\ngpus = 0", "[tenants.vision]\ngpus = 4"
    in_force = [parse_tenants(closed)]

    async def choose(rules: TenantRules) -> None:
        in_force.append(rules)

    tenants = SeenRules([closed, "", other, other, other, "", closed, closed])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(tenants.follow(lambda: in_force[-1], choose, every_ms=0))
    assert [rules.quota_of("vision") for rules in in_force] == [0, 4, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[tenants.vision]\nweight = many\n", "it is not TOML"),
        (b"[tenants.vision]\nweights = 3\n", "unknown key 'weights'"),
        (b"\xff", "cannot be read"),
        (b"#" * (FILE_LIMIT_BYTES + 1), "is larger than"),
        (None, "cannot read"),
    ],
)
def test_a_broken_edit_leaves_the_rules_in_force_and_is_told_of_once(
    file: Path, content: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tenants = WatchedTenants(file)
    caplog.set_level(logging.ERROR)
    file.unlink() if content is None else file.write_bytes(content)
    assert [tenants.rules().of("vision").weight for _ in range(3)] == [3, 3, 3]
    (record,) = caplog.records
    told = vars(record)
    assert (record.message, told["flag"], bool(told["remedy"])) == ("list_not_read", "--tenants", True)
    assert reason in told["reason"]


def test_a_broken_file_is_refused_at_the_start(file: Path) -> None:
    file.write_text("[tenants.vision]\ngpus = -1\n")
    with pytest.raises(InputError, match="gpus must be a number from 0") as caught:
        WatchedTenants(file)
    assert caught.value.remedy

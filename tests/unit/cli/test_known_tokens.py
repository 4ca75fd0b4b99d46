"""Tokens that are issued and revoked while the services run, and callers who are connected then."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.access import watched_list
from cotenant.access.callers import AccessRules, CallEvidence, NotIdentifiedError, NotPermittedError
from cotenant.access.roles import Role
from cotenant.access.tokens import KnownTokens, add_token, read_token, read_token_list, revoke_tokens, token_metadata
from cotenant.errors import InputError
from scheduler_service.grpc_api.access_interceptor import AccessInterceptor
from tests.support.cli_cluster import CommandLine
from tests.support.fuzzed_roles import CallDetails, LoopContext


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_list, "LOOK_EVERY_MS", 0)


@pytest.fixture
def callers(tmp_path: Path) -> Path:
    add_token(tmp_path / "callers", tmp_path / "alice.token", Role.USER, "alice")
    return tmp_path / "callers"


def evidence(token_file: Path) -> CallEvidence:
    return CallEvidence(peer="ipv4:10.0.0.9:1", authentication={}, metadata=[token_metadata(read_token(token_file))])


def test_a_token_is_known_and_unknown_again_without_a_restart(callers: Path) -> None:
    rules, bob = AccessRules(tokens=KnownTokens(callers)), callers.with_name("bob.token")
    add_token(callers, bob, Role.USER, "bob")
    assert rules.identify(evidence(bob)).name == "bob"
    revoke_tokens(callers, ["bob"])
    with pytest.raises(NotIdentifiedError, match="unknown here"):
        rules.identify(evidence(bob))
    assert rules.identify(evidence(callers.with_name("alice.token"))).name == "alice"


def test_a_list_of_tokens_that_is_spoilt_or_gone_leaves_the_last_one_in_force(
    callers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules, alice = AccessRules(tokens=KnownTokens(callers)), callers.with_name("alice.token")
    caplog.set_level(logging.ERROR)
    for spoil in (lambda: callers.write_text("alice\n"), callers.unlink):
        spoil()
        assert rules.identify(evidence(alice)).name == "alice"
    (record,) = caplog.records
    assert (record.message, vars(record)["flag"]) == ("list_not_read", "--callers-file")


def deny(callers: Path) -> None:
    revoke_tokens(callers, ["alice"])


def demote(callers: Path) -> None:
    """The same token, with a smaller role."""
    callers.write_text(callers.read_text().replace(" user ", " viewer "))


@pytest.mark.parametrize("change", [deny, demote])
def test_an_open_stream_ends_with_its_next_message_once_its_token_has_changed(
    callers: Path, change: Callable[[Path], None]
) -> None:
    shown = token_metadata(read_token(callers.with_name("alice.token")))
    context: Any = LoopContext(metadata=(shown,))
    interceptor = AccessInterceptor(AccessRules(tokens=KnownTokens(callers)))

    async def watch(request: object, context: object) -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def find(_: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(watch)

    async def read() -> list[int]:
        details: Any = CallDetails(method="/cotenant.v1.SchedulingService/WatchJobs")
        handler: Any = await interceptor.intercept_service(find, details)
        seen = []
        with suppress(grpc.aio.AbortError):
            async for number in handler.unary_stream(b"", context):
                seen.append(number)
                change(callers)
        return seen

    assert asyncio.run(read()) == [0]
    assert context.code is grpc.StatusCode.UNAUTHENTICATED


class DeniesAll:
    """A list of revoked keys with every key."""

    def denies(self, certificate: bytes) -> bool:
        return True


def test_a_revoked_certificate_is_denied_although_a_token_in_use_is_shown_with_it(callers: Path) -> None:
    denied: Any = DeniesAll()
    rules = AccessRules(asks_certificates=True, tokens=KnownTokens(callers), revoked=denied)
    certificate = {"x509_pem_cert": [b"PEM"], "x509_common_name": [b"laptop"]}
    metadata = evidence(callers.with_name("alice.token")).metadata
    with pytest.raises(NotPermittedError, match="'laptop' was revoked"):
        rules.identify(CallEvidence(peer="ipv4:10.0.0.9:1", authentication=certificate, metadata=metadata))


def test_tokens_are_revoked_by_name_and_a_name_without_one_changes_nothing(callers: Path) -> None:
    add_token(callers, callers.with_name("bob.token"), Role.USER, "bob")
    with pytest.raises(InputError, match="no token of 'carol'") as refused:
        revoke_tokens(callers, ["alice", "carol"])
    assert refused.value.remedy == "there are: alice, bob"
    revoke_tokens(callers, ["alice"])
    assert [entry.name for entry in read_token_list(callers).entries] == ["bob"]


def test_the_verb_takes_a_token_off_the_list_and_asks_which_list_is_meant(callers: Path, cotenant: CommandLine) -> None:
    unsaid = cotenant("certs", "revoke", "alice")
    assert unsaid.code == 2
    assert "--callers-file" in unsaid.err
    assert cotenant("certs", "revoke", "alice", "--callers-file", str(callers)).code == 0
    assert not read_token_list(callers).entries


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes lists of other accounts")
def test_a_list_that_root_changes_stays_readable_for_the_account_of_the_service(callers: Path) -> None:
    os.chown(callers, 65_534, 65_534)
    add_token(callers, callers.with_name("bob.token"), Role.USER, "bob")
    assert (callers.stat().st_uid, callers.with_name("bob.token").stat().st_uid) == (65_534, 0)

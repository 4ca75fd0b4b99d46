"""Who calls is read from certificate, token or socket, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.access.callers import (
    AccessRules,
    Caller,
    CallEvidence,
    NotIdentifiedError,
    NotPermittedError,
    check_permitted,
    parse_role_uri,
)
from cotenant.access.roles import Role
from cotenant.access.tokens import (
    KnownTokens,
    issue_token,
    read_token,
    read_token_list,
    token_metadata,
    write_token_list,
)
from cotenant.errors import InputError
from tests.support.cases import for_each

TCP, UNIX = "ipv4:127.0.0.1:4711", "unix:"
SUBMIT = "/cotenant.v1.SchedulingService/SubmitJob"


def evidence(peer: str = TCP, *uris: str, common_name: str = "", token: str = "") -> CallEvidence:
    certificate = {"x509_pem_cert": [b"PEM"], "x509_common_name": [common_name.encode()]}
    shown = {**certificate, "peer_uri": [uri.encode() for uri in uris]} if uris or common_name else {}
    return CallEvidence(
        peer=peer, authentication=shown, metadata=[token_metadata(token)] if token else [("user-agent", "x")]
    )


def test_without_certificates_and_tokens_everyone_who_reaches_the_port_may_do_everything() -> None:
    caller = AccessRules().identify(evidence())
    assert caller == Caller(role=None, address="127.0.0.1")
    check_permitted(SUBMIT, caller)


def test_a_certificate_gives_role_and_name() -> None:
    caller = AccessRules(asks_certificates=True).identify(evidence(TCP, "cotenant://user/alice", common_name="mallory"))
    assert caller == Caller(role=Role.USER, name="alice", address="127.0.0.1")


@for_each(
    "uris",
    [
        ("cotenant://king/alice",),
        ("cotenant://user/",),
        ("cotenant://user/alice/../bob",),
        ("cotenant://user/al ice",),
        ("cotenant://user/" + "a" * 64,),
        ("cotenant:operator/alice",),
        ("cotenant://user/alice", "cotenant://operator/alice"),
        ("https://elsewhere.example/operator",),
    ],
)
def test_a_certificate_that_names_no_single_role_is_refused(uris: tuple[str, ...]) -> None:
    with pytest.raises(NotPermittedError, match="role") as refused:
        AccessRules(asks_certificates=True).identify(evidence(TCP, *uris, common_name="alice"))
    assert "cotenant certs issue" in refused.value.remedy


def test_other_names_next_to_the_role_do_not_count() -> None:
    rules = AccessRules(asks_certificates=True)
    assert rules.identify(evidence(TCP, "spiffe://example/x", "cotenant://viewer/screen")).role is Role.VIEWER


def test_a_certificate_without_a_role_does_everything_only_where_that_is_wanted() -> None:
    with pytest.raises(NotPermittedError, match="'alice' names no role"):
        AccessRules(asks_certificates=True).identify(evidence(common_name="alice"))
    caller = AccessRules(asks_certificates=True, serves_roleless=True).identify(evidence(common_name="alice"))
    assert (caller.role, caller.name) == (None, "alice")
    hostile = AccessRules(asks_certificates=True, serves_roleless=True).identify(
        evidence(common_name="a\x1b[2J" + "b" * 99)
    )
    assert hostile.name == "a??2J" + "b" * 58


def test_a_token_gives_role_and_name_and_an_unknown_one_is_refused_even_on_the_socket(tmp_path: Path) -> None:
    write_token_list(tmp_path / "callers", [issue_token(tmp_path / "token", Role.VIEWER, "screen")])
    rules = AccessRules(tokens=KnownTokens(tmp_path / "callers"), owner="me")
    token = read_token(tmp_path / "token")
    assert rules.identify(evidence(token=token)) == Caller(role=Role.VIEWER, name="screen", address="127.0.0.1")
    assert rules.identify(evidence(UNIX, token=token)).role is Role.VIEWER
    for peer in (TCP, UNIX):
        with pytest.raises(NotIdentifiedError, match="token is unknown"):
            rules.identify(evidence(peer, token=token[:-1] + ("A" if token[-1] != "A" else "B")))


def test_who_shows_nothing_is_the_owner_on_the_socket_and_nobody_elsewhere(tmp_path: Path) -> None:
    write_token_list(tmp_path / "callers", [])
    rules = AccessRules(tokens=KnownTokens(tmp_path / "callers"), owner="me")
    assert rules.identify(evidence(UNIX)) == Caller(role=Role.OPERATOR, name="me", address="unix")
    for peer in (TCP, "ipv6:%5B::1%5D:4711", "ipv4:unix:1", "", "nonsense"):
        with pytest.raises(NotIdentifiedError) as refused:
            rules.identify(evidence(peer))
        assert "--token-file" in refused.value.remedy
        # Who asks with stubs of his own has no such flag.
        assert "authorization: Bearer" in refused.value.remedy


def test_only_the_hash_of_a_token_lies_at_the_server(tmp_path: Path) -> None:
    write_token_list(tmp_path / "callers", [issue_token(tmp_path / "token", Role.USER, "alice")])
    assert read_token(tmp_path / "token") not in (tmp_path / "callers").read_text()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("0" * 64 + " root alice", "SHA256 ROLE NAME"),
        ("secret user alice", "SHA256 ROLE NAME"),
        ("x" * 500_000, "SHA256"),
    ],
)
def test_a_list_with_a_line_that_is_none_is_refused_without_showing_it(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "callers"
    path.write_text(f"# comment\n\n{line}\n")
    path.chmod(0o600)
    with pytest.raises(InputError, match=told) as refused:
        read_token_list(path)
    assert line not in refused.value.message


def test_a_token_that_others_read_and_a_list_that_others_write_are_refused(tmp_path: Path) -> None:
    write_token_list(tmp_path / "callers", [issue_token(tmp_path / "token", Role.USER, "alice")])
    (tmp_path / "token").chmod(0o640)
    (tmp_path / "callers").chmod(0o620)
    for read, name in ((read_token, "token"), (read_token_list, "callers")):
        with pytest.raises(InputError, match="other users reach it") as refused:
            read(tmp_path / name)
        assert refused.value.remedy == f"chmod 600 {tmp_path / name}"


def test_a_refusal_names_the_role_that_is_needed_and_how_to_get_it() -> None:
    with pytest.raises(NotPermittedError) as refused:
        check_permitted("/cotenant.v1.SchedulingService/SetPolicy", Caller(role=Role.USER, name="alice"))
    assert refused.value.message == "SetPolicy needs the role operator, and 'alice' has the role user"
    assert "cotenant certs issue" in refused.value.remedy


def test_a_role_uri_is_read_back() -> None:
    assert parse_role_uri("cotenant://node/node-1") == (Role.NODE, "node-1")
    assert parse_role_uri("cotenant://node/node-1\n") is None

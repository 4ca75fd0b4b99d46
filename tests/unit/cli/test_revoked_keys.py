"""A lost key is denied with all its certificates, while the services run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import random
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.access import watched_list
from cotenant.access.callers import AccessRules, CallEvidence, NotPermittedError
from cotenant.access.certificate_fields import key_sha256
from cotenant.access.certificates import Authority
from cotenant.access.revoked import RevokedKeys
from cotenant.access.roles import Role
from cotenant.errors import InputError
from predictor_service.grpc_api.server import interceptors_for
from scheduler_service.grpc_api.access_interceptor import AccessInterceptor as SchedulerAccess
from tests.support.cli_cluster import CommandLine
from tests.support.fuzzed_roles import CallDetails, LoopContext
from tests.support.grpc_errors import code_of, details_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
METHOD = "/cotenant.v1.PredictionService/ListDevices"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(folder=tmp_path / "authority")
    made.make()
    for name, role in (("alice", Role.USER), ("bob", Role.USER), ("predictor", Role.PREDICTOR)):
        made.issue(role, name, hosts=["127.0.0.1"] * (role is Role.PREDICTOR), days=2)
    return made


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    (tmp_path / "revoked").touch(mode=0o644)
    return tmp_path / "revoked"


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_list, "LOOK_EVERY_MS", 0)


def pem(authority: Authority, name: str) -> bytes:
    return authority.certificate_file(name).read_bytes()


def deny(cotenant: CommandLine, authority: Authority, listed: Path, name: str) -> int:
    arguments = ["--revoked-file", str(listed), "--folder", str(authority.folder)]
    return cotenant("certs", "revoke", name, *arguments).code


@pytest.mark.parametrize(
    "kind", [("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"), ("rsa:2048",), ("ed25519",)], ids=lambda kind: kind[0]
)
def test_the_key_of_a_certificate_is_found_whatever_its_kind(tmp_path: Path, kind: tuple[str, ...]) -> None:
    names = ["-keyout", str(tmp_path / "k"), "-out", str(tmp_path / "c"), "-subj", "/CN=x", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, *names], check=True, capture_output=True)
    shown = ["openssl", "pkey", "-in", str(tmp_path / "k"), "-pubout", "-outform", "DER"]
    public_key = subprocess.run(shown, check=True, capture_output=True).stdout
    assert key_sha256((tmp_path / "c").read_bytes()) == hashlib.sha256(public_key).hexdigest()


def test_spoilt_certificates_have_no_key_or_another_one_and_raise_nothing(authority: Authority) -> None:
    content = ssl.PEM_cert_to_DER_cert(pem(authority, "alice").decode())
    drawn, keys = random.Random(15), set()
    for _ in range(2_000):
        spoilt = bytearray(content[: drawn.randrange(len(content) + 1)])
        for _ in range(drawn.randrange(3)):
            if spoilt:
                spoilt[drawn.randrange(len(spoilt))] = drawn.randrange(256)
        text = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(spoilt) + b"-----END CERTIFICATE-----\n"
        keys.add(key_sha256(text))
    assert None in keys
    assert {key_sha256(one) for one in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----")} == {None}


def test_a_revoked_key_is_denied_with_its_renewed_certificate_and_a_new_one_is_not(
    authority: Authority, listed: Path, cotenant: CommandLine
) -> None:
    older = pem(authority, "alice")
    authority.renew("alice", days=3)
    renewed = pem(authority, "alice")
    keys = RevokedKeys(listed)
    assert [keys.denies(one) for one in (older, renewed)] == [False, False]
    assert deny(cotenant, authority, listed, "alice") == 0
    assert [keys.denies(one) for one in (older, renewed, pem(authority, "bob"))] == [True, True, False]
    assert deny(cotenant, authority, listed, "alice") == 2
    authority.issue(Role.USER, "alice", hosts=[], days=2)
    assert not keys.denies(pem(authority, "alice"))
    assert deny(cotenant, authority, listed, "bob") == 0
    assert len(listed.read_text().splitlines()) == 2


def test_what_is_no_certificate_is_denied_where_keys_are_revoked(listed: Path) -> None:
    assert RevokedKeys(listed).denies(b"nothing")


def test_a_list_that_is_spoilt_or_gone_leaves_the_last_one_in_force_and_is_logged_once(
    authority: Authority, listed: Path, cotenant: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    alice = pem(authority, "alice")
    deny(cotenant, authority, listed, "alice")
    keys = RevokedKeys(listed)
    caplog.set_level(logging.ERROR)
    for spoil in (lambda: listed.write_text("alice\n"), lambda: listed.chmod(0o666), listed.unlink):
        spoil()
        assert keys.denies(alice)
    assert [record.message for record in caplog.records] == ["list_not_read"]
    listed.write_text("# nobody\n\n")
    listed.chmod(0o644)
    assert not keys.denies(alice)


@pytest.mark.parametrize("content", ["alice\n", "00 alice\n", f"{'0' * 64} ../alice\n", "\xff"])
def test_a_list_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "revoked").write_text(content)
    for path in (tmp_path / "revoked", tmp_path / "absent"):
        with pytest.raises(InputError) as refused:
            RevokedKeys(path)
        assert refused.value.remedy


def test_a_caller_with_a_revoked_key_is_refused_before_its_role_is_looked_at(
    authority: Authority, listed: Path, cotenant: CommandLine
) -> None:
    shown = {"x509_pem_cert": [pem(authority, "alice")], "x509_common_name": [b"alice"]}
    evidence = CallEvidence(peer="ipv4:10.0.0.9:1", authentication=shown, metadata=())
    deny(cotenant, authority, listed, "alice")
    for serves_roleless in (False, True):
        rules = AccessRules(asks_certificates=True, serves_roleless=serves_roleless, revoked=RevokedKeys(listed))
        with pytest.raises(NotPermittedError, match="'alice' was revoked"):
            rules.identify(evidence)


@dataclass
class ShownContext(LoopContext):
    """The context of a caller who has shown a certificate."""

    shown: bytes = b""

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        uri = b"cotenant://user/alice"
        return {"x509_pem_cert": [self.shown], "peer_uri": [uri], "x509_common_name": [b"alice"]}


def test_a_stream_that_is_open_ends_with_its_next_message(
    authority: Authority, listed: Path, cotenant: CommandLine
) -> None:
    context = ShownContext(metadata=(), shown=pem(authority, "alice"))
    interceptor = SchedulerAccess(AccessRules(asks_certificates=True, revoked=RevokedKeys(listed)))

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
                deny(cotenant, authority, listed, "alice")
        return seen

    assert asyncio.run(read()) == [0]
    assert context.code is grpc.StatusCode.PERMISSION_DENIED
    assert "was revoked" in context.details


@contextmanager
def serving(authority: Authority, rules: AccessRules) -> Iterator[str]:
    """One method behind the predictor's own interceptors, over mutual TLS."""
    files = (authority.key_file("predictor"), authority.certificate_file("predictor"), authority.certificate_file("ca"))
    key, certificate, trusted = (path.read_bytes() for path in files)
    server = grpc.server(futures.ThreadPoolExecutor(2), interceptors=interceptors_for(rules))
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: b"answer")
    service, _, name = METHOD[1:].partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], trusted, require_client_auth=True)
    )
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_a_connection_that_is_open_is_denied_from_its_next_call_on(
    authority: Authority, listed: Path, cotenant: CommandLine
) -> None:
    ca, key, own = (
        path.read_bytes()
        for path in (authority.certificate_file("ca"), authority.key_file("alice"), authority.certificate_file("alice"))
    )
    rules = AccessRules(asks_certificates=True, revoked=RevokedKeys(listed))
    with (
        serving(authority, rules) as address,
        grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, own)) as channel,
    ):
        call: Any = channel.unary_unary(METHOD)
        assert call(b"", timeout=90) == b"answer"
        deny(cotenant, authority, listed, "alice")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=90)
    assert code_of(refused.value) is grpc.StatusCode.PERMISSION_DENIED
    assert "was revoked" in details_of(refused.value)

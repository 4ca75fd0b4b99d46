"""`cotenant certs` leads from nothing to certificates with roles, and renews them with the same keys."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cotenant.access.certificates import Authority
from cotenant.access.roles import Role
from cotenant.access.tokens import read_token, read_token_list
from tests.support.cli_cluster import CommandLine

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(folder=tmp_path_factory.mktemp("authority"))
    authority.make()
    hosts = ["scheduler.example", "127.0.0.1", "::1"]
    authority.issue(Role.SCHEDULER, "scheduler", hosts=hosts, days=10)
    authority.issue(Role.NODE, "node-1", hosts=[], days=300)
    return authority


def shown(authority: Authority, name: str, *flags: str) -> str:
    command = ["openssl", "x509", "-in", str(authority.certificate_file(name)), "-noout", *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_certificate_is_signed_names_its_role_and_hosts_and_is_no_authority(made: Authority) -> None:
    for name, wanted in (
        ("scheduler", ("URI:cotenant://scheduler/scheduler", "DNS:scheduler.example", "IP Address:127.0.0.1")),
        ("node-1", ("URI:cotenant://node/node-1", "DNS:node-1")),
    ):
        text = shown(made, name, "-ext", "subjectAltName,basicConstraints,extendedKeyUsage")
        assert all(part in text for part in (*wanted, "CA:FALSE", "TLS Web Client Authentication"))
        assert ("TLS Web Server Authentication" in text) == (name == "scheduler")
        verify = ["openssl", "verify", "-x509_strict", "-CAfile", str(made.certificate_file("ca"))]
        subprocess.run([*verify, str(made.certificate_file(name))], check=True, capture_output=True)
    assert made.role_of("node-1") is Role.NODE


def test_keys_are_private_and_nothing_else_is_left(made: Authority) -> None:
    assert {path.stat().st_mode & 0o777 for path in made.folder.glob("*.key")} == {0o600}
    names = {"ca", "scheduler", "node-1"}
    assert {path.name for path in made.folder.iterdir()} == {f"{n}{e}" for n in names for e in (".pem", ".key")}


def test_renewing_keeps_key_role_and_names_and_takes_those_that_end_soon(
    made: Authority, cotenant: CommandLine
) -> None:
    before = {name: shown(made, name, "-pubkey", "-ext", "subjectAltName") for name in ("scheduler", "node-1")}
    serials = {name: shown(made, name, "-serial") for name in before}
    renewed = cotenant("certs", "renew", "--within-days", "30", "--days", "100", "--folder", str(made.folder))
    assert renewed.out.split() == [str(made.certificate_file("scheduler"))]
    assert {name: shown(made, name, "-pubkey", "-ext", "subjectAltName") for name in before} == before
    assert {name: shown(made, name, "-serial") != serial for name, serial in serials.items()} == {
        "scheduler": True, "node-1": False,
    }  # fmt: skip
    assert not made.ends_within("scheduler", days=99)
    listed = cotenant("certs", "list", "--within-days", "200", "--folder", str(made.folder)).out
    lines = [line.split() for line in listed.splitlines()]
    assert [(line[:3], line[4:]) for line in lines] == [
        (["node-1", "node", "until"], []),
        (["scheduler", "scheduler", "until"], ["ends", "within", "200", "days"]),
    ]
    days = [datetime.date.fromisoformat(line[3]) for line in lines]
    assert days[0] - days[1] == datetime.timedelta(days=200)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["issue", "user", "../alice"], "cannot be a name"),
        (["issue", "user", "ca"], "cannot be a name"),
        (["issue", "user", "node-1"], "there already"),
        (["issue", "scheduler", "s", "--host", "a,DNS:b"], "neither a host nor an IP address"),
        (["issue", "scheduler", "s", "--host", "a\nbasicConstraints=CA:TRUE"], "neither a host nor an IP address"),
        (["issue", "root", "alice"], "'root' is not one of"),
        (["issue", "user", "alice", "--days", "0"], "--days"),
        (["renew", "nobody"], "there are: node-1, scheduler"),
        (["init"], "there already"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    made: Authority, cotenant: CommandLine, arguments: list[str], told: str
) -> None:
    before = sorted(made.folder.iterdir())
    outcome = cotenant("certs", *arguments, "--folder", str(made.folder))
    assert outcome.code == 2, outcome.err
    assert told in " ".join(outcome.err.split())
    assert sorted(made.folder.iterdir()) == before


def test_without_an_authority_the_remedy_names_the_verb_that_makes_one(tmp_path: Path, cotenant: CommandLine) -> None:
    outcome = cotenant("certs", "issue", "user", "alice", "--folder", str(tmp_path))
    assert outcome.code == 2
    assert "cotenant certs init" in outcome.err


def test_a_token_is_private_and_a_new_one_takes_the_place_of_the_old(tmp_path: Path, cotenant: CommandLine) -> None:
    callers = tmp_path / "callers"

    def issue(role: str, name: str) -> int:
        return cotenant("certs", "token", role, name, "--callers-file", str(callers), "--folder", str(tmp_path)).code

    assert issue("viewer", "screen") == 0
    old = read_token(tmp_path / "screen.token")
    assert [issue("user", "alice"), issue("viewer", "screen"), issue("user", "../x")] == [0, 0, 2]
    tokens = read_token_list(callers)
    assert tokens.find(old) is None
    assert {(entry.role, entry.name) for entry in tokens.entries} == {("viewer", "screen"), ("user", "alice")}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(("days", "state"), [(20, "warning"), (200, "ok")])
def test_doctor_says_when_the_own_certificate_ends_soon(
    tmp_path: Path, cotenant: CommandLine, days: int, state: str
) -> None:
    authority = Authority(folder=tmp_path)
    authority.make()
    authority.issue(Role.USER, "alice", hosts=[], days=days)
    flags = ["--tls-ca-file", "ca.pem", "--tls-certificate-file", "alice.pem", "--tls-key-file", "alice.key"]
    own = [flag if flag.startswith("--") else str(tmp_path / flag) for flag in flags]
    findings = json.loads(cotenant("doctor", "-o", "json", *own).out)["findings"]
    assert [finding["state"] for finding in findings if finding["check"] == "certificate"] == [state]


def test_an_empty_list_says_so(tmp_path: Path, cotenant: CommandLine) -> None:
    outcome = cotenant("certs", "list", "--folder", str(tmp_path))
    assert (outcome.code, outcome.out) == (0, "")
    assert f"no certificate was issued in {tmp_path}" in outcome.err

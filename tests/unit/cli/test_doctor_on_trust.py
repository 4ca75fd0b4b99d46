"""`cotenant doctor` says by what jobs are not kept apart, and which certificates end soon, each with a remedy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.cli import doctor_command
from cotenant.cli.isolation_checks import check_local_isolation, check_node_isolation
from cotenant.tls_probe import TlsFiles, certificate_end_s
from cotenant.v1 import scheduling_pb2
from tests.support.certificates import make_authority, make_certificate
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

WHOLE = ("shim_lease", "watchdog", "cgroup_kill", "cgroup_freezer", "pid_namespace", "hidden_state")
DOCKER = {
    "gpus": [],
    "enforcements": ["shim_lease", "watchdog", "cgroup_memory", "stop_signal", "sealed_files"],
    "no_namespaces": "unshare: Operation not permitted",
    "is_root": True,
}


@pytest.fixture(autouse=True)
def no_agent_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COTENANT_AGENT_JOB_USERS", "COTENANT_AGENT_JOB_USER"):
        monkeypatch.delenv(name, raising=False)


def probed(**changed: Any) -> dict[str, Any]:
    return {"gpus": [], "enforcements": [*WHOLE], "no_namespaces": "", "is_root": False} | changed


def local(**changed: Any) -> dict[str, str]:
    found = list(check_local_isolation(probed(**changed)))
    assert all(one.state == "warning" and one.remedy for one in found)
    return {one.check: f"{one.found} -> {one.remedy}" for one in found}


def test_a_machine_that_has_everything_is_not_talked_about() -> None:
    assert local() == {}


def test_refused_namespaces_are_named_with_the_reason_and_what_holds_instead() -> None:
    told = local(no_namespaces="unshare: Operation not permitted")["namespaces"]
    assert "Operation not permitted" in told
    assert "sealed instead" in told
    assert "user.max_user_namespaces" in told


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("cgroup_freezer",), ["no cgroup_kill"]),
        (("cgroup_kill", "stop_signal"), ["no cgroup_freezer"]),
        (("stop_signal",), ["no cgroup_kill", "no cgroup_freezer"]),
        # Under MPS nothing is paused, by whatever means.
        (("cgroup_kill",), []),
    ],
)
def test_control_groups_that_neither_kill_nor_freeze_are_named(words: tuple[str, ...], named: list[str]) -> None:
    told = local(enforcements=words).get("control groups", "")
    assert [word for word in ("no cgroup_kill", "no cgroup_freezer") if word in told] == named
    assert ("Delegate=yes" in told) == bool(named)


def test_root_is_warned_unless_its_agents_have_users_for_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--job-users" in local(is_root=True)["job users"]
    monkeypatch.setenv("COTENANT_AGENT_JOB_USERS", "200000-200999")
    assert local(is_root=True) == {}


def test_nodes_that_lack_something_are_named_in_one_finding() -> None:
    names = [f"n{number}" for number in range(7)]
    nodes = [scheduling_pb2.Node(node_id=name, enforcements=["pid_namespace", "stop_signal"]) for name in names]
    [found] = check_node_isolation([*nodes, scheduling_pb2.Node(node_id="whole", enforcements=WHOLE)])
    assert found.found == (
        "without cgroup_kill: n0, n1, n2, n3, n4 and 2 more; without cgroup_freezer: n0, n1, n2, n3, n4 and 2 more"
    )
    assert "cotenant doctor" in found.remedy
    assert list(check_node_isolation([])) == []


def test_doctor_shows_both(cotenant: CommandLine, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess(args=[], returncode=0, stdout=json.dumps(DOCKER), stderr="")
    monkeypatch.setattr(doctor_command, "run_captured", lambda *_, **__: done)
    findings = json.loads(cotenant("doctor", "-o", "json").out)["findings"]
    warned = {one["check"] for one in findings if one["state"] == "warning"}
    assert {"namespaces", "control groups", "job users", "node limits"} <= warned


@contextmanager
def serving_tls(folder: Path, name: str) -> Iterator[str]:
    """A gRPC server with that certificate, which asks for one of its callers."""
    certificate, key, authority = ((folder / file).read_bytes() for file in (f"{name}.pem", f"{name}.key", "ca.pem"))
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_the_end_of_a_services_certificate_is_seen_before_it_comes(
    tmp_path: Path, cotenant: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, "scheduler", alternative_names="IP:127.0.0.1", days=2)
    files = TlsFiles(ca_file=tmp_path / "ca.pem")
    with serving_tls(tmp_path, "scheduler") as address:
        left_s = certificate_end_s(address, files)
        assert left_s is not None
        assert 86_400 < left_s <= 2 * 86_400
        monkeypatch.setenv("COTENANT_SCHEDULER", address)
        findings = json.loads(cotenant("doctor", "-o", "json", "--tls-ca-file", str(tmp_path / "ca.pem")).out)
        [found] = [one for one in findings["findings"] if one["check"] == "service certificate"]
        assert "scheduler ends in 47 hours" in found["found"]
        assert "certs renew" in found["remedy"]
    assert certificate_end_s(address, files) is None
    assert certificate_end_s("unix:/nowhere", files) is None

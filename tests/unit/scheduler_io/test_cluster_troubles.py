"""What an operator should look after is told with the list of nodes, not in logs alone."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest

from cotenant import __version__
from cotenant.access import watched_list
from cotenant.access.callers import AccessRules
from cotenant.access.certificate_fields import validity
from cotenant.access.certificates import Authority
from cotenant.access.revoked import RevokedKeys
from cotenant.access.roles import Role
from cotenant.access.tokens import KnownTokens
from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc, resources_pb2, scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.adapters.agents.agent_refusals import RECENT_MS, Refusal
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.predictor import predictor_client
from scheduler_service.adapters.predictor.predictor_client import PredictorClient, open_channel
from scheduler_service.commands import running_scheduler as running
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import PredictorError
from scheduler_service.grpc_api import cluster_troubles
from scheduler_service.grpc_api.agents import node_agent_servicer
from scheduler_service.grpc_api.cluster_troubles import (
    AUTHORITY,
    NAMED_MAX,
    Watched,
    own_certificates,
    trouble_warnings,
)
from tests.support.agent_streams import hello, until
from tests.support.daemons import free_ports
from tests.support.live_scheduler import running_scheduler

TIMEOUT_S = 90.0
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000
"""By the clock of the scheduler that reads heartbeats: it stands, since a busy machine reads them late."""
Said = SimpleQueue[node_agent_pb2.ConnectRequest | None]


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agent_servicer, "read_wall_ms", lambda: NOW_MS)


def said(messages: Said) -> Iterator[node_agent_pb2.ConnectRequest]:
    yield from iter(messages.get, None)


def dialled(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    return grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)


@contextmanager
def agent(
    address: str,
    *,
    clock_ahead_ms: int | None = 0,
    version: str = __version__,
    instance_id: str = "one",
    credentials: grpc.ChannelCredentials | None = None,
) -> Iterator[None]:
    """An agent of node-1 that has joined and sent one heartbeat."""
    messages: Said = SimpleQueue()
    greeting = hello("node-1", instance_id=instance_id)
    greeting.agent_version = version
    beat = node_agent_pb2.Heartbeat(sequence=1)
    if clock_ahead_ms is not None:
        beat.wall_clock_ms = NOW_MS + clock_ahead_ms
    messages.put(node_agent_pb2.ConnectRequest(hello=greeting))
    messages.put(node_agent_pb2.ConnectRequest(heartbeat=beat))
    with dialled(address, credentials) as channel:
        answers = node_agent_pb2_grpc.NodeAgentServiceStub(channel).Connect(said(messages), timeout=TIMEOUT_S)
        try:
            next(answer for answer in answers if answer.HasField("heartbeat_ack"))
            yield
        finally:
            messages.put(None)


def troubles(address: str, credentials: grpc.ChannelCredentials | None = None) -> dict[str, str]:
    with dialled(address, credentials) as channel:
        stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
        found = stub.ListNodes(scheduling_pb2.ListNodesRequest(), timeout=TIMEOUT_S).troubles
    return by_code(found)


def by_code(found: Iterable[resources_pb2.Warning]) -> dict[str, str]:
    return {one.code: one.message for one in found}


def test_a_node_whose_clock_is_off_by_more_than_a_minute_is_named_until_it_is_right(tmp_path: Path) -> None:
    with running_scheduler(tmp_path) as address:
        for ahead_ms, told in (
            (2 * HOUR_MS, "the clock of node node-1 is 2h00m ahead of the scheduler's"),
            (-61_000, "the clock of node node-1 is 1m01s behind the scheduler's"),
        ):
            with agent(address, clock_ahead_ms=ahead_ms):
                assert troubles(address)["CLOCK_OFF"].startswith(told)
        for unsuspicious_ms in (0, 60_000, -60_000, None):
            with agent(address, clock_ahead_ms=unsuspicious_ms):
                assert troubles(address) == {}


@pytest.mark.parametrize(
    ("heartbeats_s", "is_told"),
    [((0, -300), False), ((0, -300, 0), False), ((0, -300, -300), True), ((0, 300), True), ((300, 0, 0), False)],
    ids=["one that waited", "and the next one", "a clock set back", "a clock set ahead", "one that is right again"],
)
def test_one_heartbeat_that_waited_long_says_nothing_of_a_clock(heartbeats_s: Sequence[int], is_told: bool) -> None:
    sessions = AgentSessions()
    session = sessions.open("node-1", now_ms=0)
    for ahead_s in heartbeats_s:
        session.note_clock(ahead_s * 1_000)
    found = trouble_warnings(Watched(), ClusterState(), sessions, now_ms=0, sees_all=True)
    assert [one.code for one in found] == ["CLOCK_OFF"] * is_told


def test_a_second_agent_with_the_name_of_a_node_is_told_while_the_first_one_goes_on(tmp_path: Path) -> None:
    with running_scheduler(tmp_path) as address, agent(address):
        with pytest.raises(grpc.RpcError), agent(address, instance_id="two"):
            pass
        found = troubles(address)
        assert list(found) == ["SECOND_INSTANCE"]
        told = r"node node-1, last \d+s ago: two agents use one node id; the second is refused"
        assert re.match(told, found["SECOND_INSTANCE"])


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.8.12", "node-1: version 0.8.12 of the agent, the scheduler has 0.9.0; upgrade the agents"),
        ("0.10.0", "node-1: version 0.10.0 of the agent, the scheduler has 0.9.0; upgrade the scheduler"),
        ("", "node-1: version unknown of the agent, the scheduler has 0.9.0; upgrade the agents"),
    ],
)
def test_an_agent_of_another_version_is_told_with_what_to_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    monkeypatch.setattr(cluster_troubles, "__version__", "0.9.0")
    with running_scheduler(tmp_path) as address, agent(address, version=version):
        assert troubles(address)["AGENT_VERSION"].startswith(told)


def test_a_file_of_tenants_that_cannot_be_read_is_told_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_list, "LOOK_EVERY_MS", 0)
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.vision]\nweight = 3\n")
    with running_scheduler(tmp_path / "state", tenants=file) as address:
        assert troubles(address) == {}
        file.write_text("[tenants.vision\n")
        told = troubles(address)["LIST_NOT_READ"]
        assert f"the tenants in {file} are wrong: it is not TOML" in told
        assert "what it held before stays in force" in told
        file.unlink()
        assert "LIST_NOT_READ" in troubles(address)
        file.write_text("[tenants.vision]\nweight = 3\n")
        assert troubles(address) == {}


def test_lists_of_tokens_and_of_revoked_keys_that_cannot_be_read_are_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_list, "LOOK_EVERY_MS", 0)
    tokens, revoked = tmp_path / "callers", tmp_path / "revoked"
    for file in (tokens, revoked):
        file.touch(mode=0o600)
    rules = AccessRules(tokens=KnownTokens(tokens), revoked=RevokedKeys(revoked))
    assert rules.list_faults() == []
    tokens.write_text("no token\n")
    revoked.unlink()
    faults = rules.list_faults()
    assert [str(file) in fault for file, fault in zip((tokens, revoked), faults, strict=True)] == [True, True]


def test_what_files_of_rules_hold_is_not_told_to_users() -> None:
    watched = Watched(list_faults=lambda: ["tenants.toml, line 3: alice"])
    for sees_all in (True, False):
        found = trouble_warnings(watched, ClusterState(), AgentSessions(), now_ms=0, sees_all=sees_all)
        assert [one.code for one in found] == ["LIST_NOT_READ"] * sees_all


def test_a_full_disk_and_a_predictor_that_does_not_answer_are_told_first() -> None:
    watched = Watched(
        storage_failure=lambda: "the disk is full",
        predictor_fault=lambda: PredictorError("the predictor did not answer in time", code="PREDICTOR_TIMEOUT"),
    )
    found = trouble_warnings(watched, ClusterState(), AgentSessions(), now_ms=0, sees_all=True)
    assert [one.code for one in found] == ["STATE_UNWRITABLE", "PREDICTOR_TIMEOUT"]
    assert "the disk is full" in found[0].message


def test_refusals_are_told_for_two_minutes_and_of_many_nodes_twenty() -> None:
    sessions = AgentSessions()
    for number in range(NAMED_MAX + 5):
        sessions.refusals.note(f"node-{number}", Refusal.FOREIGN_CLUSTER, now_ms=1_000)
    found = trouble_warnings(Watched(), ClusterState(), sessions, now_ms=1_000 + RECENT_MS - 1, sees_all=True)
    assert len(found) == NAMED_MAX + 1
    assert found[-1].message == "5 more of that kind"
    assert trouble_warnings(Watched(), ClusterState(), sessions, now_ms=1_000 + RECENT_MS, sees_all=True) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
@pytest.mark.parametrize(("days", "soon_days"), [(365, 14), (6, 2)])
def test_certificates_of_nodes_and_of_the_scheduler_are_told_of_before_they_end(
    tmp_path: Path, days: int, soon_days: int
) -> None:
    authority = Authority(folder=tmp_path / "authority")
    authority.make()
    authority.issue(Role.NODE, "node-1", hosts=(), days=days)
    file = authority.certificate_file("node-1")
    valid = validity(file.read_bytes())
    assert valid is not None
    assert valid.ends_at_ms - valid.begins_at_ms == days * DAY_MS
    sessions = AgentSessions()
    sessions.open("node-1", now_ms=0).certificate = valid
    sessions.open("node-2", now_ms=0)
    own = own_certificates({"the scheduler": file, AUTHORITY: file, "missing": tmp_path / "none", "not stated": None})
    watched = Watched(certificates=own)

    def told(before_end_ms: int) -> list[str]:
        at = replace(watched, wall_ms=lambda: valid.ends_at_ms - before_end_ms)
        return [one.message for one in trouble_warnings(at, ClusterState(), sessions, now_ms=0, sees_all=True)]

    assert told(soon_days * DAY_MS + 1_000) == []
    ending = told(soon_days * DAY_MS - 1_000)
    assert [text.split(" ends in ")[0] for text in ending] == [
        "the certificate of the scheduler",
        f"the certificate of {AUTHORITY}",
        "the certificate of node node-1",
    ]
    assert ["certs init" in text for text in ending] == [False, True, False]
    assert "has ended" in told(-1_000)[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_the_certificate_that_an_agent_shows_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(folder=tmp_path / "authority")
    authority.make()
    authority.issue(Role.SCHEDULER, "scheduler", hosts=["127.0.0.1"], days=365)
    authority.issue(Role.NODE, "node-1", hosts=(), days=6)
    authority.issue(Role.OPERATOR, "ann", hosts=(), days=365)
    ca_file, ahead_ms = authority.certificate_file("ca"), [0]
    monkeypatch.setattr(running, "read_wall_ms", lambda: round(time.time() * 1_000) + ahead_ms[0])
    own = {
        "tls_certificate_file": authority.certificate_file("scheduler"),
        "tls_key_file": authority.key_file("scheduler"),
        "client_ca_file": ca_file,
    }

    def shown_by(name: str) -> grpc.ChannelCredentials:
        files = (ca_file, authority.key_file(name), authority.certificate_file(name))
        return grpc.ssl_channel_credentials(*[file.read_bytes() for file in files])

    with running_scheduler(tmp_path / "state", **own) as address, agent(address, credentials=shown_by("node-1")):
        assert troubles(address, shown_by("ann")) == {}
        ahead_ms[0] = 5 * DAY_MS
        told = troubles(address, shown_by("ann"))["CERTIFICATE_ENDS"]
        assert told.startswith("the certificate of node node-1 ends in 23h")


def test_whether_the_predictor_answers_is_known_without_a_question_and_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        client = PredictorClient(open_channel(address), deadline_s=1)
        watching = asyncio.ensure_future(client.watch())
        await until(lambda: client.fault is not None, "the predictor is missed")
        assert client.fault is not None
        assert client.fault.code == "PREDICTOR_UNAVAILABLE"
        server = grpc.aio.server()
        assert server.add_insecure_port(address)
        await server.start()
        # It offers no health; what answers so does answer.
        await until(lambda: client.fault is None, "the predictor is back")
        watching.cancel()
        await client.close()
        await server.stop(None)

    caplog.set_level("INFO")
    # While it is away it is looked for often.
    monkeypatch.setattr(predictor_client, "HEALTH_INTERVAL_S", 1e6)
    monkeypatch.setattr(predictor_client, "HEALTH_AWAY_INTERVAL_S", 0.01)
    asyncio.run(work())
    assert [record.message for record in caplog.records if record.message.startswith("predictor_")] == [
        "predictor_away",
        "predictor_back",
    ]

"""TLS and mutual TLS: unknown clients are refused, and an agent cannot claim to be another node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cotenant.v1 import node_agent_pb2, node_agent_pb2_grpc, scheduling_pb2, scheduling_pb2_grpc
from tests.support.certificates import make_authority, make_certificate
from tests.support.grpc_errors import code_of, details_of
from tests.support.scheduler_process import SchedulerProcess, tls_scheduler

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    make_certificate(folder, "server", alternative_names="DNS:localhost,IP:127.0.0.1")
    make_certificate(folder, "node-1", alternative_names="DNS:node-1", role="node")
    make_certificate(folder, "alice", alternative_names="DNS:alice,DNS:node-2", role="user")
    make_certificate(folder, "node-2", alternative_names="DNS:node-2")
    return folder


@pytest.fixture(scope="module")
def scheduler(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    with tls_scheduler(tmp_path_factory.mktemp("scheduler"), certificates) as process:
        yield process


def channel_to(scheduler: SchedulerProcess, certificates: Path, *, name: str = "") -> grpc.Channel:
    authority = (certificates / "ca.pem").read_bytes()
    key = (certificates / f"{name}.key").read_bytes() if name else None
    chain = (certificates / f"{name}.pem").read_bytes() if name else None
    return grpc.secure_channel(scheduler.address, grpc.ssl_channel_credentials(authority, key, chain))


def list_jobs(channel: grpc.Channel) -> None:
    stub = scheduling_pb2_grpc.SchedulingServiceStub(channel)
    stub.ListJobs(scheduling_pb2.ListJobsRequest(), timeout=90)


def hello(channel: grpc.Channel, node_id: str) -> node_agent_pb2.ConnectResponse:
    stub = node_agent_pb2_grpc.NodeAgentServiceStub(channel)
    message = node_agent_pb2.ConnectRequest(hello=node_agent_pb2.Hello(node_id=node_id))
    return next(iter(stub.Connect(iter([message]), timeout=90)))


def test_a_node_joins_and_a_user_lists_jobs_and_neither_does_what_the_other_may(
    scheduler: SchedulerProcess, certificates: Path
) -> None:
    with channel_to(scheduler, certificates, name="node-1") as channel:
        assert hello(channel, "node-1").HasField("welcome")
        with pytest.raises(grpc.RpcError) as caught:
            list_jobs(channel)
    assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED
    assert "ListJobs needs the role operator or user or viewer, and 'node-1' has the role node" in details_of(
        caught.value
    )
    with channel_to(scheduler, certificates, name="alice") as channel:
        list_jobs(channel)
        with pytest.raises(grpc.RpcError) as caught:
            hello(channel, "node-2")
    assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED


def test_a_certificate_without_a_role_is_refused_with_the_remedy(
    scheduler: SchedulerProcess, certificates: Path
) -> None:
    with channel_to(scheduler, certificates, name="node-2") as channel, pytest.raises(grpc.RpcError) as caught:
        hello(channel, "node-2")
    assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED
    assert "'node-2' names no role; `cotenant certs issue ROLE NAME` makes" in details_of(caught.value)


def test_an_agent_cannot_claim_to_be_another_node(scheduler: SchedulerProcess, certificates: Path) -> None:
    with channel_to(scheduler, certificates, name="node-1") as channel, pytest.raises(grpc.RpcError) as caught:
        hello(channel, "node-2")
    assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert "is of node 'node-1', not of 'node-2'" in details_of(caught.value)


def test_unknown_clients_stay_out(scheduler: SchedulerProcess, certificates: Path) -> None:
    with channel_to(scheduler, certificates) as channel, pytest.raises(grpc.RpcError) as caught:
        list_jobs(channel)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(scheduler.address) as plain, pytest.raises(grpc.RpcError) as refused:
        list_jobs(plain)
    assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE

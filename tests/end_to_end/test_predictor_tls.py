"""TLS of the predictor: clients of its authority are served, all others are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cotenant.client_errors import InputError
from cotenant.tls_settings import check_exposure
from cotenant.v1 import prediction_pb2 as messages
from predictor_service.grpc_api.server import ServerOptions
from tests.support.certificates import make_authority, make_certificate
from tests.support.grpc_errors import code_of
from tests.support.predictor_service import listening_server, stub_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    make_authority(folder, "untrusted")
    make_certificate(folder, "server", alternative_names="DNS:localhost,IP:127.0.0.1")
    make_certificate(folder, "elsewhere", alternative_names="DNS:elsewhere.example", role="viewer")
    return folder


@pytest.fixture(scope="module")
def address(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening_server(tmp_path_factory.mktemp("tls"), options=tls_options(certificates, "server")) as served:
        yield served


def tls_options(certificates: Path, name: str) -> ServerOptions:
    return ServerOptions(
        address="127.0.0.1:0",
        tls_certificate_file=certificates / f"{name}.pem",
        tls_key_file=certificates / f"{name}.key",
    )


def list_devices(channel: grpc.Channel) -> int:
    return len(stub_of(channel).ListDevices(messages.ListDevicesRequest(), timeout=90).devices)


def test_a_client_that_trusts_the_authority_is_served(address: str, certificates: Path) -> None:
    trusted = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes())
    with grpc.secure_channel(address, trusted) as channel:
        assert list_devices(channel) > 0


def test_plain_text_and_another_authority_stay_out(address: str, certificates: Path) -> None:
    untrusted = grpc.ssl_channel_credentials((certificates / "untrusted.pem").read_bytes())
    for channel in (grpc.insecure_channel(address), grpc.secure_channel(address, untrusted)):
        with channel, pytest.raises(grpc.RpcError) as caught:
            list_devices(channel)
        assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


def test_a_server_with_another_servers_certificate_is_not_trusted(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trusted = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes())
    folder = tmp_path_factory.mktemp("elsewhere")
    with (
        listening_server(folder, options=tls_options(certificates, "elsewhere")) as served,
        grpc.secure_channel(served, trusted) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        list_devices(channel)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


def test_a_certificate_without_its_key_is_refused(certificates: Path) -> None:
    options = ServerOptions(address="0.0.0.0:0", tls_certificate_file=certificates / "server.pem")
    with pytest.raises(InputError, match="certificate and its key"):
        check_exposure(options.address, options)


def test_with_an_authority_of_clients_only_their_holders_are_served(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = replace(tls_options(certificates, "server"), client_ca_file=certificates / "ca.pem")
    authority = (certificates / "ca.pem").read_bytes()
    own = (certificates / "elsewhere.key").read_bytes(), (certificates / "elsewhere.pem").read_bytes()
    with listening_server(tmp_path_factory.mktemp("mutual"), options=options) as served:
        with grpc.secure_channel(served, grpc.ssl_channel_credentials(authority, *own)) as channel:
            assert list_devices(channel) > 0
        anonymous = grpc.secure_channel(served, grpc.ssl_channel_credentials(authority))
        with anonymous as channel, pytest.raises(grpc.RpcError) as caught:
            list_devices(channel)
    assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE


def test_an_authority_of_clients_without_a_certificate_is_refused(certificates: Path) -> None:
    with pytest.raises(InputError, match="over TLS only"):
        check_exposure("127.0.0.1:0", ServerOptions(address="127.0.0.1:0", client_ca_file=certificates / "ca.pem"))


def test_another_address_than_loopback_is_not_served_to_callers_whom_nobody_knows(certificates: Path) -> None:
    options = replace(tls_options(certificates, "server"), address="0.0.0.0:0")
    with pytest.raises(InputError, match="callers are not identified") as refused:
        check_exposure(options.address, options)
    assert "--client-ca-file or --callers-file" in refused.value.remedy
    check_exposure(options.address, replace(options, client_ca_file=certificates / "ca.pem"))
    check_exposure(options.address, replace(options, insecure=True))

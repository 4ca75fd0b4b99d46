"""A server whose certificate and key do not belong together says so, in place of blaming the port."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.grpc_credentials import server_credentials
from scheduler_service.settings import Settings
from tests.support.cases import for_each
from tests.support.certificates import make_authority, make_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_authority(made)
    for name in ("scheduler", "alice"):
        make_certificate(made, name, alternative_names=f"DNS:{name}", role="scheduler")
    (made / "text.pem").write_text("no PEM")
    return made


def settings(folder: Path, authority: str, certificate: str, key: str) -> Settings:
    return Settings(
        tls_certificate_file=folder / certificate, tls_key_file=folder / key, client_ca_file=folder / authority
    )


@for_each(
    ("authority", "certificate", "key"),
    [
        ("ca.pem", "scheduler.pem", "alice.key"),
        ("ca.pem", "text.pem", "scheduler.key"),
        ("ca.pem", "scheduler.pem", "text.pem"),
        ("text.pem", "scheduler.pem", "scheduler.key"),
    ],
)
def test_files_that_cannot_serve_are_named_before_a_port_is_taken(
    folder: Path, authority: str, certificate: str, key: str
) -> None:
    with pytest.raises(InputError, match="the TLS files cannot be used") as refused:
        server_credentials(settings(folder, authority, certificate, key))
    assert certificate in refused.value.message
    assert "--tls-key-file" in refused.value.remedy
    assert "--client-ca-file" in refused.value.remedy


def test_a_certificate_with_its_key_serves(folder: Path) -> None:
    assert server_credentials(settings(folder, "ca.pem", "scheduler.pem", "scheduler.key")) is not None

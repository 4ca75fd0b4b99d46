"""The flags of TLS and who may be served without it: declared once for all programs.

A program has one identity, its certificate and key, whether it serves or calls; it trusts one authority of the
services that it calls, and as a server one authority of its callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from cotenant.addresses import is_loopback, split_address
from cotenant.errors import InputError
from cotenant.option_types import OptionalFile
from cotenant.program_settings import setting

# Name -> default and meaning.
_DECLARED: Mapping[str, tuple[object, str]] = MappingProxyType(
    {
        "tls_ca_file": (None, "PEM authority of the services that are called; without it plain text."),
        "tls_certificate_file": (None, "PEM certificate of this program, with its chain."),
        "tls_key_file": (None, "PEM key of that certificate, without a password."),
        "client_ca_file": (None, "PEM authority of callers; they must then show a certificate of it."),
        "insecure": (False, "Allow other addresses than loopback without TLS."),
        "token_file": (None, "Token that is shown to the services that are called; over TLS or to this machine only."),
        "callers_file": (
            None,
            "Tokens of callers, a line SHA256 ROLE NAME each; with client_ca_file they need a certificate too.",
        ),
        "revoked_file": (None, "Keys whose certificates are denied; `cotenant certs revoke` adds to it."),
        "socket": (None, "Unix socket to answer on as well; its folder must be private, callers are the operator."),
        "serve_roleless": (False, "Let certificates without a role do everything, as before there were roles."),
    }
)


class ClientTls(Protocol):
    """What a program that calls services knows about TLS."""

    @property
    def tls_ca_file(self) -> Path | None:
        """Authority of the services; None = plain text."""

    @property
    def tls_certificate_file(self) -> Path | None:
        """Own certificate."""

    @property
    def tls_key_file(self) -> Path | None:
        """Its key."""

    @property
    def token_file(self) -> Path | None:
        """Token that is shown."""


class ServerTls(Protocol):
    """What a program that serves knows about TLS."""

    @property
    def tls_certificate_file(self) -> Path | None:
        """Own certificate."""

    @property
    def tls_key_file(self) -> Path | None:
        """Its key."""

    @property
    def client_ca_file(self) -> Path | None:
        """Authority of the callers."""

    @property
    def insecure(self) -> bool:
        """Whether plain text may leave this machine."""

    @property
    def callers_file(self) -> Path | None:
        """Tokens of callers."""

    @property
    def revoked_file(self) -> Path | None:
        """Keys whose certificates are denied."""

    @property
    def socket(self) -> Path | None:
        """Unix socket to answer on as well."""

    @property
    def serve_roleless(self) -> bool:
        """Whether a certificate without a role may do everything."""


class Listening(ServerTls, Protocol):
    """What a service knows about where it listens."""

    @property
    def address(self) -> str:
        """HOST:PORT of gRPC."""

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of /metrics; empty = none."""


def tls_setting(name: str) -> Any:  # noqa: ANN401 (of the field that is declared)
    """Declares a setting about TLS under the one name that it has in every program."""
    default, meaning = _DECLARED[name]
    return setting(default, meaning, kind=OptionalFile() if default is None else None)


def check_client_tls(settings: ClientTls) -> None:
    """Looks whether files that belong together are all named.

    Raises:
        InputError: They are not.
    """
    _check_pair(settings)
    if settings.tls_certificate_file is not None and settings.tls_ca_file is None:
        remedy = "name the authority of the services too (tls_ca_file, --tls-ca-file)"
        raise InputError("an own certificate is shown over TLS only", remedy=remedy)


def check_server_tls(settings: ServerTls) -> None:
    """Looks whether files that belong together are all named.

    Raises:
        InputError: They are not.
    """
    _check_pair(settings)
    if settings.client_ca_file is not None and settings.tls_certificate_file is None:
        raise InputError(
            "certificates of callers are asked for over TLS only",
            remedy="give --tls-certificate-file and --tls-key-file with --client-ca-file",
        )
    if settings.revoked_file is not None and settings.client_ca_file is None:
        raise InputError(
            "certificates are revoked where callers show one", remedy="give --client-ca-file with --revoked-file"
        )
    if settings.serve_roleless and settings.client_ca_file is None:
        raise InputError(
            "certificates without a role are of callers who show one",
            remedy="give --client-ca-file with --serve-roleless",
        )


def check_listening(settings: Listening) -> None:
    """Checks whether a service may listen as configured, before it does anything.

    Raises:
        InputError: An address is none, or others could reach it without TLS and without the explicit wish.
    """
    split_address(settings.address)
    check_exposure(settings.address, settings)
    if settings.metrics_address:
        split_address(settings.metrics_address)
        check_metrics_exposure(settings.metrics_address, insecure=settings.insecure)


def check_exposure(address: str, settings: ServerTls) -> None:
    """Refuses to listen to the network in plain text, or without asking who calls.

    Raises:
        InputError: Another address than loopback without TLS or without known callers, and without the explicit wish.
    """
    check_server_tls(settings)
    if settings.insecure or is_loopback(address):
        return
    if settings.tls_certificate_file is None:
        raise InputError(
            f"{address} can be reached from other machines, and there is no TLS",
            remedy="give --tls-certificate-file and --tls-key-file, or --insecure where the network is trusted",
        )
    if settings.client_ca_file is None and settings.callers_file is None:
        raise InputError(
            f"{address} can be reached from other machines, and callers are not identified",
            remedy="give --client-ca-file or --callers-file, or --insecure where the network is trusted",
        )


def check_metrics_exposure(address: str, *, insecure: bool) -> None:
    """Refuses to serve the network in plain text.

    Raises:
        InputError: Another address than loopback without the explicit wish.
    """
    if not insecure and not is_loopback(address):
        raise InputError(
            f"metrics are plain HTTP, and {address} can be reached from other machines",
            remedy="serve them on loopback with --metrics-address, or give --insecure",
        )


def _check_pair(settings: ClientTls | ServerTls) -> None:
    if (settings.tls_certificate_file is None) != (settings.tls_key_file is None):
        raise InputError(
            "a certificate and its key belong together",
            remedy="give --tls-certificate-file and --tls-key-file, or neither",
        )

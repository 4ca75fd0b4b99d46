"""From PEM files to what gRPC wants; nothing that was asked for is left out in silence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from cotenant.errors import InputError
from cotenant.tls_probe import TlsFiles, find_unusable_files
from cotenant.tls_settings import ClientTls, ServerTls, check_client_tls, check_server_tls


def client_tls_files(settings: ClientTls, *, server_name: str = "") -> TlsFiles:
    """Returns what a caller shows and trusts, as a look at the port needs it."""
    return TlsFiles(
        ca_file=settings.tls_ca_file,
        certificate_file=settings.tls_certificate_file,
        key_file=settings.tls_key_file,
        server_name=server_name,
    )


def channel_credentials(settings: ClientTls) -> grpc.ChannelCredentials | None:
    """Returns the credentials of a channel; None = plain text.

    Raises:
        InputError: Files that belong together are not all named, or one cannot be read.
    """
    check_client_tls(settings)
    if settings.tls_ca_file is None:
        return None
    authority, key, certificate = _read((settings.tls_ca_file, settings.tls_key_file, settings.tls_certificate_file))
    return grpc.ssl_channel_credentials(authority, key, certificate)


def server_credentials(settings: ServerTls) -> grpc.ServerCredentials | None:
    """Returns the credentials of a server; None = plain text.

    Raises:
        InputError: Files that belong together are not all named, one cannot be read, or they do not match.
    """
    check_server_tls(settings)
    if settings.tls_certificate_file is None:
        return None
    key, certificate, authority = _read((settings.tls_key_file, settings.tls_certificate_file, settings.client_ca_file))
    # gRPC would only say that the port cannot be had.
    unusable = find_unusable_files(
        TlsFiles(
            ca_file=settings.client_ca_file,
            certificate_file=settings.tls_certificate_file,
            key_file=settings.tls_key_file,
        )
    )
    if unusable is not None:
        raise InputError(unusable.cause, remedy=unusable.remedy)
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def _read(paths: Sequence[Path | None]) -> list[Any]:
    try:
        return [None if path is None else path.read_bytes() for path in paths]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}", remedy="check the --tls-* flags") from error

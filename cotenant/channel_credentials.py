"""From PEM files to what gRPC wants; nothing that was asked for is left out in silence."""

from __future__ import annotations

from pathlib import Path

import grpc

from cotenant.client_errors import InputError
from cotenant.tls_probe import TlsFiles


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials | None:
    """Returns the credentials of a channel; None = plain text.

    Raises:
        InputError: A file is missing among them, or cannot be read.
    """
    if (files.certificate_file is None) != (files.key_file is None):
        raise InputError("an own certificate and its key belong together", remedy="give both files, or neither")
    if files.ca_file is None:
        if files.certificate_file is not None:
            remedy = "name the authority of the services too (tls_ca_file, --tls-ca-file)"
            raise InputError("an own certificate is shown over TLS only", remedy=remedy)
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read(files.ca_file),
        private_key=_read(files.key_file),
        certificate_chain=_read(files.certificate_file),
    )


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy="check the TLS settings") from error

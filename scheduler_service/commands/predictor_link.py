"""The way to the predictor: plain text, TLS, or mutual TLS with a certificate of the scheduler."""

from __future__ import annotations

from pathlib import Path

import grpc

from cotenant.channel_credentials import channel_credentials
from cotenant.client_errors import InputError
from cotenant.tls_probe import TlsFiles, TlsFlags, TlsMismatch, find_tls_mismatch
from scheduler_service.adapters.predictor_client import open_channel
from scheduler_service.errors import SettingsError
from scheduler_service.settings import Settings

_FLAGS = TlsFlags(ca="--predictor-ca-file", certificate="--predictor-certificate-file", key="--predictor-key-file")


def _files(settings: Settings) -> TlsFiles:
    return TlsFiles(
        ca_file=Path(settings.predictor_ca_file) if settings.predictor_ca_file else None,
        certificate_file=Path(settings.predictor_certificate_file) if settings.predictor_certificate_file else None,
        key_file=Path(settings.predictor_key_file) if settings.predictor_key_file else None,
    )


def predictor_channel(settings: Settings) -> grpc.aio.Channel | None:
    """Return the channel; nothing is dialled yet, None = there is no predictor.

    Raises:
        SettingsError: A PEM file cannot be read.
    """
    if not settings.predictor_address:
        return None
    try:
        credentials = channel_credentials(_files(settings))
    except InputError as error:
        raise SettingsError(f"{error.message}; {error.remedy}") from error
    return open_channel(settings.predictor_address, credentials=credentials)


def look_at_predictor(settings: Settings) -> TlsMismatch | None:
    """Look at the predictor's port for why TLS does not come about; blocks for seconds at most."""
    return find_tls_mismatch(settings.predictor_address, _files(settings), peer="predictor", flags=_FLAGS)

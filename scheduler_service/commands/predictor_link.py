"""The way to the predictor: plain text, TLS, or mutual TLS with the scheduler's own certificate."""

from __future__ import annotations

import grpc

from cotenant.access.token_calls import async_token_calls
from cotenant.grpc_credentials import channel_credentials, client_tls_files
from cotenant.tls_probe import TlsMismatch, find_tls_mismatch
from scheduler_service.adapters.predictor.predictor_client import open_channel
from scheduler_service.settings import Settings


def predictor_channel(settings: Settings) -> grpc.aio.Channel | None:
    """Return the channel; nothing is dialled yet, None = there is no predictor.

    Raises:
        InputError: A PEM file or the token cannot be read.
    """
    if not settings.predictor:
        return None
    # Without an authority of the predictor the certificate is for our own callers only.
    credentials = channel_credentials(settings) if settings.tls_ca_file is not None else None
    token_calls = async_token_calls(settings.token_file, settings.predictor, has_tls=credentials is not None)
    return open_channel(settings.predictor, credentials=credentials, interceptors=token_calls)


def probe_predictor(settings: Settings) -> TlsMismatch | None:
    """Look at the predictor's port for why TLS does not come about; blocks for seconds at most."""
    return find_tls_mismatch(settings.predictor, client_tls_files(settings), peer="predictor")

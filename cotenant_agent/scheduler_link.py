"""The way to the scheduler: a channel that is only ever dialled, and pauses between attempts to dial it."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from cotenant.access.token_calls import async_token_calls
from cotenant.addresses import is_loopback
from cotenant.client_errors import InputError
from cotenant.grpc_credentials import channel_credentials, client_tls_files
from cotenant.tls_probe import TlsMismatch, find_tls_mismatch

MESSAGE_LIMIT_BYTES = 4 << 20
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
# However long a scheduler wants to be left alone: a question in vain costs little, a node that sleeps costs much.
_REQUESTED_PAUSE_S_MAX = 30.0
JOIN_REFUSED = frozenset({grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION})
"""The scheduler knows another agent with this node id, or jobs that this agent has lost; its reply has the remedy."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # One stream per agent: sharing a connection with another agent of this process would share its fate.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Where the scheduler is and how it is recognised."""

    scheduler: str
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    token_file: Path | None = None
    tls_server_name: str = ""
    insecure: bool = False


def open_channel(settings: LinkSettings) -> grpc.aio.Channel:
    """A channel to the scheduler; with TLS only a certificate under `tls_ca_file` is accepted.

    Raises:
        InputError: the scheduler is elsewhere and no TLS was set up, or a certificate cannot be read.
    """
    options = list(_OPTIONS)
    if is_loopback(settings.scheduler):
        # A proxy of the environment would look for the address on its own machine.
        options.append(("grpc.enable_http_proxy", 0))
    if settings.tls_server_name:
        options.append(("grpc.ssl_target_name_override", settings.tls_server_name))  # type: ignore[arg-type]
    credentials = channel_credentials(settings)
    token_calls = async_token_calls(settings.token_file, settings.scheduler, has_tls=credentials is not None)
    if credentials is not None:
        return grpc.aio.secure_channel(settings.scheduler, credentials, options=options, interceptors=token_calls)
    if not settings.insecure and not is_loopback(settings.scheduler):
        raise InputError(
            f"the scheduler at {settings.scheduler} is not on this machine, and there is no TLS",
            remedy="give --tls-ca-file (and --tls-certificate-file, --tls-key-file), or --insecure on a network where "
            "every user is trusted",
        )
    return grpc.aio.insecure_channel(settings.scheduler, options=options, interceptors=token_calls)


def tls_mismatch(settings: LinkSettings) -> TlsMismatch | None:
    """Look at the scheduler's port for why TLS does not come about; blocks for seconds at most."""
    files = client_tls_files(settings, server_name=settings.tls_server_name)
    return find_tls_mismatch(settings.scheduler, files, peer="scheduler")


class Pauses:
    """How long to wait before dialling again: doubling up to five seconds, each with its own jitter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._failures = 0

    def next_s(self) -> float:
        """Seconds until the next attempt."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        return longest * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """A conversation took place."""
        self._failures = 0


def requested_pause_s(error: grpc.aio.AioRpcError) -> float:
    """Seconds after which the scheduler wants to be asked again, at most half a minute; 0 = not stated."""
    found = error_details_pb2.RetryInfo()
    # What cannot be read counts as not stated.
    with contextlib.suppress(ValueError, DecodeError):
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        for detail in status.details if status is not None else ():
            detail.Unpack(found)
    return min(max(float(found.retry_delay.ToMilliseconds()) / 1000, 0.0), _REQUESTED_PAUSE_S_MAX)

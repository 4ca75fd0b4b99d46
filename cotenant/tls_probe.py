"""Why two programs cannot agree on TLS: one look at the port, because gRPC calls most of it "socket closed".

The look sends a TLS greeting and nothing else, takes seconds at most, and trusts no answer.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cotenant.system_clock import now_ms

# Of one wait, and of the whole conversation.
_TIMEOUT_S, _LONGEST_S = 2.0, 4.0
# OpenSSL's codes of a certificate that was not trusted (X509_V_ERR_*).
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_IP = 9, 10, 62, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What this program shows and trusts.

    Attributes:
        ca_file: Authority of the server; None = plain text.
        certificate_file: Own certificate.
        key_file: Its key.
        server_name: Expected in the server's certificate; empty = the host of the address.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMismatch:
    """Why no connection comes about, and what to do."""

    cause: str
    remedy: str


def find_tls_mismatch(address: str, files: TlsFiles, *, peer: str) -> TlsMismatch | None:
    """Look at a port that did not let us in.

    Args:
        address: host:port.
        files: What was shown and trusted.
        peer: Which program should be there, e.g. "scheduler".

    Returns:
        None when nothing listens, or TLS is not the reason.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or address.startswith("unix:"):
        return None
    look = _Look(where=f"the {peer} at {address}", name=files.server_name or host, files=files)
    try:
        context = _context(files)
    except (OSError, ValueError) as error:
        return _unusable(files, error)
    try:
        with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection, _bounded(connection):
            return look.without_trust(connection, context) if files.ca_file is None else look.greet(connection, context)
    except (OSError, OverflowError, ValueError):
        return None


def certificate_end_s(address: str, files: TlsFiles) -> int | None:
    """Look how long a service's certificate is still valid, in seconds; None where that cannot be seen.

    Args:
        address: host:port of a service that speaks TLS.
        files: What is trusted and shown.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or address.startswith("unix:"):
        return None
    name = files.server_name or host.strip("[]")
    try:
        context = _context(files)
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S) as connection,
            _bounded(connection),
            context.wrap_socket(connection, server_hostname=name) as greeted,
        ):
            found = greeted.getpeercert() or {}
        return int(ssl.cert_time_to_seconds(str(found["notAfter"])) - now_ms() / 1000)
    except (OSError, OverflowError, ValueError, KeyError):
        return None


@contextmanager
def _bounded(connection: socket.socket) -> Iterator[None]:
    """End a look at a peer that answers byte by byte."""
    # Of its own: TLS takes the descriptor of the connection over.
    duplicate = connection.dup()

    def hang_up() -> None:
        with suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_LONGEST_S, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        duplicate.close()


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if files.ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.load_verify_locations(files.ca_file)
    if files.certificate_file is not None:
        # Without a password OpenSSL would ask the terminal for that of a locked key.
        context.load_cert_chain(files.certificate_file, files.key_file, password="")
    return context


def find_unusable_files(files: TlsFiles) -> TlsMismatch | None:
    """Look whether a server can show its certificate, with the key of it, before it listens.

    Args:
        files: Its own certificate and key; the authority is that of its clients.

    Returns:
        None where it can.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if files.certificate_file is not None:
            context.load_cert_chain(files.certificate_file, files.key_file, password="")
        if files.ca_file is not None:
            context.load_verify_locations(files.ca_file)
    except (OSError, ValueError) as error:
        return _unusable(files, error, authority="--client-ca-file")
    return None


def _unusable(files: TlsFiles, error: Exception, *, authority: str = "--tls-ca-file") -> TlsMismatch:
    named = [str(path) for path in (files.ca_file, files.certificate_file, files.key_file) if path is not None]
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not PEM"
    return TlsMismatch(
        cause=f"the TLS files cannot be used ({reason}): {', '.join(named)}",
        remedy=f"{authority} names a PEM authority, --tls-certificate-file a PEM certificate, "
        "--tls-key-file its key without a password",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One look at one port."""

    where: str
    name: str
    files: TlsFiles

    def without_trust(self, connection: socket.socket, context: ssl.SSLContext) -> TlsMismatch | None:
        """Plain text was spoken: does the port answer a TLS greeting?"""
        with context.wrap_socket(connection):
            return TlsMismatch(
                cause=f"{self.where} speaks TLS, and was spoken to in plain text",
                remedy="name its authority with --tls-ca-file",
            )

    def greet(self, connection: socket.socket, context: ssl.SSLContext) -> TlsMismatch | None:
        """TLS was spoken: is the port's certificate trusted, and does it accept ours?"""
        try:
            with context.wrap_socket(connection, server_hostname=self.name) as greeted:
                return None if _is_content(greeted) else self._not_accepted()
        except ssl.SSLCertVerificationError as error:
            return self._not_believed(error)
        except ssl.SSLError as error:
            return self._no_greeting(error)

    def _no_greeting(self, error: ssl.SSLError) -> TlsMismatch:
        if error.reason == "WRONG_VERSION_NUMBER":
            return TlsMismatch(
                cause=f"{self.where} speaks plain text, and was spoken to in TLS",
                remedy="leave --tls-ca-file out where the network is trusted, or serve with a certificate there",
            )
        return TlsMismatch(
            cause=f"{self.where} does not agree on TLS ({error.reason or 'the handshake failed'})",
            remedy="look at the certificates of both sides with: openssl x509 -noout -text -in FILE",
        )

    def _not_believed(self, error: ssl.SSLCertVerificationError) -> TlsMismatch:
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            finding = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
            remedy = "give it a certificate that is in date, and look at both clocks"
        elif error.verify_code in (_OTHER_NAME, _OTHER_IP):
            finding = f"does not name {self.name}"
            remedy = f"call it by a name in its certificate, or add {self.name} to the subject alternative names there"
        else:
            finding = f"was not signed by {self.files.ca_file} ({error.verify_message})"
            remedy = "name the authority that signed it with --tls-ca-file"
        return TlsMismatch(cause=f"the certificate of {self.where} is not trusted: it {finding}", remedy=remedy)

    def _not_accepted(self) -> TlsMismatch:
        own = "with --tls-certificate-file and --tls-key-file"
        if self.files.certificate_file is None:
            return TlsMismatch(
                cause=f"{self.where} wants a certificate of this program and was shown none",
                remedy=f"show one that its client authority signed, {own}",
            )
        return TlsMismatch(
            cause=f"{self.where} does not accept the certificate {self.files.certificate_file}",
            remedy=f"show one that is in date and that its client authority signed, {own}",
        )


def _is_content(greeted: ssl.SSLSocket) -> bool:
    """A server that wants another certificate hangs up after the greeting; one that is content sends its settings."""
    try:
        return bool(greeted.recv(1))
    except TimeoutError:
        return True
    except (ssl.SSLError, ConnectionError):
        return False

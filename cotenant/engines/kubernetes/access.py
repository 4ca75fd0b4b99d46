"""Where the API server is and who we are there: a kubeconfig, or the service account of the pod that we run in.

With the standard library only: a client library of Kubernetes would be the largest dependency of the command line, for
nine kinds of requests. What is not understood (plug-ins that log in) is refused with what to do instead.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from cotenant.addresses import is_loopback
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of
from cotenant.errors import InputError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FILE_BYTES_MAX: Final = 2**20
_NO_KUBECONFIG: Final = (
    "name one by --kubeconfig or KUBECONFIG, or run this in a pod with a service account (docs/kubernetes.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How to reach one API server.

    Attributes:
        host: Without brackets.
        path: Before the path of every request; without a slash at its end.
        tls: None = plain HTTP, to this machine only.
        token: Shown with every request; empty = none.
        token_file: Read again for every request, since Kubernetes renews it.
    """

    host: str
    port: int
    path: str = ""
    tls: ssl.SSLContext | None = None
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    def read_token(self) -> str:
        """Return the token as it is now.

        Raises:
            InputError: Its file cannot be read.
        """
        if self.token_file is None:
            return self.token
        return _read_file(self.token_file).decode("ascii", "replace").strip()


def find_access(kubeconfig: Path | None, context: str, environment: Mapping[str, str] = os.environ) -> ClusterAccess:
    """Return the access that is named: by a flag, by KUBECONFIG, by the pod, by ~/.kube/config, in this order.

    Args:
        kubeconfig: The file that was named; None = none was.
        context: Of the kubeconfig; empty = its current one.
        environment: Variables of this process.

    Raises:
        InputError: There is none, or it is not understood.
    """
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    if kubeconfig is None and not named and not context and "KUBERNETES_SERVICE_HOST" in environment:
        return _pod_access(environment)
    path = kubeconfig or next((one for one in named if one.is_file()), Path.home() / ".kube" / "config")
    if not path.is_file():
        raise InputError(f"there is no kubeconfig {path}", remedy=_NO_KUBECONFIG)
    return _read_kubeconfig(path, context)


def _pod_access(environment: Mapping[str, str]) -> ClusterAccess:
    host = environment["KUBERNETES_SERVICE_HOST"].strip("[]")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise InputError(f"KUBERNETES_SERVICE_PORT {port!r} is not a port", remedy=_NO_KUBECONFIG)
    tls = ssl.create_default_context(cadata=_pem(_read_file(SERVICE_ACCOUNT / "ca.crt"), "ca.crt"))
    return ClusterAccess(host=host, port=int(port), tls=tls, token_file=SERVICE_ACCOUNT / "token")


def _read_kubeconfig(path: Path, context: str) -> ClusterAccess:
    try:
        document: Any = yaml.safe_load(_read_file(path))
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path} is not YAML", remedy="see `kubectl config view`") from error
    name = context or text_of(document, "current-context")
    chosen = _named(document, "contexts", name, "context")
    if not chosen:
        names = ", ".join(text_of(row, "name") for row in rows_of(document, "contexts"))
        if not names:
            raise InputError(f"{path} is no kubeconfig: it has no contexts", remedy=_NO_KUBECONFIG)
        raise InputError(f"{path} has no context {name!r}", remedy=f"choose one by --context: {names}")
    cluster = _named(document, "clusters", text_of(chosen, "cluster"), "cluster")
    user = _named(document, "users", text_of(chosen, "user"), "user")
    return _access(cluster, user, path.parent)


def _named(document: object, table: str, name: str, kind: str) -> Row:
    return next((row_of(row, kind) for row in rows_of(document, table) if row.get("name") == name), {})


def _access(cluster: Row, user: Row, folder: Path) -> ClusterAccess:
    for name in ("exec", "auth-provider", "username"):
        if name in user:
            raise InputError(
                f"the kubeconfig logs in by {name!r}, which is not supported",
                remedy="use a kubeconfig with the token of a service account, e.g. of `kubectl create token cotenant`",
            )
    if "proxy-url" in cluster:
        raise InputError("the kubeconfig has a proxy-url, which is not supported", remedy="name the server itself")
    server = text_of(cluster, "server")
    try:
        parts = urlsplit(server)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"the server {server!r} of the kubeconfig is no address", remedy="write https://HOST:PORT")
    if parts.scheme == "http" and not is_loopback(host):
        raise InputError(f"the server {server} would be asked without TLS", remedy="write https://HOST:PORT")
    token_file = text_of(user, "tokenFile")
    return ClusterAccess(
        host=host,
        port=port or (443 if parts.scheme == "https" else 80),
        path=parts.path.rstrip("/"),
        tls=_tls(cluster, user, folder) if parts.scheme == "https" else None,
        token=text_of(user, "token"),
        token_file=folder / token_file if token_file else None,
    )


def _tls(cluster: Row, user: Row, folder: Path) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=_pem(authority, "certificate-authority") if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        raise InputError(
            "the kubeconfig says insecure-skip-tls-verify, by which any server that answers would get the token",
            remedy="put the cluster's authority into certificate-authority",
        )
    certificate, key = _data(user, "client-certificate", folder), _data(user, "client-key", folder)
    if certificate and key:
        _load_pair(context, certificate, key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # ssl takes files only; the folder is readable by us alone, and gone at once.
    with tempfile.TemporaryDirectory(prefix="cotenant-") as folder:
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate + b"\n" + key)
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, ValueError) as error:
            raise InputError("client certificate and key of the kubeconfig do not belong together") from error


def _data(row: Row, name: str, folder: Path) -> bytes:
    """Return what stands in the kubeconfig itself, or in the file that it names."""
    inline, path = text_of(row, f"{name}-data"), text_of(row, name)
    if not inline:
        return _read_file(folder / path) if path else b""
    try:
        return base64.b64decode(inline, validate=True)
    except binascii.Error as error:
        raise InputError(f"{name}-data of the kubeconfig is not base64") from error


def _pem(data: bytes, name: str) -> str:
    text = data.decode("ascii", "replace")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise InputError(f"{name} holds no certificate in PEM form")
    return text


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error

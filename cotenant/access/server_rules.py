"""From a server's settings to its rules of access, and its private Unix socket."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cotenant.access.callers import AccessRules
from cotenant.access.revoked import RevokedKeys
from cotenant.access.tokens import KnownTokens
from cotenant.errors import InputError
from cotenant.tls_settings import ServerTls

SOCKET_PATH_BYTES_MAX: Final = 107
"""What the kernel's address of a Unix socket holds, without the zero at its end."""
_PRIVATE: Final = 0o077


def access_rules(settings: ServerTls) -> AccessRules:
    """Returns how a server tells its callers apart.

    Raises:
        InputError: The list of tokens, or of revoked keys, cannot be used.
    """
    return AccessRules(
        asks_certificates=settings.client_ca_file is not None,
        tokens=None if settings.callers_file is None else KnownTokens(settings.callers_file),
        owner=account_name(os.geteuid()),
        serves_roleless=settings.serve_roleless,
        revoked=None if settings.revoked_file is None else RevokedKeys(settings.revoked_file),
    )


def account_name(user_id: int) -> str:
    """Returns the name of an account, of letters that names of callers have; user-N where it has none."""
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        name = ""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:63] or f"user-{user_id}"


def bind_private_socket(path: Path, bind: Callable[[str], int]) -> None:
    """Has a server listen on a Unix socket that only this account reaches.

    Args:
        path: Of the socket; one that a dead server left is replaced.
        bind: Takes unix:PATH, as gRPC's add_insecure_port.

    Raises:
        InputError: The path is too long, its folder is not private, or a server answers there.
    """
    _check_place(path)
    if is_answered(path):
        raise InputError(f"another program answers on {path}", remedy="end it, or name another file with --socket")
    before = os.umask(_PRIVATE)
    try:
        bind(f"unix:{path}")
        path.chmod(0o600)
    except (RuntimeError, OSError) as error:
        raise InputError(f"cannot listen on {path} ({error})", remedy="name another file with --socket") from error
    finally:
        os.umask(before)


def _check_place(path: Path) -> None:
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise InputError(
            f"{path} is too long for a Unix socket", remedy=f"--socket takes {SOCKET_PATH_BYTES_MAX} bytes at most"
        )
    try:
        folder = path.parent.stat()
    except OSError as error:
        raise InputError(f"cannot use {path.parent}: {error.strerror}", remedy="make the folder of --socket") from error
    if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & _PRIVATE:
        remedy = f"chmod 700 {path.parent}, or name a file in a private folder with --socket"
        raise InputError(f"other users can reach the folder {path.parent}", remedy=remedy)


def is_answered(path: Path) -> bool:
    """Returns whether a program listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fsencode(path))
        except OSError:
            return False
    return True

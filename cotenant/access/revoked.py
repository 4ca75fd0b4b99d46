"""Keys whose certificates are denied before they end: a list that the services read again when it changes.

A key is denied rather than a serial number, so that earlier and later certificates of a lost key are denied with it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from cotenant.access.certificate_fields import key_sha256
from cotenant.access.list_lock import sole_writer, unwritable
from cotenant.access.watched_list import WatchedList
from cotenant.errors import InputError
from cotenant.names import NAME

REVOKED_MAX: Final = 100_000
_LINE: Final = re.compile(rf"(?P<hash>[0-9a-f]{{64}}) (?P<name>{NAME})")
_LINE_BYTES_MAX: Final = 200
_FLAG: Final = "--revoked-file"


class RevokedKeys:
    """The list of one server; safe for many threads.

    Args:
        path: A line "SHA256 NAME" per key; empty lines and those with # are left out.

    Raises:
        InputError: It cannot be read, a line is none, or others may write to it.
    """

    def __init__(self, path: Path) -> None:
        self._hashes = WatchedList(path, lambda path: frozenset(_read(path)), flag=_FLAG)

    def denies(self, certificate: bytes) -> bool:
        """Tells whether a certificate, PEM, has a key of the list, or one that cannot be read."""
        found = key_sha256(certificate)
        return found is None or found in self._hashes.content()

    def fault(self) -> str:
        """Returns why the keys of the file are not those that count, and what to do; empty = they are."""
        return self._hashes.fault()


def revoke(path: Path, sha256: str, name: str) -> None:
    """Adds a key to a list, which is made where it is missing; one that is there already stays.

    Raises:
        InputError: The list cannot be read or written, is full, or another revocation of it does not end.
    """
    with sole_writer(path, flag=_FLAG):
        known = _read(path) if path.exists() else {}
        if sha256 in known:
            return
        if len(known) >= REVOKED_MAX:
            raise InputError(f"{path} has {REVOKED_MAX} keys", remedy="make another authority: cotenant certs init")
        # As it is, with what an operator noted in it.
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        _replace(path, "".join(f"{line}\n" for line in [*lines, f"{sha256} {name}"]))


def _replace(path: Path, content: str) -> None:
    """Puts a new list in the place of the old one, whole and on the disk."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with arriving.open("w", encoding="ascii") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        arriving.chmod(0o644)
        arriving.replace(path)
    except OSError as error:
        arriving.unlink(missing_ok=True)
        raise unwritable(path, error, flag=_FLAG) from error


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open(encoding="ascii") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            lines = stream.read(REVOKED_MAX * _LINE_BYTES_MAX).splitlines()
    except (OSError, ValueError) as error:
        raise _unreadable(path, getattr(error, "strerror", "") or "not text") from error
    if mode & 0o022:
        raise InputError(f"{path} has mode {mode:04o}: others may write to it", remedy=f"chmod 644 {path}")
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        entry = _LINE.fullmatch(line.strip())
        if entry is None:
            raise InputError(f"{path}, line {number}: not of the form SHA256 NAME", remedy="cotenant certs revoke adds")
        found[entry["hash"]] = entry["name"]
    return found


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(f"cannot read {path}: {reason}", remedy=f"check {_FLAG}; an empty file revokes nothing")

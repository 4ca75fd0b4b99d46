"""Tokens: random texts that name a caller. A server keeps hashes only; a caller keeps the token in a private file."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.access.list_lock import sole_writer, unwritable
from cotenant.access.roles import Role
from cotenant.access.watched_list import WatchedList
from cotenant.errors import InputError
from cotenant.names import NAME

TOKEN_BYTES: Final = 32
TOKENS_MAX: Final = 1_000
_FLAG: Final = "--callers-file"
_METADATA_KEY: Final = "authorization"
_SCHEME: Final = "Bearer "
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,200}")
_LINE: Final = re.compile(rf"(?P<hash>[0-9a-f]{{64}}) (?P<role>[a-z]+) (?P<name>{NAME})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """What a server knows of one token."""

    sha256: str
    role: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenList:
    """The tokens that a server accepts."""

    entries: Sequence[TokenEntry]

    def find(self, token: str) -> TokenEntry | None:
        """Returns whose token this is; None = unknown. Takes the same time whichever it is."""
        digest = _sha256(token)
        found = None
        for entry in self.entries:
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        return found


class KnownTokens:
    """The tokens that one server accepts, by a file that it reads again when that changes; safe for many threads.

    Args:
        path: As `read_token_list` reads it.

    Raises:
        InputError: As `read_token_list`.
    """

    def __init__(self, path: Path) -> None:
        self._list = WatchedList(path, read_token_list, flag=_FLAG)

    def find(self, token: str) -> TokenEntry | None:
        """Returns whose token this is by now; None = unknown."""
        return self._list.content().find(token)

    def fault(self) -> str:
        """Returns why the tokens of the file are not those that count, and what to do; empty = they are."""
        return self._list.fault()


def read_token_list(path: Path) -> TokenList:
    """Reads the accepted tokens: a line "SHA256 ROLE NAME" each; empty lines and those with # are left out.

    Raises:
        InputError: It cannot be read, a line is none, or others may write to it.
    """
    lines = [line.strip() for line in _read_private(path, _FLAG, forbidden=0o022).splitlines()]
    entries = [_entry(line, path, number) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if len(entries) > TOKENS_MAX:
        raise InputError(f"{path} has more than {TOKENS_MAX} tokens", remedy="remove those that are not used")
    return TokenList(entries=entries)


def read_token(path: Path) -> str:
    """Reads the token of a caller.

    Raises:
        InputError: It cannot be read, holds no token, or others may read it.
    """
    token = _read_private(path, "--token-file", forbidden=0o077).strip()
    if not _TOKEN.fullmatch(token):
        raise InputError(f"{path} holds no token", remedy="name the file of one with --token-file")
    return token


def write_token_list(path: Path, entries: Iterable[TokenEntry]) -> None:
    """Writes what `read_token_list` reads, readable by its owner only, who stays the same where root writes."""
    lines = "".join(f"{entry.sha256} {entry.role} {entry.name}\n" for entry in entries)
    _write_private(path, lines, keeps_owner=True)


def issue_token(path: Path, role: Role, name: str) -> TokenEntry:
    """Writes a new token into a private file and returns what a server has to know of it."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    _write_private(path, token + "\n")
    return TokenEntry(sha256=_sha256(token), role=role, name=name)


def add_token(callers_file: Path, token_file: Path, role: Role, name: str) -> None:
    """Writes a new token into a private file and its hash into a list, in place of the one that the name had there.

    Raises:
        InputError: The list cannot be read or written, or another writer of it does not end.
        OSError: The token's file cannot be written.
    """
    with sole_writer(callers_file, flag=_FLAG):
        known = read_token_list(callers_file).entries if callers_file.exists() else ()
        issued = issue_token(token_file, role, name)
        write_token_list(callers_file, [*(entry for entry in known if entry.name != name), issued])


def revoke_tokens(callers_file: Path, names: Sequence[str]) -> None:
    """Takes the tokens of some callers off a list.

    Raises:
        InputError: The list has no token of one of them, cannot be read or written, or another writer does not end.
    """
    with sole_writer(callers_file, flag=_FLAG):
        known = read_token_list(callers_file).entries
        held = {entry.name for entry in known}
        missing = [name for name in names if name not in held]
        if missing:
            remedy = f"there are: {', '.join(sorted(held)) or 'none'}"
            raise InputError(f"{callers_file} has no token of {missing[0][:63]!r}", remedy=remedy)
        try:
            write_token_list(callers_file, [entry for entry in known if entry.name not in names])
        except OSError as error:
            raise unwritable(callers_file, error, flag=_FLAG) from error


def token_metadata(token: str) -> tuple[str, str]:
    """Returns the entry of a call's metadata that shows a token."""
    return _METADATA_KEY, _SCHEME + token


def presented_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the token that a call shows; empty = none."""
    for key, value in metadata:
        if key == _METADATA_KEY and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME.lower():
            return value[len(_SCHEME) :].strip()
    return ""


def _entry(line: str, path: Path, number: int) -> TokenEntry:
    found = _LINE.fullmatch(line)
    if found is None or found["role"] not in set(Role):
        raise InputError(
            f"{path}, line {number}: not of the form SHA256 ROLE NAME", remedy=f"roles are {', '.join(Role)}"
        )
    return TokenEntry(sha256=found["hash"], role=found["role"], name=found["name"])


def _read_private(path: Path, flag: str, *, forbidden: int) -> str:
    try:
        with path.open(encoding="utf-8") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            text = stream.read(TOKENS_MAX * 200)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(f"cannot read {path}: {reason}", remedy=f"check {flag}") from error
    if mode & forbidden:
        raise InputError(f"{path} has mode {mode:04o}: other users reach it", remedy=f"chmod 600 {path}")
    return text


def _write_private(path: Path, text: str, *, keeps_owner: bool = False) -> None:
    """Writes a file with mode 0600 whole or not at all."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    arriving.unlink(missing_ok=True)
    descriptor = os.open(arriving, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), 0o600)
        if keeps_owner and os.geteuid() == 0 and path.exists():
            os.fchown(stream.fileno(), path.stat().st_uid, path.stat().st_gid)
        stream.write(text)
    arriving.replace(path)


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()

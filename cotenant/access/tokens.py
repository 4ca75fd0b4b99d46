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

from cotenant.access.roles import Role
from cotenant.errors import InputError

TOKEN_BYTES: Final = 32
TOKENS_MAX: Final = 1_000
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
_METADATA_KEY: Final = "authorization"
_SCHEME: Final = "Bearer "
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,200}")
_LINE: Final = re.compile(r"(?P<hash>[0-9a-f]{64}) (?P<role>[a-z]+) (?P<name>[A-Za-z0-9._-]{1,63})")


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


def read_token_list(path: Path) -> TokenList:
    """Reads the accepted tokens: a line "SHA256 ROLE NAME" each; empty lines and those with # are left out.

    Raises:
        InputError: It cannot be read, a line is none, or others may write to it.
    """
    lines = [line.strip() for line in _read_private(path, "--callers-file", forbidden=0o022).splitlines()]
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
    """Writes what `read_token_list` reads, readable by its owner only."""
    _write_private(path, "".join(f"{entry.sha256} {entry.role} {entry.name}\n" for entry in entries))


def issue_token(path: Path, role: Role, name: str) -> TokenEntry:
    """Writes a new token into a private file and returns what a server has to know of it."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    _write_private(path, token + "\n")
    return TokenEntry(sha256=_sha256(token), role=role, name=name)


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


def _write_private(path: Path, text: str) -> None:
    """Writes a file with mode 0600 whole or not at all."""
    arriving = path.with_name(f".{path.name}.{os.getpid()}")
    arriving.unlink(missing_ok=True)
    descriptor = os.open(arriving, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(text)
    arriving.replace(path)


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()

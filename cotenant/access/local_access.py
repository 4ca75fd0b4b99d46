"""The private way to the programs of one account on one machine: Unix sockets, and tokens for what speaks TCP only.

Everything lies in the folder `access` of the state, mode 0700; the command line finds it there by the address.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.access.roles import Role
from cotenant.access.server_rules import SOCKET_PATH_BYTES_MAX, account_name, is_answered
from cotenant.access.tokens import issue_token, write_token_list
from cotenant.errors import InputError

_FOLDER: Final = "access"
_ADDRESSES: Final = "addresses.json"
_LONGEST_NAME: Final = "predictor.sock"
_ADDRESSES_BYTES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAccess:
    """What the programs of one `cotenant up` are started with.

    Attributes:
        folder: Holds tokens and what names them; private.
        sockets: Folder of the sockets; the same unless that path is too long for one.
    """

    folder: Path
    sockets: Path

    @property
    def callers_file(self) -> Path:
        """The tokens that both services accept."""
        return self.folder / "callers"

    def socket(self, service: str) -> Path:
        """Returns where scheduler or predictor listen."""
        return self.sockets / f"{service}.sock"

    def token_file(self, name: str) -> Path:
        """Returns the token of the operator, of the scheduler or of a node."""
        return self.folder / f"{name}.token"

    def announce(self, addresses: Mapping[str, str]) -> None:
        """Notes which socket leads to which address, for the command line.

        Args:
            addresses: HOST:PORT by service.
        """
        found = {address: str(self.socket(service)) for service, address in addresses.items()}
        arriving = self.folder / f".{_ADDRESSES}.{os.getpid()}"
        arriving.write_text(json.dumps(found) + "\n", encoding="utf-8")
        arriving.replace(self.folder / _ADDRESSES)

    def withdraw(self) -> None:
        """Removes what leads to programs that have ended."""
        for path in (self.folder / _ADDRESSES, self.socket("scheduler"), self.socket("predictor")):
            with contextlib.suppress(OSError):
                path.unlink()
        if self.sockets != self.folder:
            with contextlib.suppress(OSError):
                self.sockets.rmdir()


def prepare_local_access(state_dir: Path, node_ids: Sequence[str]) -> LocalAccess:
    """Makes the folders and new tokens; those of an earlier run are worth nothing from now on.

    Raises:
        InputError: A folder cannot be made, or belongs to another account.
    """
    folder = state_dir / _FOLDER
    access = LocalAccess(folder=_private_folder(folder), sockets=_private_folder(_socket_folder(folder)))
    callers = {"operator": (Role.OPERATOR, account_name(os.geteuid())), "scheduler": (Role.SCHEDULER, "scheduler")}
    callers |= {f"node-{node_id}": (Role.NODE, node_id) for node_id in node_ids}
    try:
        entries = [issue_token(access.token_file(file), role, name) for file, (role, name) in callers.items()]
        write_token_list(access.callers_file, entries)
    except OSError as error:
        raise _unusable(folder, error) from error
    return access


def private_socket(state_dir: Path, address: str) -> str:
    """Returns unix:PATH where programs of this account answer for an address; empty = nowhere.

    Args:
        state_dir: Of `cotenant up`.
        address: HOST:PORT.
    """
    try:
        with (state_dir / _FOLDER / _ADDRESSES).open("rb") as stream:
            found = json.loads(stream.read(_ADDRESSES_BYTES_MAX))
        path = Path(found[address])
        about = path.lstat()
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    is_ours = stat.S_ISSOCK(about.st_mode) and about.st_uid == os.geteuid()
    return f"unix:{path}" if is_ours and is_answered(path) else ""


def _socket_folder(folder: Path) -> Path:
    """The kernel takes 107 bytes: a deep state has its sockets in a short folder."""
    if len(os.fsencode(folder / _LONGEST_NAME)) <= SOCKET_PATH_BYTES_MAX:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    name = f"cotenant-{os.geteuid()}-{digest}"
    places = [Path(place) / name for place in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if place]
    fitting = [place for place in places if len(os.fsencode(place / _LONGEST_NAME)) <= SOCKET_PATH_BYTES_MAX]
    return next(iter(fitting), places[-1])


def _private_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            raise InputError(f"{folder} belongs to another account", remedy="remove it, or name another --state-dir")
        folder.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def _unusable(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot use {folder}: {error.strerror}", remedy="name another folder with --state-dir")

"""Which user of the machine a job runs as: the agent's, one for all, or one of a range for each tenant."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from cotenant_agent.errors import CommandRefusedError, OperatorError
from cotenant_agent.storage.durable_files import read_integer, read_json, write_json

Owner = tuple[int, int]
"""Numbers of a user and a group."""

_FIRST_UID = 1_000
_LAST_UID = 2**31 - 1
_TENANT_CHARACTERS_MAX = 128
_USERS_MAX = 1_000
_RANGE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")


class JobUsers:
    """Finds the user of a job.

    Args:
        path: Where the users of tenants are kept: a tenant has one for good, and a user one tenant.
        user: One for all jobs, by name or number; empty = none.
        users: `FIRST-LAST`, numbers of users without another use; empty = none.

    Raises:
        OperatorError: the agent is not root, or these users are not to be had.
    """

    def __init__(self, path: Path, user: str = "", users: str = "") -> None:
        self._path = path
        if (user or users) and os.geteuid() != 0:
            raise OperatorError(f"--job-user{'s' if users else ''} needs an agent that runs as root")
        self._one = _find_user(user) if user else None
        self._numbers = range(0)
        if users:
            self._numbers = read_range(users)
            _check_free(users, self._numbers)

    def find(self, tenant: str) -> Owner | None:
        """The user that runs this tenant's jobs; None = the agent's own.

        Raises:
            CommandRefusedError: there is none left, or the disk does not keep it.
        """
        if not self._numbers:
            return self._one
        known = read_json(self._path)
        if known is None and self._path.exists():
            # Another number than before would make two tenants one.
            raise CommandRefusedError("NO_JOB_USER", f"{self._path} cannot be read, which says whose user is whose")
        known = known or {}
        number = read_integer(known, tenant) or self._draw(tenant, known)
        if number not in self._numbers:
            raise CommandRefusedError(
                "NO_JOB_USER", f"{tenant!r} has user {number}, which is not of --job-users; let the range contain it"
            )
        # A group of that number, since a user has to have one.
        return number, number

    def login_name(self, tenant: str) -> str:
        """What programs ask the machine's list of users for, which does not have this one; empty = it has."""
        owner = self.find(tenant) if self._numbers else None
        return f"job-{owner[0]}" if owner is not None else ""

    def _draw(self, tenant: str, known: dict[str, object]) -> int:
        if len(tenant) > _TENANT_CHARACTERS_MAX:
            raise CommandRefusedError("NO_JOB_USER", f"a tenant's name has at most {_TENANT_CHARACTERS_MAX} characters")
        taken = set(known.values())
        number = next((number for number in self._numbers if number not in taken), 0)
        if number == 0:
            raise CommandRefusedError("NO_JOB_USER", f"all {len(self._numbers)} users of --job-users have a tenant")
        try:
            write_json(self._path, {**known, tenant: number})
        except OSError as error:
            reason = f"this node cannot keep a user for {tenant!r}: {error}"
            raise CommandRefusedError("NODE_FAILURE", reason) from None
        return number


def read_range(text: str) -> range:
    """The numbers of `FIRST-LAST`.

    Raises:
        OperatorError: it is none, or contains users of the system.
    """
    found = _RANGE.fullmatch(text)
    numbers = range(int(found[1]), int(found[2]) + 1) if found else range(0)
    if not 0 < len(numbers) <= _USERS_MAX or numbers[0] < _FIRST_UID or numbers[-1] > _LAST_UID:
        raise OperatorError(
            f"--job-users {text}: name FIRST-LAST, at most {_USERS_MAX} numbers between {_FIRST_UID} and {_LAST_UID}, "
            "as 200000-200999"
        )
    return numbers


def hand_over(directory: Path, owner: Owner) -> None:
    """Give a checkpoint that another user wrote to the user of the job that goes on from it."""
    if directory.stat().st_uid == owner[0]:
        return
    os.chown(directory, *owner, follow_symlinks=False)
    for _, folders, files, descriptor in os.fwalk(directory, follow_symlinks=False):
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            # What is linked from elsewhere may be another user's.
            if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
                os.chown(name, *owner, dir_fd=descriptor, follow_symlinks=False)


def _find_user(user: str) -> Owner:
    try:
        record = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError as error:
        raise OperatorError(f"--job-user {user}: there is no such user") from error
    return record.pw_uid, record.pw_gid


def _check_free(text: str, numbers: range) -> None:
    taken = sorted(_names_in(numbers))
    if taken:
        raise OperatorError(f"--job-users {text}: {', '.join(taken[:3])} on this machine; name numbers not in use")


def _names_in(numbers: range) -> Iterator[str]:
    for user in pwd.getpwall():
        if user.pw_uid in numbers:
            yield f"user {user.pw_name} is {user.pw_uid}"
    for group in grp.getgrall():
        if group.gr_gid in numbers:
            yield f"group {group.gr_name} is {group.gr_gid}"

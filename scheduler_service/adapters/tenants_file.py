"""The file with the rules for tenants, which the scheduler follows while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from cotenant.access.watched_list import LOOK_EVERY_MS, WatchedList
from cotenant.errors import InputError
from scheduler_service.core.errors import TenantRulesError
from scheduler_service.core.queue.tenants import TenantRules, parse_tenants

FILE_LIMIT_BYTES = 1024 * 1024
_FLAG = "--tenants"


class WatchedTenants:
    """The newest usable rules of one file; a broken edit leaves those before in force and is logged once.

    Args:
        path: As `read_tenants` reads it.

    Raises:
        InputError: As `read_tenants`.
    """

    def __init__(self, path: Path) -> None:
        self._list = WatchedList(path, read_tenants, flag=_FLAG)

    def rules(self) -> TenantRules:
        """Return the rules by now."""
        return self._list.content()

    def fault(self) -> str:
        """Return why the rules in force are not those of the file, with the remedy; empty = they are."""
        return self._list.fault()

    async def follow(
        self,
        known: Callable[[], TenantRules | None],
        choose: Callable[[TenantRules], Awaitable[None]],
        *,
        every_ms: int = LOOK_EVERY_MS,
    ) -> None:
        """Let other rules be chosen once two looks in a row found them in the file, for ever.

        Args:
            known: Returns the rules in force.
            choose: Puts others in force.
            every_ms: Between two looks.
        """
        found = known()
        while True:
            await asyncio.sleep(every_ms / 1_000)
            # In a thread: a large file takes a while to parse.
            before, found = found, await asyncio.to_thread(self.rules)
            # An editor may empty a file before it writes it anew, and an empty one would lift all quotas.
            if found == before and found != known():
                await choose(found)


def read_tenants(path: Path) -> TenantRules:
    """Read the rules for tenants.

    Raises:
        InputError: The file cannot be read, is too large, or its rules cannot be.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(FILE_LIMIT_BYTES + 1)
        if len(content) > FILE_LIMIT_BYTES:
            reason = f"{path} is larger than {FILE_LIMIT_BYTES} bytes"
            raise InputError(reason, remedy=f"name a file of tenants with {_FLAG}")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"the tenants in {path} cannot be read: {cause}", remedy=f"correct {_FLAG}") from error
    try:
        return parse_tenants(text)
    except TenantRulesError as error:
        raise InputError(f"the tenants in {path} are wrong: {error}", remedy="correct the file") from error

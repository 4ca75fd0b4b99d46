"""Which version is served and how it came to be: the store of versions and its history, changed together.

The pointer decides. A process that is killed between the pointer and the line of the history leaves a pointer without
its line; the next process that opens the registry adds it.
"""

from __future__ import annotations

import fcntl
import getpass
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from predictor_service.errors import UnknownVersionError
from predictor_service.registry.manifest import Manifest
from predictor_service.registry.version_history import VersionAction, VersionEvent, VersionHistory
from predictor_service.registry.version_store import VersionStore

VERSIONS_MAX: Final = 50
"""Versions that are kept, those that a rollback may lead to not counted."""
ROLLBACKS_KEPT: Final = 10
LOCK_FILE: Final = ".change.lock"
HISTORY_FILE: Final = "history.sqlite"
_SERVED: Final = (VersionAction.PROMOTED, VersionAction.ROLLED_BACK)


class ModelRegistry:
    """Changes what is served.

    Args:
        root: Folder of versions and history; made when absent.
        who: Person or program that changes it, for the history.
    """

    def __init__(self, root: Path, who: str) -> None:
        self._root = root
        self.store = VersionStore(root)
        self.history = VersionHistory(root / HISTORY_FILE)
        self._who = who
        self._complete_history()

    def add(self, manifest: Manifest, files: Mapping[str, bytes], why: str) -> None:
        """Stores a version without serving it, and forgets what was stored first of many."""
        is_new = manifest.version not in self.store.names()
        self.store.add(manifest, files)
        if is_new:
            self._note(VersionAction.TRAINED, manifest.version, why, {"datasets": dict(manifest.datasets)})
        way_back = self._served_stack()[-ROLLBACKS_KEPT - 1 :]
        with suppress(OSError):  # what cannot be deleted now is tried with the next version
            self.store.forget_oldest(VERSIONS_MAX, keep={manifest.version, *way_back})

    def promote(
        self, name: str, why: str, details: Mapping[str, Any] | None = None, *, in_place_of: str | None = None
    ) -> bool:
        """Serves a version, once it has reproduced its golden vectors.

        Args:
            name: The version.
            why: For the history.
            details: For the history.
            in_place_of: Only where this one is still served, empty = none; None = whatever is served.

        Returns:
            Whether it is served now; False where another version than `in_place_of` was found served.

        Raises:
            ModelError: It cannot be trusted; what was served before still is.
        """
        with self._changing():
            previous = self.store.current() or ""
            if in_place_of is not None and previous != in_place_of:
                return False
            if previous != name:
                self.store.activate(name)
                self._note(VersionAction.PROMOTED, name, why, details, previous)
        return True

    def refuse(self, name: str, why: str, details: Mapping[str, Any] | None = None) -> None:
        """Writes down that a version is not served, and why."""
        self._note(VersionAction.REFUSED, name, why, details)

    def roll_back(self, why: str) -> str:
        """Serves the version that was served before the current one.

        Returns:
            Its name.

        Raises:
            UnknownVersionError: There was none.
            ModelError: It cannot be trusted any more; the current one stays.
        """
        with self._changing():
            served = self._served_stack()
            if len(served) < 2:
                raise UnknownVersionError(
                    "no version was served before this one", remedy="choose one with `cotenant models promote`"
                )
            current, name = served[-1], served[-2]
            self.store.activate(name)
            self._note(VersionAction.ROLLED_BACK, name, why, previous=current)
            return name

    def was_rolled_back(self) -> bool:
        """Whether the last change of what is served was a rollback."""
        served = [event.action for event in self.history.events() if event.action in _SERVED]
        return served[-1:] == [VersionAction.ROLLED_BACK]

    def close(self) -> None:
        """Closes the history."""
        self.history.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change of what is served at a time, of all programs: what one decided upon holds until it has acted."""
        with (self._root / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _served_stack(self) -> list[str]:
        """Versions in the order in which they were promoted; a rollback takes the last one away."""
        stack: list[str] = []
        for event in self.history.events():
            if event.action is VersionAction.PROMOTED:
                stack.append(event.version)
            elif event.action is VersionAction.ROLLED_BACK and stack:
                stack.pop()
        return stack

    def _complete_history(self) -> None:
        current = self.store.current()
        events = [event for event in self.history.events() if event.action in _SERVED]
        if current is not None and (not events or events[-1].version != current):
            previous = events[-1].version if events else ""
            # The version before is what a rollback leads to; that of an operator must not be forgotten.
            is_back = self._served_stack()[-2:-1] == [current]
            action = VersionAction.ROLLED_BACK if is_back else VersionAction.PROMOTED
            self._note(action, current, "found served without a line of its own", previous=previous)

    def _note(
        self,
        action: VersionAction,
        version: str,
        why: str,
        details: Mapping[str, Any] | None = None,
        previous: str | None = None,
    ) -> None:
        self.history.append(
            VersionEvent(
                action=action,
                version=version,
                previous=self.store.current() or "" if previous is None else previous,
                who=self._who,
                why=why,
                details=details or {},
            )
        )


def current_user() -> str:
    """Name of the person or account that runs this program."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in some containers
        return "unnamed account"

"""The kernel's freezer of one control group, of version 1 or 2; like the shim it needs the standard library only."""

from __future__ import annotations

import os

from cotenant_agent.keeper.kernel_files import try_write

_VERSION_1 = "freezer.state"
_WORDS = {"cgroup.freeze": ("1", "0"), _VERSION_1: ("FROZEN", "THAWED")}
"""By the name of the file: the words for standing still and for going on."""


class Freezer:
    """Lets a control group stand still and go on.

    Args:
        path: Of its file; one of another name, or none, freezes nothing.

    Attributes:
        members_file: List of the members; empty = there is no freezer.
        keeps_killed: What was killed ends only when the group goes on.
    """

    def __init__(self, path: str) -> None:
        name = os.path.basename(path)  # noqa: PTH119
        self._path = path if name in _WORDS else ""
        self._words = _WORDS.get(name, ("", ""))
        self.keeps_killed = name == _VERSION_1
        self.members_file = self._in_group("cgroup.procs") if self._path else ""

    def freeze(self) -> bool:
        """Let the group stand still; whether the kernel took it."""
        return bool(self._path) and try_write(self._path, self._words[0])

    def thaw(self) -> bool:
        """Let the group go on; whether nothing of it is held any more, as in one that is gone."""
        return not self._path or try_write(self._path, self._words[1]) or not os.path.exists(self._path)  # noqa: PTH110

    def is_frozen(self) -> bool:
        """Whether the kernel says that everything in the group stands still."""
        path, word = (self._path, "FROZEN") if self.keeps_killed else (self._in_group("cgroup.events"), "frozen 1")
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                return word in file.read().splitlines()
        except OSError:
            return False

    def _in_group(self, name: str) -> str:
        return os.path.join(os.path.dirname(self._path), name)  # noqa: PTH118, PTH120

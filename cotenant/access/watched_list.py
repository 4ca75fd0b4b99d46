"""Lists in files that a service reads again when they change, while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from cotenant.errors import InputError
from cotenant.system_clock import steady_ms

LOOK_EVERY_MS: Final = 1_000
"""So long after a change, at most, a service knows it."""
Content = TypeVar("Content")

_log = logging.getLogger(__name__)


class WatchedList(Generic[Content]):
    """The newest usable content of one file; safe for many threads.

    A file that is spoilt or gone leaves what it held before in force, and is logged once.

    Args:
        path: The file.
        read: Reads it.
        flag: Of the command line, with which another file is named.

    Raises:
        InputError: It cannot be used at the start.
    """

    def __init__(self, path: Path, read: Callable[[Path], Content], *, flag: str) -> None:
        self._path, self._read, self._flag = path, read, flag
        self._turn = threading.Lock()
        self._seen = self._version()
        self._content = read(path)
        self._looked_at_ms = steady_ms()
        self._failure: InputError | None = None

    def content(self) -> Content:
        """Returns what the file holds, or held when it could last be used."""
        with self._turn:
            if steady_ms() - self._looked_at_ms >= LOOK_EVERY_MS:
                self._looked_at_ms = steady_ms()
                self._look()
            return self._content

    def fault(self) -> str:
        """Returns why what the file holds now is not in force, and what to do; empty = it is."""
        self.content()
        failure = self._failure
        return "" if failure is None else f"{failure.message}; what it held before stays in force; {failure.remedy}"

    def _look(self) -> None:
        try:
            version = self._version()
            if version != self._seen:
                self._content = self._read(self._path)
                self._seen = version
                _log.info("list_read", extra={"path": str(self._path), "flag": self._flag})
            self._failure = None
        except InputError as error:
            if self._failure is None:
                told = {"path": str(self._path), "flag": self._flag, "reason": error.message, "remedy": error.remedy}
                _log.error("list_not_read", extra=told)
            self._failure = error

    def _version(self) -> tuple[int, int, int]:
        try:
            about = self._path.stat()
        except OSError as error:
            raise InputError(f"cannot read {self._path}: {error.strerror}", remedy=f"check {self._flag}") from error
        return about.st_ino, about.st_size, about.st_mtime_ns

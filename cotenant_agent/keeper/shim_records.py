"""The small files by which a shim and its agent talk, as the shim reads and writes them; standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from cotenant_agent.keeper.job_processes import start_ticks
from cotenant_agent.keeper.seals import KEY_BYTES, SEALED, Seal, hide_memory
from cotenant_agent.system_clock import boot_ms

_RECORD_PATIENCE_MS = 3_600_000
_RECORD_RETRY_S = 0.5
_INTRODUCTION_BYTES = 256


def read_record(name: str) -> dict[str, Any] | None:
    """A JSON object of the attempt's directory; None when it is absent."""
    try:
        with open(name, encoding="utf-8") as file:  # noqa: PTH123 (pathlib would double the size of this process)
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_record(name: str, record: dict[str, Any]) -> None:
    """Replace a JSON object of the attempt's directory for good: temporary file, fsync, rename, fsync.

    A full disk takes it in the room that the agent has kept for it (`durable_files.keep_room`), if it has.
    """
    temporary = f".{name}.shim"
    try:
        _write_whole(temporary, "w", record)
    except OSError:
        temporary = f"{name}.room"
        if not changed_ns(temporary):
            raise
        _write_whole(temporary, "r+", record)
    os.replace(temporary, name)  # noqa: PTH105
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_whole(name: str, mode: str, record: dict[str, Any]) -> None:
    with open(name, mode, encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(record))
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def write_record_at_last(name: str, record: dict[str, Any]) -> None:
    """Replace a JSON object, trying again while the disk is full: the end of an attempt is known here only."""
    give_up_at_ms = boot_ms() + _RECORD_PATIENCE_MS
    while True:
        try:
            write_record(name, record)
        except OSError:
            if boot_ms() >= give_up_at_ms:
                raise
            time.sleep(_RECORD_RETRY_S)
        else:
            return


def read_number(record: dict[str, Any], name: str) -> int:
    """A whole number out of such an object, 0 when it is absent or something else."""
    value = record.get(name, 0)
    return value if isinstance(value, int) else 0


def changed_ns(name: str) -> int:
    """When a file was last written, by the wall clock; 0 when it is absent."""
    with contextlib.suppress(OSError):
        return os.stat(name).st_mtime_ns  # noqa: PTH116
    return 0


def read_counter(path: str, name: str) -> int:
    """A `name value` line of a control-group file; 0 when there is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


class Records:
    """The files of the attempt's directory, as far as they are the agent's or the shim's own words.

    Args:
        seal: The key shared with the agent; None = no job can write there.
        agent: Pid and start ticks of the holder of the other copy of the key: once it is gone, what has no seal is
            believed.
    """

    def __init__(self, seal: Seal | None = None, agent: tuple[int, int] = (0, 0)) -> None:
        self._seal = seal
        self._agent = agent

    def read(self, name: str) -> dict[str, Any] | None:
        """What the agent has written; None when there is nothing, or something else in its place."""
        record = read_record(name)
        if record is None or self._seal is None or self._seal.is_on(name, record) or not self._is_agent_alive():
            return record
        return None

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Replace a file for good; raises OSError."""
        write_record(name, self._sealed(name, record))

    def write_at_last(self, name: str, record: dict[str, Any]) -> None:
        """Replace a file as soon as the disk takes it."""
        write_record_at_last(name, self._sealed(name, record))

    def _sealed(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        return record if self._seal is None else self._seal.put_on(name, record)

    def _is_agent_alive(self) -> bool:
        try:
            return start_ticks(self._agent[0]) == self._agent[1]
        except OSError:
            return False


def take_records(arguments: Sequence[str]) -> Records:
    """The attempt's files, and the key to them, where the agent says that it shares one: by the standard input."""
    if list(arguments) != [SEALED]:
        return Records()
    hide_memory()
    introduction = os.read(0, _INTRODUCTION_BYTES)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    pid, agent_start_ticks = introduction[KEY_BYTES:].split()
    return Records(Seal(introduction[:KEY_BYTES]), (int(pid), int(agent_start_ticks)))

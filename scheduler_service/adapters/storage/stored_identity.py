"""The cluster's identity next to its events: incarnations, starts of schedulers, what an operator has confirmed.

Older programs do not look at these tables; a state that lacks them gets them at its first start.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import uuid
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Generation, Incarnation
from scheduler_service.adapters.storage.sqlite_faults import damaged, reading, writing

FENCES_JUMPED = 1_000_000
"""Fences that a restored state leaves out at least: those that its parent may have given after the backup."""
_FENCES_JUMPED_AT_RANDOM = 1 << 40
"""And up to so many more, so that two restores of one backup give no fence twice."""
_GENERATIONS_KEPT = 10_000
_UNDECIDED = 0
"""First fence of an incarnation that has not started yet."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS incarnations"
    " (place INTEGER PRIMARY KEY, incarnation_id TEXT NOT NULL, first_fence INTEGER NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS generations"
    " (generation INTEGER PRIMARY KEY, start_id TEXT NOT NULL, first_sequence INTEGER NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS identity_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
)
# Names of facts.
_SEAL_KEY, _REPLACED, _RESTORED, _CONFIRMED, _BEHIND = (
    "seal_key",
    "replaced_ids",
    "restored_id",
    "confirmed_id",
    "behind",
)


class StoredIdentity:
    """Reads and writes the identity over the connection of the event log; every method blocks.

    Args:
        state_id: Of the database; it is the id of the present incarnation.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, state_id: str) -> None:
        self._connection = connection
        self._path = path
        self._state_id = state_id

    @property
    def state_id(self) -> str:
        """The id of the database."""
        return self._state_id

    def begin_generation(self, *, next_fence: int, sequence: int) -> ClusterIdentity:
        """Note durably that a scheduler starts; before it nothing may be said to an agent.

        Args:
            next_fence: The fence that the recovered state would give next.
            sequence: The newest event that was recovered.

        Raises:
            StateError: It cannot be written, or is damaged.
        """
        with writing(self._connection, self._path):
            for table in _TABLES:
                self._connection.execute(table)
            self._name_incarnation(next_fence)
            self._count_start(sequence)
            self._connection.execute(
                "INSERT OR IGNORE INTO identity_facts VALUES (?, ?)", (_SEAL_KEY, secrets.token_hex(32))
            )
        return self.read()

    def _name_incarnation(self, next_fence: int) -> None:
        lineage = self._lineage()
        if not lineage and next_fence > 1:
            self._add_incarnation("", 1)
            self._add_incarnation(self._state_id, next_fence)
        elif not lineage:
            self._add_incarnation(self._state_id, 1)
        elif lineage[-1].incarnation_id != self._state_id:
            # Restored by an older program.
            begin_child(self._connection, self._state_id)
        jumped = next_fence + FENCES_JUMPED + secrets.randbelow(_FENCES_JUMPED_AT_RANDOM)
        self._connection.execute("UPDATE incarnations SET first_fence = ? WHERE first_fence = ?", (jumped, _UNDECIDED))

    def _add_incarnation(self, incarnation_id: str, first_fence: int) -> None:
        self._connection.execute(
            "INSERT INTO incarnations (incarnation_id, first_fence) VALUES (?, ?)", (incarnation_id, first_fence)
        )

    def _count_start(self, sequence: int) -> None:
        self._connection.execute(
            "INSERT INTO generations SELECT coalesce(max(generation), 0) + 1, ?, ? FROM generations",
            (uuid.uuid4().hex, sequence),
        )
        self._connection.execute(
            "DELETE FROM generations WHERE generation <= (SELECT max(generation) FROM generations) - ?",
            (_GENERATIONS_KEPT,),
        )

    def read(self) -> ClusterIdentity:
        """Return the identity as it is stored.

        Raises:
            StateDamagedError: It is not whole.
        """
        with reading(self._path):
            rows = self._connection.execute("SELECT * FROM generations ORDER BY 1").fetchall()
        try:
            return ClusterIdentity(
                lineage=self._lineage(),
                replaced_ids=frozenset(json.loads(self._fact(_REPLACED) or "[]")),
                generations=tuple(
                    Generation(generation=number, start_id=start_id, first_sequence=first)
                    for number, start_id, first in rows
                ),
                seal_key=bytes.fromhex(self._fact(_SEAL_KEY)),
            )
        except ValueError:
            raise damaged(self._path, "the identity of the cluster is unreadable") from None

    @property
    def awaits_confirmation(self) -> bool:
        """The present incarnation was restored, and no operator has confirmed that."""
        return self._fact(_RESTORED) == self._state_id != self._fact(_CONFIRMED)

    @property
    def behind(self) -> str:
        """What was found once that is not in this state's history; empty = nothing."""
        return self._fact(_BEHIND)

    def confirm(self) -> None:
        """Note durably that the nodes of the ancestors may join."""
        self._note(_CONFIRMED, self._state_id)

    def note_behind(self, finding: str) -> None:
        """Note durably that this state is not the newest of its cluster, whatever is appended to it later."""
        self._note(_BEHIND, finding)

    def _note(self, name: str, value: str) -> None:
        with writing(self._connection, self._path):
            self._connection.execute("INSERT OR REPLACE INTO identity_facts VALUES (?, ?)", (name, value))

    def _fact(self, name: str) -> str:
        with reading(self._path):
            rows = self._connection.execute("SELECT value FROM identity_facts WHERE name = ?", (name,)).fetchall()
        return str(rows[0][0]) if rows else ""

    def _lineage(self) -> tuple[Incarnation, ...]:
        return _lineage(self._connection)


def _lineage(connection: sqlite3.Connection) -> tuple[Incarnation, ...]:
    rows = connection.execute("SELECT incarnation_id, first_fence FROM incarnations ORDER BY place").fetchall()
    return tuple(Incarnation(incarnation_id=incarnation_id, first_fence=first) for incarnation_id, first in rows)


def read_succeeded(path: Path) -> frozenset[str]:
    """Return the incarnations that a state is or succeeds; none where it cannot be read, as one that is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            lineage = {one.incarnation_id for one in _lineage(connection)}
            return frozenset((lineage | {*_replaced_ids(connection)}) - {""})
    except (sqlite3.Error, ValueError, TypeError):
        return frozenset()


def _replaced_ids(connection: sqlite3.Connection) -> Iterable[str]:
    rows = connection.execute("SELECT value FROM identity_facts WHERE name = ?", (_REPLACED,)).fetchall()
    return tuple(map(str, json.loads(rows[0][0]))) if rows else ()


def begin_child(
    connection: sqlite3.Connection,
    state_id: str,
    *,
    parent_id: str = "",
    replaced_ids: Iterable[str] = (),
    is_confirmed: bool = False,
) -> None:
    """Turn a copy of a state into a new incarnation that names the copied one as its parent.

    Args:
        connection: To the copy, inside a transaction.
        state_id: Of the new incarnation.
        parent_id: Of the copied state, where it knew no incarnations; empty = it knew no id either.
        replaced_ids: Of the state whose place it takes, and of those that it succeeded; none where there was none.
        is_confirmed: An operator has said already that the parent's scheduler runs no more.
    """
    for table in _TABLES:
        connection.execute(table)
    lineage = _lineage(connection)
    if not lineage:
        connection.execute("INSERT INTO incarnations (incarnation_id, first_fence) VALUES (?, 1)", (parent_id,))
    connection.execute("INSERT INTO incarnations (incarnation_id, first_fence) VALUES (?, ?)", (state_id, _UNDECIDED))
    replaced = {*_replaced_ids(connection), *replaced_ids} - {"", state_id}
    facts = [(_REPLACED, json.dumps(sorted(replaced))), (_RESTORED, state_id)]
    facts += [(_CONFIRMED, state_id)] if is_confirmed else []
    connection.executemany("INSERT OR REPLACE INTO identity_facts VALUES (?, ?)", facts)
    connection.execute("DELETE FROM identity_facts WHERE name = ?", (_BEHIND,))
    connection.execute("DELETE FROM generations")

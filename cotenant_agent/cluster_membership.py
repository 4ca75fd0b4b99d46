"""Which cluster this node belongs to, and the newest of it that the node saw: what no scheduler may fall behind.

A job id, an attempt and a fence mean something within one incarnation of one cluster. A node that obeyed any scheduler
at its address would end the jobs of its own cluster for a stranger, or resume a stranger's checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cotenant.job import MANIFEST_NAME
from cotenant_agent.errors import ClusterRefusedError, OperatorError
from cotenant_agent.records import AttemptKey, GrantedCheckpoint, LogPosition
from cotenant_agent.storage.durable_files import read_integer, read_json, read_text, write_json
from cotenant_agent.storage.state_directory import LOCK_NAME, checkpoint_directory, is_incarnation_id
from cotenant_agent.system_clock import boot_ms

_log = logging.getLogger(__name__)

# Between two writes of a sequence that no order depends on.
_SEQUENCE_STORED_MS = 30_000
_FORMER_MAX = 20
_ANCESTORS_MAX = 1_000
LEAVE = "stop this agent, then `python -m cotenant_agent leave-cluster --state-dir DIRECTORY`"


class ClusterMembership:
    """What this node remembers of its cluster, in a file that a crash leaves whole.

    Args:
        path: cluster.json of the state directory; None = nothing is kept (tests).

    Raises:
        OperatorError: The file is damaged.

    Attributes:
        seen: the highest position of the present cluster; no incarnation = it belongs to none (yet).
        ancestor_ids: incarnations that the present one succeeds; their attempts are its own.
        installation_id: drawn when the state directory was made, and anew in a copy of it, which knows as much and
            speaks for the same node.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        record = read_json(path) if path is not None else None
        if path is not None and record is None and path.exists():
            raise OperatorError(
                f"{path} is damaged, so it is unknown which cluster this node belongs to; remove the file if the node "
                "may join the next scheduler that it meets"
            )
        self.seen = _position(_part(record, "seen"))
        self.ancestor_ids = _texts(record, "ancestor_ids")
        self._folder = _folder_of(path)
        self._stored_folder = read_text(record, "folder")
        self.installation_id = self._own_id(read_text(record, "installation_id"))
        self._legacy_id = read_text(record, "legacy_incarnation_id")
        self._former = {one.incarnation_id: one for one in map(_position, _parts(record, "former"))}
        self._stored = self.seen
        self._stored_at_ms = boot_ms()
        if path is not None and record is None:
            self._store()
        elif self._folder != self._stored_folder:
            # A full disk must not keep an agent from its jobs; the next start finds the same.
            with contextlib.suppress(OSError):
                self._store()

    def _own_id(self, stored_id: str) -> str:
        is_copy = bool(self._folder and self._stored_folder) and self._folder != self._stored_folder
        if is_copy:
            _log.warning("state_directory_copied", extra={"path": str(self._path)})
        return uuid.uuid4().hex if is_copy or not stored_id else stored_id

    @property
    def lineage(self) -> tuple[str, ...]:
        """The present incarnation and its ancestors; empty = none."""
        return (self.seen.incarnation_id, *self.ancestor_ids) if self.seen.incarnation_id else ()

    def holds(self, key: AttemptKey) -> bool:
        """Whether an attempt is one of this cluster: only then its scheduler hears of it."""
        incarnation_id = key.incarnation_id or self._legacy_id
        return incarnation_id in (*self.lineage, "")

    def join(self, position: LogPosition | None, ancestor_ids: Iterable[str], *, is_free: bool) -> None:
        """Take a scheduler's Welcome and store where it is, before anything it orders is done.

        Args:
            position: where the scheduler is; None = it does not say.
            ancestor_ids: incarnations that it succeeds.
            is_free: nothing of the present cluster runs or is kept here.

        Raises:
            ClusterRefusedError: it serves another cluster, or an older state of this one.
            OSError: the disk does not take which cluster this is now.
        """
        mine = self.seen.incarnation_id
        if position is None or not position.incarnation_id:
            if mine:
                raise ClusterRefusedError(
                    f"this node belongs to cluster {mine[:8]}, and the scheduler does not say which one it serves: "
                    f"it is an older version; upgrade it, or {LEAVE}"
                )
            return
        ancestors = tuple(ancestor_ids)[:_ANCESTORS_MAX]
        if not all(map(is_incarnation_id, (position.incarnation_id, *ancestors))):
            raise ClusterRefusedError("the scheduler names its cluster with something else than 32 hexadecimal digits")
        if mine not in ("", position.incarnation_id, *ancestors) and not is_free:
            raise ClusterRefusedError(
                f"this node belongs to cluster {mine[:8]}, and the scheduler serves {position.incarnation_id[:8]}. "
                f"Start the scheduler on the state of the first, or restore its backup; to change for good {LEAVE}"
            )
        self._check_not_behind(position, self._highest(position.incarnation_id))
        self._enter(position, ancestors)

    def _highest(self, incarnation_id: str) -> LogPosition:
        if self.seen.incarnation_id == incarnation_id:
            return self.seen
        return self._former.get(incarnation_id, LogPosition())

    def _enter(self, position: LogPosition, ancestors: tuple[str, ...]) -> None:
        before = self.seen, self.ancestor_ids, self._legacy_id, dict(self._former)
        if self.seen.incarnation_id not in ("", position.incarnation_id):
            _log.warning(
                "cluster_changed",
                extra={"from": self.seen.incarnation_id[:8], "to": position.incarnation_id[:8]},
            )
            self._former[self.seen.incarnation_id] = self.seen
            while len(self._former) > _FORMER_MAX:
                del self._former[next(iter(self._former))]
        self.seen, self.ancestor_ids = position, ancestors
        # What an older agent left here belongs to the first cluster that is named.
        self._legacy_id = self._legacy_id or position.incarnation_id
        try:
            self._store()
        except OSError:
            if before[0].incarnation_id == position.incarnation_id:
                # A full disk must not cost the jobs their leases; it is stored before the next order to start one.
                return
            self.seen, self.ancestor_ids, self._legacy_id, self._former = before
            raise

    def advance(self, position: LogPosition) -> None:
        """Take where the scheduler is by now; stored soon, and before an order that depends on it.

        Raises:
            ClusterRefusedError: it has fallen behind what it said before.
        """
        self._check_not_behind(position, self.seen)
        self.seen = position
        if boot_ms() - self._stored_at_ms >= _SEQUENCE_STORED_MS:
            # A full disk must end no lease.
            with contextlib.suppress(OSError):
                self.store()

    def take_order(self, position: LogPosition) -> None:
        """Take where the scheduler was when it gave an order; acknowledgements overtake orders that wait here."""
        if position.incarnation_id == self.seen.incarnation_id and position.sequence > self.seen.sequence:
            self.advance(position)

    def store(self) -> None:
        """Make what was seen survive a crash; raises OSError where the disk does not take it."""
        if self.seen != self._stored:
            self._store()

    def leave(self) -> None:
        """Belong to no cluster; what is known of the last one is kept, should the node return to it."""
        if self.seen.incarnation_id:
            self._former[self.seen.incarnation_id] = self.seen
        self.seen, self.ancestor_ids = LogPosition(), ()
        self._store()

    def _check_not_behind(self, position: LogPosition, highest: LogPosition) -> None:
        if not highest.incarnation_id:
            return
        finding = ""
        if position.incarnation_id != highest.incarnation_id:
            finding = "it changed its cluster within one conversation"
        elif position.generation < highest.generation:
            finding = f"it is start {position.generation}, and this node saw start {highest.generation}"
        elif position.generation == highest.generation and position.start_id != highest.start_id:
            finding = f"start {position.generation} that this node saw was made on another copy of its state"
        elif position.sequence < highest.sequence:
            finding = f"it knows {position.sequence} events, and this node saw {highest.sequence}"
        if finding:
            raise ClusterRefusedError(
                f"the scheduler's state is older than what this node saw of its cluster: {finding}. Start it on the "
                f"newest state, or restore a backup (which begins a new incarnation that this node follows)"
            )

    def checkpoint_directories(self, root: Path, job_id: str, granted: Iterable[GrantedCheckpoint]) -> list[Path]:
        """Where the granted checkpoints lie, in their order; those of other clusters are left out."""
        found = []
        for one in granted:
            if one.incarnation_id in self.lineage:
                found.append(checkpoint_directory(root, job_id, one.fence, one.incarnation_id))
            if one.incarnation_id in (*self.lineage, "") and self._legacy_id in (*self.lineage, ""):
                # An older agent wrote it, which knew no incarnations.
                found.append(checkpoint_directory(root, job_id, one.fence, ""))
        return found

    def has_checkpoints(self, root: Path) -> bool:
        """Whether any job of the present cluster has left a checkpoint below the root."""
        roots = [root / incarnation_id for incarnation_id in self.lineage]
        roots += [root] if self._legacy_id in (*self.lineage, "") else []
        return any(True for one in roots for _ in one.glob(f"*/*/{MANIFEST_NAME}"))

    def _store(self) -> None:
        if self._path is not None:
            write_json(
                self._path,
                {
                    "installation_id": self.installation_id,
                    "folder": self._folder,
                    "seen": _record(self.seen),
                    "ancestor_ids": list(self.ancestor_ids),
                    "legacy_incarnation_id": self._legacy_id,
                    "former": [_record(one) for one in self._former.values()],
                },
            )
        self._stored, self._stored_at_ms = replace(self.seen), boot_ms()


def _folder_of(path: Path | None) -> str:
    """What no copy of a state directory has in common with it; empty = it is not held (tests)."""
    if path is None:
        return ""
    try:
        held = path.with_name(LOCK_NAME).stat()
    except OSError:
        return ""
    return f"{held.st_ino}.{held.st_ctime_ns}"


def _record(position: LogPosition) -> dict[str, object]:
    return {
        "incarnation_id": position.incarnation_id,
        "generation": position.generation,
        "start_id": position.start_id,
        "sequence": position.sequence,
        "seal": position.seal.hex(),
    }


def _position(record: Mapping[str, object] | None) -> LogPosition:
    """A stored position; what is not one counts as none."""
    seal = b""
    with contextlib.suppress(ValueError):
        seal = bytes.fromhex(read_text(record, "seal"))
    return LogPosition(
        incarnation_id=read_text(record, "incarnation_id"),
        generation=read_integer(record, "generation"),
        start_id=read_text(record, "start_id"),
        sequence=read_integer(record, "sequence"),
        seal=seal,
    )


def _part(record: Mapping[str, object] | None, name: str) -> Mapping[str, object] | None:
    value = (record or {}).get(name)
    return value if isinstance(value, dict) else None


def _parts(record: Mapping[str, object] | None, name: str) -> list[Mapping[str, object]]:
    value = (record or {}).get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(record: Mapping[str, object] | None, name: str) -> tuple[str, ...]:
    value = (record or {}).get(name)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()

"""Rows of a snapshot that have no id, or that of another row: what they describe takes no job, the others stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from cotenant.v1 import scheduling_pb2
from scheduler_service.core.decisions import Hold
from scheduler_service.core.records import Reason

REPEATED_ID: Final = "REPEATED_ID"
_NAME_CHARACTERS_MAX: Final = 200


def repeats_ids(snapshot: scheduling_pb2.Snapshot) -> bool:
    """Say whether any node, GPU or job has no id or that of another one."""
    nodes = [node.node_id for node in snapshot.nodes]
    gpus = [gpu.gpu_id for node in snapshot.nodes for gpu in node.gpus]
    jobs = [*(row.job.job_id for row in snapshot.running), *(row.job.job_id for row in snapshot.pending)]
    return any(map(repeats, (nodes, gpus, jobs)))


def repeats(names: Collection[str]) -> bool:
    """Say whether one of some names is empty or that of another one."""
    distinct = set(names)
    return len(distinct) != len(names) or "" in distinct


class RepeatedRows:
    """Makes ids unique in a snapshot, which it changes.

    Of nodes, GPUs and running jobs the first row stays, with what the others hold, and takes no further job; waiting
    jobs are held.

    Args:
        snapshot: A copy that may be changed.
    """

    def __init__(self, snapshot: scheduling_pb2.Snapshot) -> None:
        self._snapshot = snapshot
        self.messages: list[str] = []
        self.held: list[Hold] = []

    def merge(self) -> None:
        """Do it; `messages` and `held` say what was found."""
        self._merge_nodes()
        self._merge_gpus()
        self._merge_running()
        self._hold_pending()

    def _tell(self, field: str, name: str, consequence: str) -> None:
        said = f"{name[:_NAME_CHARACTERS_MAX]!r} occurs more than once" if name else "is empty"
        self.messages.append(f"snapshot.{field}: {said}; {consequence}")

    def _merge_nodes(self) -> None:
        nodes = self._snapshot.nodes
        repeated = {*_repeated(node.node_id for node in nodes)}
        for name in sorted(repeated):
            self._tell("nodes.node_id", name, "the node takes no job")
        first, again = dict[str, int](), list[int]()
        for number, node in enumerate(nodes):
            if node.node_id in repeated:
                node.schedulable = False
                known = first.setdefault(node.node_id, number)
                if known != number:
                    nodes[known].gpus.extend(node.gpus)
                    again.append(number)
        _delete(nodes, again)

    def _merge_gpus(self) -> None:
        repeated = {*_repeated(gpu.gpu_id for node in self._snapshot.nodes for gpu in node.gpus)}
        for name in sorted(repeated):
            self._tell("nodes.gpus.gpu_id", name, "the GPU takes no job")
        seen: set[str] = set()
        for node in self._snapshot.nodes if repeated else ():
            again: list[int] = []
            for number, gpu in enumerate(node.gpus):
                if gpu.gpu_id in repeated:
                    gpu.healthy = False
                if gpu.gpu_id in seen:
                    again.append(number)
                seen.add(gpu.gpu_id)
            _delete(node.gpus, again)

    def _merge_running(self) -> None:
        rows = self._snapshot.running
        repeated = {*_repeated(row.job.job_id for row in rows)}
        for name in sorted(repeated):
            self._tell("running.job.job_id", name, "the job's GPUs take no other job")
        first, again = dict[str, int](), list[int]()
        held: dict[str, dict[str, None]] = {}
        for number, row in enumerate(rows):
            if row.job.job_id in repeated:
                if first.setdefault(row.job.job_id, number) != number:
                    again.append(number)
                held.setdefault(row.job.job_id, {}).update(dict.fromkeys(part.gpu_id for part in row.assignments))
        for name, number in first.items():
            del rows[number].assignments[:]
            for rank, gpu_id in enumerate(held[name]):
                rows[number].assignments.add(gpu_id=gpu_id, rank=rank)
        _delete(rows, again)
        self._close({gpu_id for gpu_ids in held.values() for gpu_id in gpu_ids})

    def _close(self, gpu_ids: Collection[str]) -> None:
        for gpu in (gpu for node in self._snapshot.nodes for gpu in node.gpus if gpu_ids):
            gpu.healthy = gpu.healthy and gpu.gpu_id not in gpu_ids

    def _hold_pending(self) -> None:
        rows, running = self._snapshot.pending, {row.job.job_id for row in self._snapshot.running}
        names = [row.job.job_id for row in rows]
        counts = Counter(names)
        repeated = dict.fromkeys([*_repeated(names), *(name for name in names if name in running)])
        for name in repeated:
            self._tell("pending.job.job_id", name, "the job is held")
            self.held.append(Hold(job_id=name, reason=Reason(code=REPEATED_ID, numbers={"rows_count": counts[name]})))
        _delete(rows, [number for number, name in enumerate(names) if name in repeated])


def _repeated(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that occur more than once, and the empty one."""
    return (name for name, count in Counter(names).items() if count > 1 or not name)


def _delete(rows: object, numbers: Sequence[int]) -> None:
    for number in reversed(numbers):
        del rows[number]  # type: ignore[attr-defined]

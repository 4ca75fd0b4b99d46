"""Answers kube-scheduler, which asks before it places a pod: on which nodes it would be well, and on which best.

Whatever is wrong, all nodes are good and none is better: kube-scheduler then places as it would without us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cotenant.engines.kubernetes import pods
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of, texts_of
from cotenant.engines.records import EngineJob, EnginePhase, EngineState
from cotenant.engines.snapshots import make_snapshot
from cotenant.errors import CotenantError
from cotenant.v1 import scheduling_pb2

SCORE_MAX: Final = 10
NODES_MAX: Final = 64
"""Nodes with GPUs that are looked at for one pod; the others are as good as any."""
ASSUMED_MS: Final = 15_000
"""So long a pod is taken to run where it scored best: kube-scheduler binds it later than it asks about the next one."""
ASSUMED_PODS_MAX: Final = 1_000
READING_MS: Final = 1_000
"""So old a reading may be: of a large cluster it takes as long, and many pods may be asked about at once."""
_OPEN_SCORE: Final = SCORE_MAX // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opinion:
    """What was said about one pod.

    Attributes:
        failed: Why not, by node.
        best: Empty = none is better than the others.
    """

    failed: Mapping[str, str]
    best: str = ""


_NO_OPINION: Final = _Opinion(failed={})


class Extender:
    """Filters and scores; may be asked from several threads.

    Args:
        read: Returns the cluster as it is now.
        decide: Asks the scheduler service.
        policy: That decides.
        now_ms: Clock.
        tell: Gets what went wrong.
    """

    def __init__(
        self,
        read: Callable[[], EngineState],
        decide: Callable[[scheduling_pb2.DecideRequest], scheduling_pb2.DecideResponse],
        *,
        policy: str,
        now_ms: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        self._read = read
        self._decide = decide
        self._policy = policy
        self._now_ms = now_ms
        self._tell = tell
        self._lock = threading.Lock()
        self._assumed: dict[str, tuple[int, EngineJob, _Opinion]] = {}
        self._reading: tuple[int, EngineState] | None = None

    def filter(self, arguments: Row) -> dict[str, Any]:
        """Return an ExtenderFilterResult for ExtenderArgs."""
        pod, names = _pod_and_nodes(arguments)
        opinion = self._opinion(pod, names)
        kept = [name for name in names if name not in opinion.failed]
        answer: dict[str, Any] = {"NodeNames": kept, "FailedNodes": dict(opinion.failed), "Error": ""}
        nodes = rows_of(_field(arguments, "Nodes"), "items")
        if nodes:
            wanted = set(kept)
            answer["Nodes"] = {"items": [row for row in nodes if text_of(row, "metadata", "name") in wanted]}
        return answer

    def prioritize(self, arguments: Row) -> list[dict[str, Any]]:
        """Return a HostPriorityList for ExtenderArgs, by what `filter` found just before."""
        pod, names = _pod_and_nodes(arguments)
        with self._lock:
            _, _, opinion = self._assumed.get(pods.job_id_of(pod), (0, None, _NO_OPINION))
        worth = {opinion.best: SCORE_MAX}
        rest = _OPEN_SCORE if opinion.best else 0
        return [{"Host": name, "Score": worth.get(name, rest)} for name in names]

    def _opinion(self, pod: Row, names: Sequence[str]) -> _Opinion:
        job_id = pods.job_id_of(pod)
        if pods.tag_of(pod) is None:
            return _NO_OPINION
        # One after the other: the next pod must find what was said about this one.
        with self._lock:
            self._assumed.pop(job_id, None)
            try:
                return self._asked(job_id, names)
            except CotenantError as error:
                self._tell(f"warning: {error.message}; pod {job_id} is placed as without cotenant")
                return _NO_OPINION

    def _asked(self, job_id: str, names: Sequence[str]) -> _Opinion:
        now_ms = self._now_ms()
        state = self._with_assumed(self._recent(job_id, now_ms), now_ms)
        job = _waiting(state, job_id)
        gpu_nodes = {node.node_id for node in state.nodes}
        candidates = [name for name in names if name in gpu_nodes][:NODES_MAX]
        if job is None or not candidates:
            return _NO_OPINION
        wanted = {f"{job_id}#{place}": name for place, name in enumerate(candidates)}
        # Once for every node alone, which decides whether it fits; once for all of them, which says where best.
        each = [replace(job, job_id=copy, allowed_node_ids=(name,)) for copy, name in wanted.items()]
        best = self._decisions(state, [replace(job, allowed_node_ids=tuple(candidates))], now_ms).get(job_id)
        decisions = self._decisions(state, each, now_ms)
        # A row that could not be decided on has no decision, and its node stays.
        failed = {
            name: f"cotenant: {decisions[copy].reason.message}"
            for copy, name in wanted.items()
            if copy in decisions and decisions[copy].WhichOneof("action") == "hold"
        }
        gpu_ids = tuple(part.gpu_id for part in best.start.assignments) if best is not None else ()
        nodes = {gpu_id.rpartition("/")[0] for gpu_id in gpu_ids}
        opinion = _Opinion(failed=failed, best=nodes.pop() if len(nodes) == 1 else "")
        if opinion.best:
            self._assume(job, opinion, gpu_ids, now_ms, state)
        return opinion

    def _recent(self, job_id: str, now_ms: int) -> EngineState:
        """Return the last reading where it is young and knows the pod, else a new one."""
        if self._reading is not None:
            read_at_ms, state = self._reading
            if now_ms - read_at_ms < READING_MS and _waiting(state, job_id) is not None:
                return state
        state = self._read()
        self._reading = (now_ms, state)
        return state

    def _decisions(
        self, state: EngineState, pending: Iterable[EngineJob], now_ms: int
    ) -> dict[str, scheduling_pb2.Decision]:
        snapshot = make_snapshot(state, pending, now_ms=now_ms)
        answer = self._decide(scheduling_pb2.DecideRequest(policy=self._policy, snapshot=snapshot))
        return {one.job_id: one for one in answer.decisions}

    def _assume(
        self, job: EngineJob, opinion: _Opinion, gpu_ids: Sequence[str], now_ms: int, state: EngineState
    ) -> None:
        gpus = state.gpus
        held = {gpu_id: 1 if gpus[gpu_id].slots else 0 for gpu_id in gpu_ids if gpu_id in gpus}
        running = replace(job, phase=EnginePhase.RUNNING, held_slots=held, allowed_node_ids=())
        while len(self._assumed) >= ASSUMED_PODS_MAX:
            del self._assumed[next(iter(self._assumed))]
        self._assumed[job.job_id] = (now_ms + ASSUMED_MS, running, opinion)

    def _with_assumed(self, state: EngineState, now_ms: int) -> EngineState:
        """Add the pods that were answered for and are not seen bound yet."""
        waiting = {job.job_id for job in state.jobs if job.phase is EnginePhase.WAITING}
        self._assumed = {
            job_id: entry for job_id, entry in self._assumed.items() if entry[0] > now_ms and job_id in waiting
        }
        jobs = [job for job in state.jobs if job.job_id not in self._assumed]
        return replace(state, jobs=(*jobs, *(job for _, job, _ in self._assumed.values())))


def _waiting(state: EngineState, job_id: str) -> EngineJob | None:
    return next((job for job in state.jobs if job.job_id == job_id and job.phase is EnginePhase.WAITING), None)


def _pod_and_nodes(arguments: Row) -> tuple[Row, list[str]]:
    """Return the pod, and the names of the nodes whichever way they are sent."""
    names = texts_of({"names": _field(arguments, "NodeNames")}, "names")
    rows = rows_of(_field(arguments, "Nodes"), "items")
    return row_of(_field(arguments, "Pod")), names or [text_of(row, "metadata", "name") for row in rows]


def _field(arguments: Row, name: str) -> object:
    """Return a field; Go writes and reads names in any case."""
    return next((value for key, value in arguments.items() if key.lower() == name.lower()), None)

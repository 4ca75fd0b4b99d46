"""Users and operators who change the queue: hold, release and retry jobs, cordon, drain and uncordon nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cotenant.access.callers import Caller
from cotenant.v1 import scheduling_pb2
from scheduler_service.core.records import Phase
from scheduler_service.grpc_api.queue.queue_requests import QueueRequests
from scheduler_service.live_loop import Mutation

if TYPE_CHECKING:
    from scheduler_service.core.state import ClusterState
    from tests.simulation.swarm.world import World

_RETRIED = (Phase.FAILED, Phase.CANCELLED)


class QueueChanges:
    """Draws what they want from what there is; where nobody answers, they leave it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._retries = 0

    def change_one(self) -> None:
        """Somebody changes something."""
        state = self._state()
        if state is None:
            return
        kind = self._world.generator.choice(("hold", "hold", "release", "retry", "cordon", "drain", "uncordon"))
        if kind in ("cordon", "drain", "uncordon"):
            self._change_node(state, kind)
        else:
            self._change_job(state, kind)

    def settle(self) -> None:
        """Release every held job and uncordon every node, as after the faults."""
        state = self._state()
        for job_id in sorted(state.in_phase(Phase.PENDING)) if state is not None else ():
            if state is not None and state.jobs[job_id].request.terms.is_held:
                self._order("release", job_id)
        for node_id, node in state.nodes.items() if state is not None else ():
            if node.is_cordoned:
                self._order("uncordon", node_id)

    def _state(self) -> ClusterState | None:
        loop = self._world.schedulers[0].loop
        return loop.engine.state if loop is not None else None

    def _change_node(self, state: ClusterState, kind: str) -> None:
        if state.nodes:
            self._order(kind, self._world.generator.choice(sorted(state.nodes)))

    def _change_job(self, state: ClusterState, kind: str) -> None:
        phases = _RETRIED if kind == "retry" else (Phase.PENDING,)
        found = sorted(job_id for phase in phases for job_id in state.in_phase(phase))
        if found:
            self._order(kind, self._world.generator.choice(found))

    def _order(self, kind: str, name: str) -> None:
        self._world.trace(kind, name)
        make = self._retry if kind == "retry" else _ORDERS[kind]
        self._world.users.order_once(lambda cluster: make(_queue(cluster), name))

    def _retry(self, queue: QueueRequests, job_id: str) -> Mutation:
        """A job once more, under a name of its own: an older state may not know that the first one has ended."""
        spec = queue.repeated_spec(job_id)
        self._retries += 1
        token = f"{spec.environment['SEED']}r{self._retries}"
        self._world.plans[token] = replace(self._world.plans[spec.environment["SEED"]], token=token)
        spec.environment["SEED"] = token
        return queue.submission(scheduling_pb2.SubmitJobRequest(spec=spec))


def _queue(cluster: Any) -> QueueRequests:
    return QueueRequests(engine=cluster.engine, numbers=cluster.numbers, caller=Caller())


_ORDERS: dict[str, Callable[[QueueRequests, str], Mutation]] = {
    "hold": lambda queue, name: queue.hold(scheduling_pb2.HoldJobRequest(job_id=name)),
    "release": lambda queue, name: queue.release(scheduling_pb2.ReleaseJobRequest(job_id=name)),
    "cordon": lambda queue, name: queue.cordon(scheduling_pb2.CordonNodeRequest(node_id=name)),
    "drain": lambda queue, name: queue.cordon(scheduling_pb2.CordonNodeRequest(node_id=name, drain=True)),
    "uncordon": lambda queue, name: queue.uncordon(scheduling_pb2.UncordonNodeRequest(node_id=name)),
}

"""Whether a running job may have free GPUs: not where a job waits that could use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from scheduler_service.core.queue.lanes import Lane, LaneName
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.queue.ready_queue import NO_LANE
from scheduler_service.core.queue.turn_order import Queue, Turn

USELESS_CODES = frozenset(
    {
        "DEVICES_NOT_IN_CLUSTER",
        "GANG_NEEDS_MORE_NODES",
        "GPUS_NOT_IN_CLUSTER",
        "MEMORY_EXCEEDS_GPU",
        "NODES_NOT_REACHABLE",
        "NODES_TOGETHER_TOO_SMALL",
        "NO_ALLOWED_GPU",
        "NO_SHARED_STORAGE",
        "PEAK_EXCEEDS_GPU",
    }
)
"""Why a job waits that could not start if the whole cluster were free: no GPU that is left to it brings it nearer."""
JOBS_LOOKED_AT_MAX = 1_000
"""Of each lane; where so many could not start, a later one is taken for one that could."""


def is_wanted_by_others(state: Queue, turn: Turn, device: str) -> bool:
    """Say whether GPUs of a device type are left to jobs that wait, before a running job grows into them.

    In the turn of a lane they are left to those lanes that were not asked yet: what these said in the decision before
    is old. In the last turn all were asked; there it counts why each job waits, since the policy, which is shown none,
    might just have taken GPUs from a running job for one of them.
    """
    lanes = state.waiting.lanes
    if turn.lane is not NO_LANE:
        return any(name != turn.lane and name not in turn.asked for name, _ in _with_room(state, lanes.items(), device))
    return any(_has_user(state, name, lane) for name, lane in _with_room(state, lanes.items(), device))


def _with_room(state: Queue, lanes: Iterable[tuple[LaneName, Lane]], device: str) -> Iterator[tuple[LaneName, Lane]]:
    """Yield the lanes that may have such a device and whose tenant's quota has room for one of their jobs."""
    for name, lane in lanes:
        if is_device_named(name.devices, device) and has_room(lane, state.tenants.gpus_left(name.tenant)):
            yield name, lane


def has_room(lane: Lane, gpus_left: int | None) -> bool:
    """Say whether what is left of a quota (None = there is none) is enough for a job of a lane."""
    return gpus_left is None or len(lane.wider_ids(gpus_left)) < len(lane)


def _has_user(state: Queue, name: LaneName, lane: Lane) -> bool:
    """Say whether a job of a lane could start some time."""
    left = state.tenants.gpus_left(name.tenant)
    fitting = (job.request for job in lane.queue if left is None or job.request.gpus <= left)
    reasons = (state.decisions.reason_of(one.job_id) for one in islice(fitting, JOBS_LOOKED_AT_MAX))
    is_all_looked_at = len(lane) <= JOBS_LOOKED_AT_MAX
    return not is_all_looked_at or any(reason is None or reason.code not in USELESS_CODES for reason in reasons)

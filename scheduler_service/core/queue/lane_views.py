"""What of the cluster the jobs of a lane see."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.spanning import can_span, checkpoint_pool, widest_pool
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.queue.lanes import LaneName
from scheduler_service.core.queue.queue_terms import is_device_named


def seen_in_lane(view: SchedulingView, lane: LaneName | None) -> SchedulingView:
    """Return a view without the GPUs that the jobs of a lane do not want.

    Jobs that may span nodes see those of one pool of checkpoints, and take as many of them as they need; no other job
    is moved for them, since it may not span nodes.
    """
    if lane is not None and lane.across_nodes:
        view = _across_nodes(view)
    if lane is None or not lane.devices:
        return view
    gpus = {name: entry for name, entry in view.gpus.items() if is_device_named(lane.devices, entry.gpu.device)}
    return replace(view, gpus=gpus, index=FreshIndex())


def _across_nodes(view: SchedulingView) -> SchedulingView:
    pool = widest_pool(view)
    nodes = {name: node for name, node in view.nodes.items() if can_span(node) and checkpoint_pool(node) == pool}
    gpus = {gpu_id: entry for gpu_id, entry in view.gpus.items() if entry.node_id in nodes}
    return replace(view, nodes=nodes, gpus=gpus, nodes_per_job_max=0, can_move=False, index=FreshIndex())

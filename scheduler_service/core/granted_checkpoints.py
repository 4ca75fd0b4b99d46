"""Which attempts of a job have checkpoints that later ones may resume, and where they lie."""

from __future__ import annotations

from typing import Any

from scheduler_service.core.job_records import JobRecord

GRANTED_FENCES_MAX = 16


def grants_after(job: JobRecord) -> dict[str, Any]:
    """Return what the end of the present attempt changes of that: it comes first, and the oldest leave."""
    # Where attempts ran that ended before this was kept is not known.
    known = (*job.granted_node_ids, *[""] * (len(job.granted_fences) - len(job.granted_node_ids)))
    parts = (*job.granted_parts, *[()] * (len(job.granted_fences) - len(job.granted_parts)))
    first_node_id = next(iter(job.node_ids), "")
    return {
        "granted_fences": (job.fence, *job.granted_fences)[:GRANTED_FENCES_MAX],
        "granted_node_ids": (first_node_id, *known)[:GRANTED_FENCES_MAX],
        "granted_parts": (job.node_ids if job.gang is not None else (), *parts)[:GRANTED_FENCES_MAX],
    }


def checkpoint_sources(job: JobRecord, node_id: str, fence: int) -> tuple[str, ...]:
    """Return which nodes a node may have a checkpoint from for the present attempt, the likeliest first; empty = none.

    Args:
        job: Whose it is.
        node_id: Who asks.
        fence: Under which it was written.
    """
    if fence not in job.granted_fences:
        return ()
    if job.gang is not None and node_id != job.node_ids[0]:
        # All ranks go on from the checkpoint that the first node has chosen, and has by now.
        return job.node_ids[:1] if fence == job.gang.resumed_fence else ()
    place = job.granted_fences.index(fence)
    parts = job.granted_parts[place : place + 1]
    found = (*job.granted_node_ids[place : place + 1], *(parts[0] if parts else ()))
    return tuple(dict.fromkeys(filter(None, found)))

"""Which attempts of a job have checkpoints that later ones may resume, and where they lie."""

from __future__ import annotations

from scheduler_service.core.jobs.job_parts import GrantedCheckpoints
from scheduler_service.core.jobs.job_records import JobRecord

GRANTED_FENCES_MAX = 16


def granted_after(job: JobRecord) -> GrantedCheckpoints:
    """Return them as they are when the present attempt has ended: it comes first, and the oldest leave."""
    # Where attempts ran that ended before this was kept is not known.
    granted = job.granted
    known, parts = granted.node_ids, granted.parts
    if len(known) < len(granted.fences):
        known = (*known, *[""] * (len(granted.fences) - len(known)))
    if len(parts) < len(granted.fences):
        parts = (*parts, *[()] * (len(granted.fences) - len(parts)))
    first_node_id = job.node_ids[0] if job.node_ids else ""
    return GrantedCheckpoints(
        fences=(job.fence, *granted.fences)[:GRANTED_FENCES_MAX],
        node_ids=(first_node_id, *known)[:GRANTED_FENCES_MAX],
        parts=(job.node_ids if job.gang is not None else (), *parts)[:GRANTED_FENCES_MAX],
    )


def checkpoint_sources(job: JobRecord, node_id: str, fence: int) -> tuple[str, ...]:
    """Return which nodes a node may have a checkpoint from for the present attempt, the likeliest first; empty = none.

    Args:
        job: Whose it is.
        node_id: Who asks.
        fence: Under which it was written.
    """
    granted = job.granted
    if fence not in granted.fences:
        return ()
    if job.gang is not None and node_id != job.node_ids[0]:
        # All ranks go on from the checkpoint that the first node has chosen, and has by now.
        return job.node_ids[:1] if fence == job.gang.resumed_fence else ()
    place = granted.fences.index(fence)
    parts = granted.parts[place : place + 1]
    found = (*granted.node_ids[place : place + 1], *(parts[0] if parts else ()))
    return tuple(dict.fromkeys(filter(None, found)))

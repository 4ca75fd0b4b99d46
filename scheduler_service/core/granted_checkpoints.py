"""Which attempts of a job have checkpoints that later ones may resume, and where they lie."""

from __future__ import annotations

from scheduler_service.core.job_records import JobRecord

GRANTED_FENCES_MAX = 16


def grants_after(job: JobRecord) -> dict[str, tuple[int, ...] | tuple[str, ...]]:
    """Return what the end of the present attempt changes of that: it comes first, and the oldest leave."""
    # Where attempts ran that ended before this was kept is not known.
    known = (*job.granted_node_ids, *[""] * (len(job.granted_fences) - len(job.granted_node_ids)))
    first_node_id = next(iter(job.node_ids), "")
    return {
        "granted_fences": (job.fence, *job.granted_fences)[:GRANTED_FENCES_MAX],
        "granted_node_ids": (first_node_id, *known)[:GRANTED_FENCES_MAX],
    }

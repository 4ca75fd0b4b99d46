"""What agents say of the parts of gangs that are done, and what they are told of each other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from cotenant.v1 import node_agent_pb2
from scheduler_service.core.jobs.job_records import JobRecord

DoneParts = AbstractSet[tuple[str, int]]
"""Jobs and fences of the parts on one node whose ranks have all ended with 0, and not their parameter servers."""


def done_parts(heartbeat: node_agent_pb2.Heartbeat) -> DoneParts:
    """Read which parts of gangs have only parameter servers left."""
    keys = (observation.key for observation in heartbeat.attempts if observation.are_ranks_done)
    return frozenset((key.job_id, key.fence) for key in keys)


def ended_parts(
    jobs: Mapping[str, JobRecord],
    renewed: Iterable[node_agent_pb2.AttemptKey],
    done_elsewhere: Mapping[str, DoneParts] = MappingProxyType({}),
) -> list[node_agent_pb2.EndedParts]:
    """Name the gangs of which parts have ended with success on other nodes; of those that run nothing else has ended.

    Args:
        jobs: By id.
        renewed: Attempts of the node that is told.
        done_elsewhere: What has only servers left, by other node.
    """
    counts = ((key, len(_ended_on(jobs[key.job_id], done_elsewhere))) for key in renewed)
    return [node_agent_pb2.EndedParts(key=key, parts=parts) for key, parts in counts if parts]


def _ended_on(job: JobRecord, done_elsewhere: Mapping[str, DoneParts]) -> set[str]:
    if job.gang is None:
        return set()
    part = (job.job_id, job.fence)
    return {*job.gang.ended_node_ids, *(one for one in job.node_ids if part in done_elsewhere.get(one, ()))}

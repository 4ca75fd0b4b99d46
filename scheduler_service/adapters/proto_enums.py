"""Enumerations of the contract mapped to those of the core."""

from __future__ import annotations

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.records import Level, Phase, Share

# A paused job is shown as running, with a `pause`: a client that knows no other phase still knows where it is.
PHASE_TO_PROTO = {
    phase: scheduling_pb2.JobPhase.Value(f"JOB_PHASE_{(Phase.RUNNING if phase is Phase.PAUSED else phase).name}")
    for phase in Phase
}
PHASES_FROM_PROTO = {
    number: frozenset(phase for phase in Phase if PHASE_TO_PROTO[phase] == number) for number in PHASE_TO_PROTO.values()
}
SHARE_TO_PROTO = {share: resources_pb2.ShareMode.Value(f"SHARE_MODE_{share.name}") for share in Share}
SHARE_FROM_PROTO = {number: share for share, number in SHARE_TO_PROTO.items()} | {
    resources_pb2.SHARE_MODE_UNSPECIFIED: Share.SAFE
}
LEVEL_TO_PROTO = {level: resources_pb2.EstimateLevel.Value(f"ESTIMATE_LEVEL_{level.name}") for level in Level}
# What does not state its basis is not to be relied on.
LEVEL_FROM_PROTO = {number: level for level, number in LEVEL_TO_PROTO.items()} | {
    resources_pb2.ESTIMATE_LEVEL_UNSPECIFIED: Level.FALLBACK
}

"""After a restore: an operator's confirmation, and what nodes still run of the time after the backup."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cotenant.access.callers import current_caller
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.storage.cluster_identity import RESTORE_UNCONFIRMED, ClusterIdentity, Standstill
from scheduler_service.core.events import RestoreConfirmed
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import StandstillError
from scheduler_service.grpc_api.validation import body_sha256
from scheduler_service.grpc_api.visibility import actor_of
from scheduler_service.live_loop import LiveLoop, Mutation, Proposal

_log = logging.getLogger(__name__)

UNKNOWN_ATTEMPT = "UNKNOWN_ATTEMPT"
NAMED_ATTEMPTS_MAX = 20


async def confirm_restore(
    request: scheduling_pb2.ConfirmRestoreRequest,
    loop: LiveLoop,
    identity: ClusterIdentity,
    standstill: Standstill,
    store_confirmation: Callable[[], None],
) -> None:
    """Store who confirms, then let the nodes join; repeating it, and confirming what was not restored, is harmless.

    Raises:
        StandstillError: The scheduler stands still for another reason.
        StateUnwritableError: The disk refuses; nothing has changed, or it is to be asked again.
    """
    if standstill.code not in ("", RESTORE_UNCONFIRMED):
        raise StandstillError(standstill.message)
    caller = current_caller()

    def propose() -> Proposal:
        is_awaited = standstill.code == RESTORE_UNCONFIRMED
        event = RestoreConfirmed(at_ms=0, incarnation_id=identity.incarnation_id, actor=actor_of(caller))
        return Proposal(event=event if is_awaited else None, answer=identity.incarnation_id)

    mutation = Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))
    await loop.mutate(mutation)
    # Of a repeated request too: its event may be stored, and what follows may have failed.
    if standstill.code == RESTORE_UNCONFIRMED:
        await loop.store_apart(store_confirmation)
        standstill.end()
        found = {"incarnation_id": identity.incarnation_id, "role": caller.role or "", "caller": caller.name}
        _log.warning("restore_confirmed", extra=found)


def unknown_attempt_warnings(state: ClusterState, identity: ClusterIdentity) -> Sequence[resources_pb2.Warning]:
    """Return one warning per attempt of an earlier incarnation that is being stopped, for 20 of them and the rest."""
    found = [
        one for one in state.abandoned_attempts.values() if identity.is_ancestors(one.incarnation_id, fence=one.fence)
    ]
    texts = [
        f"node {one.node_id} runs attempt {one.attempt} of a {one.job_id} by order of before the restore, and this "
        "state does not hold it: it is being stopped with a checkpoint (`cotenant audit` keeps the list)"
        for one in found[:NAMED_ATTEMPTS_MAX]
    ]
    more = len(found) - NAMED_ATTEMPTS_MAX
    texts += [f"{more} more attempts of that kind are being stopped (`cotenant audit` lists them)"] * (more > 0)
    return [resources_pb2.Warning(code=UNKNOWN_ATTEMPT, message=text) for text in texts]

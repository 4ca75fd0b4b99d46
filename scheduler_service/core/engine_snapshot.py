"""The engine's whole memory as JSON-able values and back: what a log is compacted to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from scheduler_service.core.codec import FORMAT_VERSION, check_version, decode, encode
from scheduler_service.core.decisions import Decision, Hold
from scheduler_service.core.errors import CodecError
from scheduler_service.core.event_effects import PutOff
from scheduler_service.core.jobs.job_records import AbandonedAttempt, JobRecord, RejectedDecision
from scheduler_service.core.predictions.key_use import KeyUse
from scheduler_service.core.predictions.stored_predictions import StoredPredictions
from scheduler_service.core.queue.tenants import TenantRules, UsedTime
from scheduler_service.core.records import Node, Phase, Reason
from scheduler_service.core.state import ClusterState

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHold:
    """Why a pending job waits, and until when."""

    reason: Reason
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """Everything that cannot be computed from something else here.

    Attributes:
        jobs: In the order in which they entered their phase, phase by phase.
        holds: Jobs that the engine itself holds back.
        decisions: Newest decision of the other pending jobs.
    """

    now_ms: int
    seed: int
    next_fence: int
    policy: str
    parameters: Mapping[str, object]
    decided_at_ms: int
    nodes: tuple[Node, ...]
    jobs: tuple[JobRecord, ...]
    abandoned_attempts: tuple[AbandonedAttempt, ...]
    living_keys: Mapping[str, KeyUse]
    devices: Mapping[str, int]
    holds: Mapping[str, Reason]
    decisions: Mapping[str, StoredHold]
    predictions: StoredPredictions
    wakes_at_ms: tuple[int, ...]
    rejected: tuple[RejectedDecision, ...] = field(default=())
    slowdown_ewma_ratios: Mapping[str, float] = field(default_factory=dict)
    settled_at_ms: int = 0
    tenant_rules: TenantRules | None = None
    tenant_use: Mapping[str, UsedTime] = field(default_factory=dict)
    put_off: PutOff | None = None
    silence: str = ""


class Pace(Protocol):
    """Yields the entries of long work; may pause between two of them."""

    def __call__(self, entries: Iterable[_Entry], /) -> Iterable[_Entry]:
        """Yield them, in order."""


class EncodeState(Protocol):
    """Returns a frozen state as JSON-able values."""

    def __call__(self, pace: Pace = iter, /) -> dict[str, object]:
        """Encode, at a pace."""


def freeze_state(state: ClusterState, *, wakes_at_ms: tuple[int, ...]) -> EncodeState:
    """Return what returns the state of this instant as JSON-able values, in any thread and at any time.

    To freeze costs a hundredth of what it costs to encode, since records never change.
    """
    predictions = state.predictions.stored()
    stored = StoredState(
        now_ms=state.now_ms,
        seed=state.seed,
        next_fence=state.next_fence,
        policy=state.policy,
        parameters=state.parameters,
        decided_at_ms=state.decided_at_ms,
        nodes=tuple(state.nodes.values()),
        jobs=tuple(state.jobs[job_id] for phase in Phase for job_id in state.in_phase(phase)),
        abandoned_attempts=tuple(state.abandoned_attempts.values()),
        living_keys=dict(state.living_keys),
        devices=dict(state.devices),
        holds=dict(state.holds),
        decisions=_stored_decisions(state),
        predictions=replace(predictions, refreshes=dict(predictions.refreshes)),
        wakes_at_ms=wakes_at_ms,
        rejected=tuple(state.rejected),
        slowdown_ewma_ratios=dict(state.occupancy.slowdown_ewma_ratios),
        settled_at_ms=state.settled_at_ms,
        tenant_rules=state.tenants.rules,
        tenant_use=state.tenants.stored(),
        put_off=state.put_off,
        silence=state.silence,
    )

    def encoded(pace: Pace = iter, /) -> dict[str, object]:
        body = encode(StoredState, replace(stored, jobs=(), decisions={}))
        # Thousands of entries, nearly all of the work.
        body["jobs"] = [encode(JobRecord, job) for job in pace(stored.jobs)]
        body["decisions"] = {one: encode(StoredHold, hold) for one, hold in pace(stored.decisions.items())}
        return {"format": FORMAT_VERSION, "state": body}

    return encoded


def _stored_decisions(state: ClusterState) -> dict[str, StoredHold]:
    found: dict[str, StoredHold] = {}
    for job_id in state.in_phase(Phase.PENDING):
        decision = state.decisions.get(job_id)
        if isinstance(decision, Hold) and job_id not in state.holds:
            found[job_id] = StoredHold(reason=decision.reason, until_ms=decision.until_ms)
    return found


def decode_state(snapshot: Mapping[str, Any], *, ended_jobs_max: int) -> tuple[ClusterState, tuple[int, ...]]:
    """Return the state that `freeze_state` froze, and the instants at which it wants to be woken.

    Raises:
        UnsupportedVersionError: It was written by a newer version.
        CodecError: It is no snapshot.
    """
    check_version(snapshot.get("format"))
    if snapshot.keys() != {"format", "state"}:
        raise CodecError("a snapshot has exactly the fields format and state")
    stored: StoredState = decode(StoredState, snapshot["state"])
    state = ClusterState(seed=stored.seed, ended_jobs_max=ended_jobs_max)
    state.now_ms, state.next_fence = stored.now_ms, stored.next_fence
    state.settled_at_ms = stored.settled_at_ms
    state.policy, state.parameters = stored.policy, stored.parameters
    state.decided_at_ms, state.put_off = stored.decided_at_ms, stored.put_off
    state.silence = stored.silence
    state.predictions.load(stored.predictions)
    for node in stored.nodes:
        state.put_node(node)
    for gpu_id, ratio in stored.slowdown_ewma_ratios.items():
        state.occupancy.put_slowdown_ewma(gpu_id, ratio)
    _load_jobs(state, stored)
    for abandoned in stored.abandoned_attempts:
        state.occupancy.put_abandoned(abandoned)
    _load_tenants(state, stored)
    state.load_registers(living_keys=stored.living_keys, devices=stored.devices)
    state.rejected.extend(stored.rejected)
    return state, stored.wakes_at_ms


def _load_tenants(state: ClusterState, stored: StoredState) -> None:
    held = Counter[str]()
    for job_id in state.running:
        held[state.jobs[job_id].request.tenant] += state.jobs[job_id].held_gpus
    state.tenants.load(stored.tenant_rules, stored.tenant_use, held)
    pending = [state.jobs[job_id] for job_id in state.in_phase(Phase.PENDING)]
    state.waiting.split_by_tenant(stored.tenant_rules is not None, pending)


def _load_jobs(state: ClusterState, stored: StoredState) -> None:
    """Put jobs that hold GPUs in start order, which is the order of their fences."""
    for job in sorted(stored.jobs, key=lambda job: job.fence if job.holds_gpus else 0):
        state.put_job(job)
        if job.holds_gpus:
            state.decisions.record(Decision(job_id=job.job_id, reason=job.pause.reason if job.pause else job.reason))
    for job_id, reason in stored.holds.items():
        state.set_hold(job_id, reason)
    state.decisions.record_round(
        Hold(job_id=job_id, reason=hold.reason, until_ms=hold.until_ms) for job_id, hold in stored.decisions.items()
    )

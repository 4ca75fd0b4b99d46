"""In which order the lanes have their turns in one decision, and what is kept back from which."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Protocol

from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.lanes import LaneName
from scheduler_service.core.queue.ready_queue import NO_LANE, WaitingJobs
from scheduler_service.core.queue.reservations import BACKFILL_TURNS_MAX, OLDEST_SHOWN_MAX, Reservation, short_jobs
from scheduler_service.core.queue.tenants import TenantUse
from scheduler_service.core.reasons.decision_log import DecisionLog


class Queue(Protocol):
    """Whose jobs wait, and what tenants hold: the engine's state, or that of a snapshot."""

    now_ms: int
    waiting: WaitingJobs
    tenants: TenantUse
    decisions: DecisionLog

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """The waiting jobs, and others, by id."""

    @property
    def gpus_free(self) -> int:
        """GPUs that hold nothing."""

    def keep_back(self, gpu_ids: Iterable[str]) -> None:
        """Let no job start on these GPUs until others are named."""

    def without_jobs(self, gpu_ids: Iterable[str]) -> Sequence[str]:
        """Return those among some GPUs that are usable and that no job holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question to the policy.

    Attributes:
        lane: Whose jobs it is about; `NO_LANE` = it is about what runs.
        gpus_max: GPUs that may be given away in this turn; None = any number.
        job_ids: Only these jobs of the lane are shown, and nothing is done but to start them; None = all of it.
        keeps: Whose GPUs are kept back from the lane; None = no job's.
        backfills: On whose GPUs, where they hold nothing, the jobs shown may start alone all the same.
        asked: The lanes that have had all of their turns in this decision.
    """

    lane: LaneName
    gpus_max: int | None = None
    job_ids: AbstractSet[str] | None = None
    keeps: Reservation | None = None
    backfills: Reservation | None = None
    asked: AbstractSet[LaneName] = frozenset()


def take_turns(state: Queue, reservation: Reservation | None = None) -> Generator[Turn, bool, None]:
    """Yield the turns of one decision; each is told whether the turn before was cut short.

    The state changes between turns, as decisions are carried out.
    """
    for priority in sorted({name.priority for name in state.waiting.lanes}, reverse=True):
        yield from _turns_of_class(state, priority, reservation)
    if reservation is not None:
        yield from _backfill_turns(state, reservation)
    yield Turn(lane=NO_LANE, keeps=reservation)


def _turns_of_class(state: Queue, priority: int, reservation: Reservation | None) -> Generator[Turn, bool, None]:
    by_tenant: dict[str, list[LaneName]] = {}
    oldest_first = sorted(state.waiting.lanes.items(), key=lambda item: item[1].head)
    for name, _ in oldest_first:
        if name.priority == priority:
            by_tenant.setdefault(name.tenant, []).append(name)
    in_turn = state.tenants.in_turn(by_tenant, state.now_ms)
    behind = _tenants_behind(in_turn, priority, reservation)
    turns = {
        tenant: _turns_of_tenant(state, by_tenant[tenant], reservation, is_behind=tenant in behind)
        for tenant in in_turn
    }
    settled: set[LaneName] = set()
    if len(in_turn) > 1:
        dealt = state.tenants.deal(in_turn, state.gpus_free, state.now_ms)
        for tenant in in_turn:
            settled |= yield from _dealt_turns(state, turns[tenant], dealt[tenant])
    for tenant in in_turn:
        for turn in turns[tenant]:
            if turn.lane not in settled and turn.lane in state.waiting.lanes:
                yield turn


def _tenants_behind(in_turn: Sequence[str], priority: int, reservation: Reservation | None) -> Collection[str]:
    """Return the tenants of a class that come after the job for which GPUs are kept back."""
    if reservation is None or priority > reservation.lane.priority:
        return ()
    if priority < reservation.lane.priority:
        return in_turn
    return in_turn[in_turn.index(reservation.lane.tenant) + 1 :]


def _turns_of_tenant(
    state: Queue, lanes: Sequence[LaneName], reservation: Reservation | None, *, is_behind: bool
) -> list[Turn]:
    """Return the turns of one tenant's lanes; next to the lane of a reservation only older jobs have all GPUs."""
    if reservation is None or is_behind or reservation.lane not in lanes:
        return [Turn(lane=name, keeps=reservation if is_behind else None) for name in lanes]
    others = [name for name in lanes if name != reservation.lane]
    older = {name: state.waiting.lanes[name].older_ids(reservation.place, OLDEST_SHOWN_MAX) for name in others}
    return [
        *(Turn(lane=name, job_ids=older[name]) for name in others if older[name]),
        Turn(lane=reservation.lane),
        *(Turn(lane=name, keeps=reservation) for name in others),
    ]


def _dealt_turns(state: Queue, turns: Sequence[Turn], gpus: int) -> Generator[Turn, bool, set[LaneName]]:
    """Yield the turns of a tenant in which it may take what was dealt to it; return the lanes that want no more."""
    settled: set[LaneName] = set()
    for turn in turns:
        if gpus <= 0:
            break
        before = state.tenants.held_gpus(turn.lane.tenant)
        was_cut = yield replace(turn, gpus_max=gpus)
        gpus -= state.tenants.held_gpus(turn.lane.tenant) - before
        if not was_cut and turn.job_ids is None:
            settled.add(turn.lane)
    return settled


def _backfill_turns(state: Queue, reservation: Reservation) -> Iterator[Turn]:
    """Yield turns of the lanes from which GPUs were kept back, with jobs that will have ended in time."""
    turns = 0
    for name in sorted(state.waiting.lanes, key=lambda name: (-name.priority, state.waiting.lanes[name].head)):
        idle = state.without_jobs(reservation.idle_gpu_ids)
        if turns == BACKFILL_TURNS_MAX or not idle:
            return
        is_restrained = name.priority <= reservation.lane.priority and name != reservation.lane
        job_ids = short_jobs(state.waiting.lanes[name], reservation, len(idle)) if is_restrained else frozenset()
        if job_ids:
            turns += 1
            yield Turn(lane=name, job_ids=job_ids, backfills=reservation)

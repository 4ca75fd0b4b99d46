"""What a policy answers: one decision per pending job, further ones for running jobs, in execution order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from scheduler_service.core.copied_record import slotted_record
from scheduler_service.core.jobs.job_shapes import shape_of
from scheduler_service.core.jobs.opportunistic_sharing import MemorySurge
from scheduler_service.core.records import PAUSED_MS_MAX, Assignment, JobRequest, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One GPU as a policy looked at it for a job; `cost` in the policy's own unit, lower is better."""

    gpu_id: str
    feasible: bool
    reason: Reason
    cost: float | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What shall happen to one job, and why."""

    job_id: str
    reason: Reason
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(Decision):
    """Give a job these GPUs.

    Attributes:
        predicted_slowdown_ratio: What the jobs there are expected to slow it down by, 0.2 = 20 % longer steps; None =
            it is alone or nothing is known. The plan check states it, whatever the policy says.
        trial_with: The job that it shares with on trial; empty = on no trial. The plan check states it as well.
        memory_surge: What of its memory it needs now and then; None = it holds all of it. Stated by the plan check too.
    """

    assignments: tuple[Assignment, ...]
    predicted_slowdown_ratio: float | None = None
    trial_with: str = ""
    memory_surge: MemorySurge | None = None


@slotted_record
class Start(Placement):
    """Start a pending job there, with this many samples per GPU and pass.

    Attributes:
        servers: With so many parameter servers; None = as the job states.
    """

    micro_batch_size: int
    accumulation_steps: int = 1
    servers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringStart(Start):
    """Start a job that was never measured next to one that was: the other is paused once it makes steps.

    The reservation is what the other one leaves of the GPU, and the plan check states the rest.
    """


@slotted_record
class Stop(Decision):
    """Stop a running job."""

    checkpoint: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate(Placement):
    """Move a running job to these GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape(Placement):
    """Give a running job another number of GPUs, another micro-batch or another number of parameter servers.

    Attributes:
        servers: So many of these; None = as it has.
    """

    micro_batch_size: int
    accumulation_steps: int = 1
    servers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Decision):
    """Let a running job stand still where it is; GPU and memory stay its own, and no other job starts there meanwhile.

    Attributes:
        paused_ms_max: After this time its node lets it go on by itself; 1 to `PAUSED_MS_MAX`.
    """

    paused_ms_max: int = PAUSED_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Decision):
    """Let a paused job go on."""


@slotted_record
class Hold(Decision):
    """Leave a pending job waiting; `until_ms` 0 = until something changes."""

    until_ms: int = 0


@slotted_record
class HoldMany(Decision):
    """The same hold for many pending jobs: a long queue behind a full cluster costs one object, not thousands.

    Attributes:
        job_id: Empty.
        job_ids: The jobs that wait, in the policy's order.
        until_ms: As in `Hold`.
    """

    job_id: str = ""
    job_ids: tuple[str, ...]
    until_ms: int = 0


class Queued(Protocol):
    """A job in a queue."""

    @property
    def request(self) -> JobRequest:
        """What its owner asked for."""


@slotted_record
class HoldRest(Decision):
    """The same hold for all other pending jobs: its cost does not depend on how many there are.

    Attributes:
        job_id: Empty.
        queue: The view's pending jobs.
        decided: Those among them that have a decision of their own.
        reasons: Why jobs of a shape wait, by `shape_of`; those of other shapes wait for `reason`.
        until_ms: As in `Hold`.
    """

    job_id: str = ""
    queue: Sequence[Queued]
    decided: frozenset[str] = frozenset()
    reasons: Mapping[object, Reason] = field(default_factory=dict)
    until_ms: int = 0

    def reason_of(self, request: JobRequest) -> Reason:
        """Return why one of the other jobs waits."""
        return self.reasons.get(shape_of(request), self.reason) if self.reasons else self.reason


SHARED_HOLDS: Final = (HoldMany, HoldRest)
HOLDS: Final = (Hold, *SHARED_HOLDS)
LEAVES: Final = (Stop, Migrate, Reshape)
PAUSES: Final = (Pause, Resume)
"""For `isinstance`, in every round: where it is given `Pause | Resume` it first makes that union, each time."""


def unfolded(decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield one decision per job, in order, with holds for many jobs replaced by one for each."""
    for decision in decisions:
        if isinstance(decision, HoldRest):
            for job in decision.queue:
                if job.request.job_id not in decision.decided:
                    reason = decision.reason_of(job.request)
                    yield Hold(job_id=job.request.job_id, reason=reason, until_ms=decision.until_ms)
            continue
        if isinstance(decision, HoldMany):
            for job_id in decision.job_ids:
                yield Hold(job_id=job_id, reason=decision.reason, until_ms=decision.until_ms)
        else:
            yield decision

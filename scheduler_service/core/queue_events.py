"""Facts about the queue: what users and operators change of jobs that wait, of nodes, and of the rules for tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_service.core.events import CommandGiven
from scheduler_service.core.queue.tenants import TenantRules
from scheduler_service.core.records import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(CommandGiven):
    """A user wants a pending job to wait until it is released.

    Attributes:
        stops_running: So it is wanted of a running job too, which gives its GPUs up with a checkpoint.
    """

    job_id: str
    stops_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(CommandGiven):
    """A user lets a held job start."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAltered(CommandGiven):
    """A user changed what a pending job asks for, or how long a running one may run.

    Attributes:
        launch: As in `JobSubmitted`, with the changes.
    """

    job_id: str
    priority: int
    share: Share
    max_slowdown_ratio: float
    time_limit_ms: int
    launch: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned(CommandGiven):
    """An operator wants nothing new to start on a node; draining, also that what runs there goes on elsewhere."""

    node_id: str
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned(CommandGiven):
    """An operator lets a node take jobs again."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsChosen(CommandGiven):
    """The rules for tenants are these from now on; without rules all jobs are one tenant's."""

    rules: TenantRules | None = None

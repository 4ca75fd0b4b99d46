"""One run of a job: an actor in the placement group of its GPU. A task is an actor with one method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cotenant.engines.ray.connection import ConnectedRay, answering, seen_gpu
from cotenant.engines.ray.job_records import NAMESPACE
from cotenant.ray import progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job does.

    Attributes:
        target: A function, or the class of an actor.
        is_task: It is a function.
    """

    target: Callable[..., Any]
    is_task: bool
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a task ended: what it returned, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class Attempt(Protocol):
    """A run that was started."""

    @property
    def handle(self) -> Any:  # noqa: ANN401 (Ray's own class)
        """The actor."""

    def place(self) -> tuple[str, str] | None:
        """Return its node and GPU as it sees them; None = it has not said so yet."""

    def outcome(self) -> Outcome | None:
        """Return how its task ended; None = it has not, or it is an actor."""

    def end(self) -> None:
        """Let its process end by itself."""

    def kill(self) -> None:
        """End its process at once."""


class Attempts(Protocol):
    """Starts them."""

    def start(self, job_id: str, work: Work, *, group_id: str, gpu_ratio: float) -> Attempt:
        """Start a job in the placement group of its GPU.

        Args:
            job_id: Name of the actor.
            work: What it does.
            group_id: The placement group.
            gpu_ratio: Part of the GPU, above 0 to 1, as Ray accounts for it.
        """


class RayAttempts:
    """An `Attempts` over Ray.

    Args:
        connected: The cluster.
    """

    def __init__(self, connected: ConnectedRay) -> None:
        self._connected = connected

    def start(self, job_id: str, work: Work, *, group_id: str, gpu_ratio: float) -> Attempt:
        """See `Attempts.start`."""
        ray = self._connected.ray
        options = self._connected.options_on(group_id, gpu_ratio)
        made = ray.remote(_Task) if work.is_task else _actor_class(ray, work.target)
        arguments = ((), {}) if work.is_task else (work.arguments, work.keywords)
        handle = made.options(name=job_id, namespace=NAMESPACE, max_restarts=0, **options).remote(
            *arguments[0], **arguments[1]
        )
        place = handle.__ray_call__.remote(_begin, job_id)
        ended = handle.run.remote(work.target, work.arguments, work.keywords) if work.is_task else None
        return _RayAttempt(ray, handle, place, ended)


class _RayAttempt:
    """An `Attempt` over Ray."""

    def __init__(self, ray: Any, handle: Any, place: Any, ended: Any) -> None:  # noqa: ANN401 (Ray's own classes)
        self._ray = ray
        self.handle = handle
        self._place = place
        self._ended = ended

    def place(self) -> tuple[str, str] | None:
        """See `Attempt.place`."""
        found = self._look(self._place)
        return found.value if found is not None and found.error is None else None

    def outcome(self) -> Outcome | None:
        """See `Attempt.outcome`."""
        ended = self._look(self._ended) if self._ended is not None else None
        if ended is None and (begun := self._look(self._place)) is not None and begun.error is not None:
            # Its constructor raised, or its process could not be started.
            return begun
        return ended

    def end(self) -> None:
        """See `Attempt.end`."""
        with answering("Ray does not end an actor"):
            self.handle.__ray_call__.remote(_flush)
            self.handle.__ray_terminate__.remote()

    def kill(self) -> None:
        """See `Attempt.kill`."""
        with answering("Ray does not end an actor"):
            self._ray.kill(self.handle)

    def _look(self, reference: Any) -> Outcome | None:  # noqa: ANN401 (Ray's own class)
        with answering("Ray does not say whether a task has ended"):
            done, _ = self._ray.wait([reference], timeout=0, fetch_local=False)
        if not done:
            return None
        try:
            return Outcome(value=self._ray.get(reference))
        except Exception as error:
            return Outcome(error=error)


class _Task:
    """Runs one function."""

    def run(self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:  # noqa: ANN401 (whatever the function returns)
        """Run it."""
        return function(*arguments, **keywords)


def _actor_class(ray: Any, target: Any) -> Any:  # noqa: ANN401 (Ray's own classes)
    return target if hasattr(target, "options") else ray.remote(target)


def _begin(_actor: object, job_id: str) -> tuple[str, str]:
    """Runs in the job's process before anything else of it but its constructor."""
    logging.getLogger(__name__).debug("job %s begins", job_id)
    progress.begin(job_id, ConnectedRay.joined())
    return seen_gpu()


def _flush(_actor: object) -> None:
    progress.flush(ConnectedRay.joined())

"""The few things of Ray that cotenant uses, in memory: keys, named actors, placement groups of one GPU each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.placement_notes import placed_note
from cotenant.engines.ray.adapter import RayEngine
from cotenant.engines.ray.job_records import ORDER
from cotenant.engines.ray.tables import ClaimedGpu, RayNode
from cotenant.engines.records import Placement
from cotenant.ray.attempts import Attempt, Outcome, Work
from cotenant.ray.shared_jobs import JobWatch, SharedJob

TAG = "cotenant memory=6GiB utilization=0.3"
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)]


@dataclass
class FakeAttempt:
    """A run whose test says when it ends.

    Attributes:
        seen: Node and GPU as the job sees them.
    """

    ray: FakeRay
    job_id: str
    gpu_ratio: float
    seen: tuple[str, str] | None
    handle: object = field(default_factory=object)
    ended: Outcome | None = None
    orders: list[str] = field(default_factory=list)

    def place(self) -> tuple[str, str] | None:
        """See `Attempt.place`."""
        return self.seen

    def outcome(self) -> Outcome | None:
        """See `Attempt.outcome`."""
        return self.ended

    def end(self) -> None:
        """See `Attempt.end`."""
        self.orders.append("end")
        self.ray.attempts.pop(self.job_id, None)

    def kill(self) -> None:
        """See `Attempt.kill`."""
        self.orders.append("kill")
        self.ray.attempts.pop(self.job_id, None)


class FakeRay:
    """A `RayTables` and `Attempts` of nodes n1 and n2 with two GPUs each, and a driver whose jobs it watches.

    Attributes:
        attempts: Jobs that run, by name.
        started: How often each job was started.
        elsewhere: Node and GPU on which Ray starts these jobs, whatever it was told.
        is_away: It does not answer.
        is_slow: Processes that it was told to start have not begun.
        is_watched: The driver looks at its jobs after every order, as its thread does twice a second.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.attempts: dict[str, FakeAttempt] = {}
        self.started: dict[str, int] = {}
        self.elsewhere: dict[str, tuple[str, str]] = {}
        self.is_away = self.is_watched = self.is_slow = False
        self.now_ms = 1_000_000
        self.groups = [
            ClaimedGpu(group_id=f"{node}{index}", node_hex=f"hex{node}", node_id=node, gpu_index=index)
            for node in ("n1", "n2")
            for index in ("g0", "g1")
        ]
        self.watch = JobWatch(self, self)

    def submit(self, job_id: str, tag: str, target: Callable[..., Any] = print) -> SharedJob:
        """Hand a job in, as a driver does."""
        return self.watch.add(job_id, tag, Work(target=target, is_task=True), now_ms=self.now_ms)

    def pass_time(self, seconds: float = 0.5) -> None:
        """Let the driver look at its jobs."""
        self.now_ms += int(seconds * 1_000)
        self.watch.advance(self.now_ms)

    def finish(self, job_id: str, value: object = None) -> None:
        """Let a task return."""
        self.attempts[job_id].ended = Outcome(value=value)

    def read_all(self, prefix: str) -> dict[str, bytes]:
        """See `RayTables.read_all`."""
        self._answer()
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

    def read(self, key: str) -> bytes | None:
        """See `RayTables.read`."""
        self._answer()
        return self.values.get(key)

    def write(self, key: str, value: bytes) -> None:
        """See `RayTables.write`."""
        self._answer()
        self.values[key] = value
        if self.is_watched and key.startswith(ORDER):
            self.watch.advance(self.now_ms)

    def remove(self, key: str) -> None:
        """See `RayTables.remove`."""
        self._answer()
        self.values.pop(key, None)

    def living_jobs(self) -> frozenset[str]:
        """See `RayTables.living_jobs`."""
        self._answer()
        return frozenset(self.attempts)

    def nodes(self) -> list[RayNode]:
        """See `RayTables.nodes`."""
        names = sorted({group.node_hex for group in self.groups})
        return [RayNode(node_hex=name, cpu_cores=16.0, memory_bytes=64 * 2**30) for name in names]

    def claimed_gpus(self) -> list[ClaimedGpu]:
        """See `RayTables.claimed_gpus`."""
        self._answer()
        return list(self.groups)

    def start(self, job_id: str, work: Work, *, group_id: str, gpu_ratio: float) -> Attempt:
        """See `Attempts.start`."""
        if job_id in self.attempts:
            raise ValueError(f"there is an actor {job_id}")
        if work.target is None:
            raise TypeError("nothing to run")
        [group] = [one for one in self.groups if one.group_id == group_id]
        self.started[job_id] = self.started.get(job_id, 0) + 1
        seen = None if self.is_slow else self.elsewhere.get(job_id, (group.node_hex, group.gpu_index))
        attempt = FakeAttempt(self, job_id, gpu_ratio, seen=seen)
        self.attempts[job_id] = attempt
        return attempt

    def _answer(self) -> None:
        if self.is_away:
            raise EngineUnreachableError("Ray is away")


def place(ray: FakeRay, job_id: str = "1", gpu_id: str = "n1/g0") -> None:
    """Let a bridge place and release a job."""
    engine = RayEngine(ray, DEVICES)
    engine.place(
        Placement(job_id=job_id, node_id=gpu_id[:2], gpu_id=gpu_id, slots=25, note=f"{placed_note(gpu_id, 25)}: fits")
    )
    engine.release(job_id)
    ray.pass_time()


def running(ray: FakeRay) -> SharedJob:
    """Return a job that runs."""
    job = ray.submit("1", TAG)
    place(ray)
    return job

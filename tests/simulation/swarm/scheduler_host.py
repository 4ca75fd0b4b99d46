"""A scheduler: the product's own wiring over a real event log, whose process may die between any two steps."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cotenant.v1 import scheduling_pb2
from cotenant.v1.node_agent_pb2 import AttemptKey, LaunchJob, LogPosition
from scheduler_service.adapters.storage.cluster_identity import STATE_BEHIND, ClusterIdentity
from scheduler_service.adapters.storage.event_log import LogRecord
from scheduler_service.adapters.storage.sqlite_event_log import LOCK_NAME, SqliteEventLog
from scheduler_service.adapters.storage.state_backup import back_up, restore
from scheduler_service.adapters.storage.stored_records import DATABASE_NAME
from scheduler_service.commands.running_scheduler import RunningScheduler
from scheduler_service.core import commands
from scheduler_service.core.engine_snapshot import Pace
from scheduler_service.core.events import (
    Event,
    PairPredictionsArrived,
    PairPredictionsFailed,
    PairsRefreshed,
    PredictionArrived,
    PredictionFailed,
)
from scheduler_service.core.fit_events import LossFitted, SpeedFitted, TaskSpeedFitted
from scheduler_service.errors import SchedulerServiceError, StateError, StateFullError, StateUnwritableError
from scheduler_service.live_loop import LiveLoop
from scheduler_service.settings import Settings
from tests.simulation.swarm.agent_host import DEVICE
from tests.simulation.swarm.machine import Machine
from tests.simulation.swarm.virtual_time import SimulatedProcess, current, settle
from tests.support.scheduling import memory, pair, prediction

if TYPE_CHECKING:
    from tests.simulation.swarm.world import World

_Entry = TypeVar("_Entry")
LEASE_MS = 12_000
GRACE_MS = 6_000
HEARTBEAT_MS = 4_000
_STANDS_WITHIN_S = 2.0
"""After the word that it is behind; its sessions are closed at its next tick."""


class Unpaced:
    """In the place of `PacedWork`: how long the machine computes is no part of a seed's story."""

    def __call__(self, entries: Iterable[_Entry]) -> Iterable[_Entry]:
        """Yield them at once."""
        return entries

    def hurry(self) -> None:
        """Nothing ever paused."""


class CrashingEventLog(SqliteEventLog):
    """The real log; its files may be found as a crash left them."""

    def __init__(self, state_dir: Path, *, pace: Pace) -> None:
        super().__init__(state_dir, pace=pace)
        self._is_open = True
        current().machine.world.scheduler_of(current()).log = self

    def append(self, records: Sequence[LogRecord]) -> int:
        """Store, where there is room."""
        if current().machine.is_disk_full:
            raise StateFullError("the simulated disk is full; free some space")
        return super().append(records)

    def close(self) -> None:
        """Close, once."""
        if self._is_open:
            self._is_open = False
            super().close()


class SimulatedPredictor:
    """In the place of the predictor's client."""

    fault = None

    def __init__(self, *_: object, **__: object) -> None:
        self._world = current().machine.world

    def request(self, command: Any, deliver: Callable[[Event], None]) -> None:
        """Answer later, or say that there is no answer."""
        world, process = self._world, current()
        is_down = world.strikes("predictor_down")
        event = _failure(command) if is_down else _answer(command)
        process.later(0.05 + world.generator.random(), lambda: deliver(event))

    def record(self, command: commands.RecordOutcome) -> None:
        """Outcomes are not kept."""

    async def close(self) -> None:
        """Nothing is open."""


def _failure(command: Any) -> Event:
    if isinstance(command, commands.RequestPrediction):
        return PredictionFailed(at_ms=0, key=command.key, device=command.device, code="UNAVAILABLE")
    if isinstance(command, commands.RequestPairPredictions):
        return PairPredictionsFailed(at_ms=0, device=command.device, keys=command.new_keys, code="UNAVAILABLE")
    if isinstance(command, commands.RequestSpeedFit):
        return SpeedFitted(at_ms=0, key=command.key, device=command.device, code="UNAVAILABLE")
    if isinstance(command, commands.RequestTaskSpeedFit):
        return TaskSpeedFitted(at_ms=0, key=command.key, device=command.device, code="UNAVAILABLE")
    if isinstance(command, commands.RequestLossFit):
        return LossFitted(at_ms=0, job_id=command.job_id, code="UNAVAILABLE")
    return PairsRefreshed(at_ms=0, device=command.device, code="UNAVAILABLE")


def _answer(command: Any) -> Event:
    if isinstance(command, commands.RequestPrediction):
        size = 1 + sum(map(ord, command.key)) % 4
        found = prediction(
            command.key, device=DEVICE, memory=memory(size, size * 1.2), step_ms={(1, 1): 10_000.0 * size}
        )
        return PredictionArrived(at_ms=0, prediction=found)
    if isinstance(command, commands.RequestPairPredictions):
        keys = tuple(member.key for member in command.members)
        pairs = tuple(
            pair(one, two, (sum(map(ord, one + two)) % 4) / 10, device=DEVICE) for one in keys for two in keys
        )
        return PairPredictionsArrived(at_ms=0, pairs=pairs)
    if isinstance(command, commands.RequestSpeedFit):
        slowest_ms = max(step_ms for _, step_ms in command.samples)
        return SpeedFitted(at_ms=0, key=command.key, device=command.device, step_ms={1: slowest_ms})
    if isinstance(command, commands.RequestTaskSpeedFit):
        return TaskSpeedFitted(at_ms=0, key=command.key, device=command.device, code="NOT_FITTED")
    if isinstance(command, commands.RequestLossFit):
        return LossFitted(at_ms=0, job_id=command.job_id, code="NOT_FITTED")
    return PairsRefreshed(at_ms=0, device=command.device, pairs=tuple(command.known))


class SimulatedServer:
    """In the place of the gRPC server: the wire finds the servicers here."""

    def __init__(self, **_: object) -> None:
        self.address = "simulated"
        self._host = current().machine.world.scheduler_of(current())

    def list_faults(self) -> list[str]:
        """No list is read."""
        return []

    async def start(self, scheduling: Any, agents: Any, *_: object) -> None:
        """Answer from now on."""
        self._host.serve(scheduling, agents)

    async def stop(self, *, grace_s: float) -> None:
        """Not used: simulated schedulers are killed."""


class NoMetrics:
    """In the place of the metrics, which decide nothing."""

    registry = None

    def __init__(self, **_: object) -> None:
        """Count nothing."""

    def event_handled(self, event: Event, found: object, *, duration_ns: int) -> None:
        """Count nothing."""

    def batch_handled(self) -> None:
        """Count nothing."""


class SchedulerHost:
    """One scheduler with its state directory; a crash moves on to a copy of the files as they lay there."""

    def __init__(self, world: World, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.lives = 0
        self.state_dir = machine.root / "state-0"
        self.process: SimulatedProcess | None = None
        self.log: CrashingEventLog | None = None
        self.loop: LiveLoop | None = None
        self.agents: Any = None
        self.scheduling: Any = None
        self.backups: list[tuple[Path, frozenset[str]]] = []
        self.restored_s = -1.0
        self._in_flight: Callable[[], Any] | None = None
        self._running: RunningScheduler | None = None
        self._is_retired = False
        self._own_start_ids: set[str] = set()
        self._copied_sequence = -1
        self._must_stand_s = -1.0

    @property
    def is_copy(self) -> bool:
        """Another one is the scheduler of this cluster."""
        return self.name in self.world.copied_s

    @property
    def is_behind(self) -> bool:
        """It stands still, since a node has seen more than it knows."""
        return self.is_alive and self._running is not None and self._running._standstill.code == STATE_BEHIND

    @property
    def is_alive(self) -> bool:
        """It runs, whether it answers or not."""
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        """Start the program, where it does not run."""
        if self.is_alive or self._is_retired:
            return
        self.process = SimulatedProcess(f"scheduler {self.name}", self.machine)
        self.world.scheduler_processes[self.process] = self
        self.process.spawn(self._run())

    async def _run(self) -> None:
        settings = Settings(
            state_dir=str(self.state_dir),
            metrics_address="",
            predictor="",
            policy="fifo",
            heartbeat_ms=HEARTBEAT_MS,
            lease_ms=LEASE_MS,
            grace_ms=GRACE_MS,
            progress_interval_ms=4_000,
            pair_refresh_ms=5_000,
            snapshot_every_events=self.world.snapshot_every_events,
            retained_events=50,
        )
        try:
            self._running = RunningScheduler(settings)
            await self._running.start()
            await self._running.wait_for(asyncio.Event())
        except StateUnwritableError:
            # Its supervisor starts it again.
            self.kill(self.world.generator, is_torn=False)
            self.world.later(2.0, self.start)
        except SchedulerServiceError as error:
            self.world.violation(f"the scheduler does not start: {error.message}")
        except Exception as error:
            self.world.violation(f"the scheduler failed: {error!r}")

    def serve(self, scheduling: Any, agents: Any) -> None:
        """The program answers from now on."""
        self.scheduling, self.agents = scheduling, agents
        loop: LiveLoop = scheduling._cluster.loop
        self.loop = loop
        loop.observers = (*loop.observers, self.world.witness.observer(loop))
        self._must_stand_s = -1.0
        self._own_start_ids.add(self._identity.generations[-1].start_id)
        if self._copied_sequence < 0:
            self._copied_sequence = loop.sequence
        self.world.witness.scheduler_serves(self)

    @property
    def _identity(self) -> ClusterIdentity:
        assert self._running is not None
        return self._running._identity

    def greeted(self, seen: LogPosition) -> None:
        """A node says what it has seen: whoever knows less of this cluster must give no order any more."""
        identity = self._identity
        if seen.incarnation_id != identity.incarnation_id or self._must_stand_s >= 0:
            return
        is_unknown = seen.start_id not in {one.start_id for one in identity.generations}
        is_newer = self.is_copy and seen.start_id not in self._own_start_ids and seen.sequence > self._copied_sequence
        if is_unknown or is_newer:
            self._must_stand_s = self.world.loop.time()

    def order_given(self, agent_folder: Path, order: LaunchJob) -> None:
        """Remember who starts what, and complain where a scheduler that is behind does."""
        assert self.process is not None
        key = (order.key.job_id, order.key.attempt, order.key.fence)
        self.world.orders[self.world.memory_of(agent_folder), key] = (self.name, self.world.loop.time())
        is_told = self._must_stand_s >= 0
        if is_told and self.world.loop.time() > max(self._must_stand_s, self.process.thawed_s) + _STANDS_WITHIN_S:
            self.world.violation(f"{self.name} starts {order.key.job_id} although a node has seen more than it knows")

    def lease_renewed(self, agent_folder: Path, key: AttemptKey) -> None:
        """Remember for whom an attempt runs on; it may have been started for another one."""
        self.world.keepers[self.world.memory_of(agent_folder), (key.job_id, key.attempt, key.fence)] = self.name

    def copied(self, name: str) -> SchedulerHost:
        """Return another one on a copy of the files as they lie there, on a machine of its own."""
        copy = SchedulerHost(self.world, Machine(self.world, name), name)
        copy_state(self.state_dir, copy.state_dir)
        self.world.copied_s[name] = self.world.loop.time()
        return copy

    def retire(self, generator: random.Random) -> None:
        """Stop it for good."""
        self._is_retired = True
        self.kill(generator, is_torn=False)

    def kill(self, generator: random.Random, *, is_torn: bool) -> None:
        """Kill -9; what was being written may be torn."""
        process, log = self.process, self.log
        if process is None or process.is_dead:
            return
        process.kill()
        self.agents = self.scheduling = self.loop = self._running = None
        if log is None:
            return
        self.lives += 1
        before, self.state_dir = self.state_dir, self.machine.root / f"state-{self.lives}"
        copy_state(before, self.state_dir)
        in_flight, self._in_flight = self._in_flight, None
        if is_torn and in_flight is not None:
            self._tear(before, in_flight, generator)
        log.close()
        self.log = None
        shutil.rmtree(before)

    def back_up(self) -> None:
        """Make a copy with the product's own command."""
        target = self.machine.root / f"backup-{len(self.backups)}"
        back_up(self.state_dir, target)
        self.backups.append((target, frozenset(self.world.witness.accepted)))

    def restore(self, backup: tuple[Path, frozenset[str]]) -> frozenset[str]:
        """Put a backup in the place of the state, as an operator does while nothing runs; what it knows of."""
        folder, known = backup
        restore(folder, self.state_dir, force=True)
        self.restored_s = self.world.loop.time()
        return known

    def confirm(self) -> None:
        """Let an operator confirm the restore, where the scheduler answers; once more changes nothing."""
        if self.process is not None and self.is_alive and self.scheduling is not None:
            self.process.spawn(self._confirm_restore())

    async def _confirm_restore(self) -> None:
        """What an operator does some time after a restore."""
        request = scheduling_pb2.ConfirmRestoreRequest(request_id=f"confirm-{self.restored_s}")
        with contextlib.suppress(SchedulerServiceError):
            await self.scheduling.ConfirmRestore(request, None)

    def _tear(self, before: Path, in_flight: Callable[[], Any], generator: random.Random) -> None:
        """Let a part of what was being written reach the disk: of all files only the write-ahead log grows."""
        assert self.process is not None
        name = f"{DATABASE_NAME}-wal"
        whole_bytes = _size_bytes(self.state_dir)
        with contextlib.suppress(StateError):
            self.process.context.run(in_flight)
        if _size_bytes(before) > whole_bytes:
            content = (before / name).read_bytes()
            (self.state_dir / name).write_bytes(content[: generator.randrange(whole_bytes, len(content) + 1)])

    def store(self, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        """What the storage thread does: the disk takes its time, before the write and after it."""
        process = current()
        self._in_flight = work

        def write() -> None:
            self._in_flight = None
            kept: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            settle(kept, work)
            process.later(self.world.generator.uniform(0.0, 0.01), lambda: settle(future, kept.result))

        process.later(self.world.disk_delay_s(), write)


def copy_state(source: Path, target: Path) -> None:
    """What a machine's image of a state directory holds."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() and path.name != LOCK_NAME and not path.name.endswith("-shm"):
            shutil.copyfile(path, target / path.name)


def _size_bytes(state_dir: Path) -> int:
    path = state_dir / f"{DATABASE_NAME}-wal"
    return path.stat().st_size if path.exists() else 0

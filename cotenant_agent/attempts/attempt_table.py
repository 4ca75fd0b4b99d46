"""All attempts of this node: starting, stopping, adopting, ending. Every step leaves files for a next agent."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.early_attempts import LostPreparations, begin_or_end, with_devices
from cotenant_agent.attempts.early_start import check_preparable
from cotenant_agent.attempts.launching import Launcher
from cotenant_agent.attempts.pause_orders import find_failed_pauses, order_pause
from cotenant_agent.attempts.refused_launches import RefusedLaunches
from cotenant_agent.attempts.stop_orders import memory_sample, request_stop
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.devices.memory_watchdog import MemoryWatchdog
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.keeper import job_processes
from cotenant_agent.leases import Lease
from cotenant_agent.processes import Processes, read_boot_id
from cotenant_agent.progress_reading.progress import ProgressSocket
from cotenant_agent.records import AttemptEnd, AttemptKey, AttemptState, InventoryReading, JobProcesses, LaunchRequest
from cotenant_agent.storage.durable_files import read_json, refresh_json, write_json
from cotenant_agent.storage.state_directory import AttemptDirectory, StateDirectory
from cotenant_agent.system_clock import boot_ms, wall_ms

_log = logging.getLogger(__name__)

_STORED_ATTEMPTS_KEPT = 200
_SPAWNING_MS_MAX = 5_000
_NO_KEEPER = -1


class AttemptTable:
    """The attempts of one state directory."""

    def __init__(
        self,
        *,
        directory: StateDirectory,
        processes: Processes,
        inventory: GpuInventory,
        groups: ControlGroups,
        launcher: Launcher,
    ) -> None:
        self.directory = directory
        self._processes = processes
        self._inventory = inventory
        self._groups = groups
        self._launcher = launcher
        self._boot_id = read_boot_id()
        self._attempts: dict[str, Attempt] = {}
        self.refused_launches = RefusedLaunches()
        self.preparations = LostPreparations(directory, groups)
        self._watchdog = MemoryWatchdog({gpu.gpu_id: gpu.memory_bytes for gpu in inventory.describe()})

    def __iter__(self) -> Iterator[Attempt]:
        return iter(tuple(self._attempts.values()))

    def adopt(self) -> None:
        """Take over everything that lies in the job directories."""
        for directory in self.directory.attempts():
            spec = read_json(directory.spec)
            if spec is None:
                # The agent ended between making the directory and describing it: nothing can have started.
                self.directory.forget(directory)
            elif not directory.stored.exists():
                attempt = Attempt(directory, spec, self.directory.checkpoints, self.directory.run)
                self._attempts[attempt.key.directory_name] = attempt
                self._open_socket(attempt)
                _log.info("attempt_adopted", extra={**attempt.key.fields(), "state": attempt.state.value})
        self._forget_oldest()
        self._clear_groups()

    def _clear_groups(self) -> None:
        """Remove the groups of attempts that ended while no agent was here, and end what is left in them."""
        known = {attempt.directory.path.name for attempt in self}
        for name in self._groups.left_over_names():
            directory = AttemptDirectory(self.directory.jobs / name)
            if name in known or (directory.path.is_dir() and not directory.is_unkept()):
                continue
            self._groups.clear(name)
            _log.info("control_group_removed", extra={"attempt_name": name})

    def find(self, key: AttemptKey) -> Attempt:
        """The attempt of exactly this key.

        Raises:
            CommandRefusedError: it is unknown here.
        """
        attempt = self._known(key)
        if attempt is None:
            self._check_fence(key)
            raise CommandRefusedError(
                "NO_SUCH_ATTEMPT", f"{key.directory_name} (fence {key.fence}) is not on this node"
            )
        return attempt

    def _known(self, key: AttemptKey) -> Attempt | None:
        """The attempt that an order means; it may be one of an older agent, which knew no incarnations."""
        for name in (key.directory_name, replace(key, incarnation_id="").directory_name):
            attempt = self._attempts.get(name)
            if attempt is not None and attempt.key.is_meant_by(key):
                return attempt
        return None

    def find_directory(self, key: AttemptKey, lineage: Iterable[str] = ()) -> AttemptDirectory:
        """The directory of an attempt, also of one that ended and was reported long ago.

        Args:
            key: its fence does not count.
            lineage: incarnations that are looked through, newest first, where the key names none.
        """
        for incarnation_id in (key.incarnation_id, *lineage, ""):
            name = replace(key, incarnation_id=incarnation_id).directory_name
            directory = AttemptDirectory(self.directory.jobs / name)
            if "/" not in name and directory.spec.exists():
                return directory
        raise CommandRefusedError("NO_SUCH_ATTEMPT", f"nothing is kept of {key.directory_name} on this node")

    def launch(self, request: LaunchRequest, resume: Checkpoint | None, lease: Lease) -> Attempt:
        """Start an attempt, or return the one that was started before.

        Args:
            request: what to start.
            resume: verified checkpoint to continue from.
            lease: until when the attempt may run without a renewal.

        Raises:
            CommandRefusedError: stale, not allowed, or more than the devices hold.
        """
        known = self._known(request.key)
        if known is not None and not known.is_early:
            known.announced = False
            return known
        self.refused_launches.check(request.key)
        if known is not None and not (known.has_exit_record() or self._is_lost(known)):
            return self._let_begin(known, request, resume, lease)
        if known is not None:
            self._forget_early(known)
        return self._start(request, resume, lease, is_early=False)

    def prepare(self, request: LaunchRequest, lease: Lease) -> Attempt:
        """Start an attempt early, or return the one that was started before; arguments as in `launch`.

        Raises:
            CommandRefusedError: NOT_PREPARABLE: it can only begin from nothing; or as `launch`.
        """
        known = self._known(request.key)
        if known is not None:
            known.announced = known.announced and not known.is_early
            return known
        check_preparable(request)
        return self._start(request, None, lease, is_early=True)

    def _start(self, request: LaunchRequest, resume: Checkpoint | None, lease: Lease, *, is_early: bool) -> Attempt:
        key = request.key
        self._check_fence(key)
        if (self.directory.jobs / key.directory_name).exists():
            raise CommandRefusedError("ALREADY_STARTED", f"{key.directory_name} was started before and has ended")
        attempt = self._launcher.launch(request, resume, with_devices(self), lease, is_early=is_early)
        self._attempts[key.directory_name] = attempt
        self._open_socket(attempt)
        self._launcher.start_shim(attempt)
        return attempt

    def _let_begin(self, early: Attempt, request: LaunchRequest, resume: Checkpoint | None, lease: Lease) -> Attempt:
        begun = begin_or_end(
            lambda: self._launcher.let_begin(early, request, resume, with_devices(self), lease),
            lambda: request_stop(early, "not_needed"),
        )
        self._attempts[early.key.directory_name] = begun
        return begun

    def _forget_early(self, attempt: Attempt) -> None:
        del self._attempts[attempt.key.directory_name]
        self.preparations.forget(attempt)

    def stop(self, key: AttemptKey, cause: str, grace_ms: int) -> None:
        """Ask the shim to end an attempt; repeating it changes nothing. grace_ms 0 = what the job asked for."""
        request_stop(self.find(key), cause or "stopped", grace_ms)

    def stop_all(self, cause: str) -> bool:
        """Ask every shim to end its attempt; whether all have ended."""
        for attempt in self:
            with contextlib.suppress(OSError):
                request_stop(attempt, cause)
        return all(attempt.state is AttemptState.ENDED for attempt in self)

    def checkpoint(self, key: AttemptKey) -> None:
        """Ask the job to write a checkpoint and go on: SIGUSR1 to the first processes of its tree that catch it.

        A paused one goes on first: a signal waits until then.

        Raises:
            CommandRefusedError: no process catches the signal, whose default action would kill it.
        """
        attempt = self.find(key)
        leader = attempt.processes()[1]
        if attempt.state not in (AttemptState.RUNNING, AttemptState.PAUSED) or leader is None:
            raise CommandRefusedError("NOT_RUNNING", f"{key.directory_name} is {attempt.state.value}")
        catching = [pid for pid in attempt.members(self._processes) if self._processes.catches(pid, signal.SIGUSR1)]
        identity = self._processes.identify(catching[0]) if catching else None
        attempt.directory.pause.unlink(missing_ok=True)
        if identity is None or not self._processes.send_signal(identity, signal.SIGUSR1):
            raise CommandRefusedError(
                "CHECKPOINT_NOT_SUPPORTED", f"no process of {key.directory_name} catches SIGUSR1 (see cotenant.job)"
            )

    def pause(self, key: AttemptKey, cause: str, paused_ms_max: int) -> None:
        """Ask the shim to let an attempt stand still; it lets it go on by itself, and no pause grows by repeating it.

        Raises:
            CommandRefusedError: NOT_PAUSABLE: it runs on, and may be stopped instead.
        """
        order_pause(self.find(key), cause, paused_ms_max)

    def resume(self, key: AttemptKey) -> None:
        """Ask the shim to let an attempt go on; one that is not paused is left as it is."""
        self.find(key).directory.pause.unlink(missing_ok=True)

    def find_failed_pauses(self) -> list[tuple[AttemptKey, str]]:
        """Attempts that could not be made to stand still, and why; each is named once per order."""
        return find_failed_pauses(self)

    def renew(self, keys: Iterable[AttemptKey], lease: Lease) -> None:
        """Move the deadline of these attempts; a lease is never shortened."""
        for key in keys:
            attempt = self._known(key)
            if attempt is None or attempt.state is AttemptState.ENDED:
                continue
            path = attempt.directory.lease
            if lease.prolongs(attempt.read(path)):
                refresh_json(path, attempt.sealed(path, lease.record(attempt.key.incarnation_id)))

    def mark_stored(self, key: AttemptKey) -> None:
        """The scheduler has the end of this attempt: report it no more. Its log stays for a while."""
        attempt = self._known(key)
        if attempt is None or attempt.end is None:
            return
        # Where the disk does not take that, the end is reported, stored and confirmed again.
        with contextlib.suppress(OSError):
            write_json(attempt.directory.stored, {})
            del self._attempts[attempt.key.directory_name]
            self._forget_oldest()

    def find_started(self) -> list[Attempt]:
        """Attempts whose start was not announced yet; each is named once."""
        unannounced = [item for item in self._attempts.values() if not item.announced and not item.is_early]
        started = [item for item in unannounced if item.processes()[0] is not None]
        for attempt in started:
            attempt.announced = True
        return started

    def find_ended(self) -> list[AttemptEnd]:
        """Attempts that have ended since the last look, lost ones included; each is named once."""
        self._processes.reap()
        unreported = [attempt for attempt in self._attempts.values() if attempt.end is None]
        ended = [item for item in unreported if self._has_ended(item) or self._is_lost(item)]
        for attempt in [item for item in ended if item.is_early]:
            self._forget_early(attempt)
        return [self._conclude(attempt) for attempt in ended if not attempt.is_early]

    def processes_by_attempt(self) -> dict[AttemptKey, JobProcesses]:
        """Where the running attempts live."""
        found = {}
        for attempt in self._attempts.values():
            if attempt.state is not AttemptState.ENDED and attempt.processes()[1] is not None:
                found[attempt.key] = JobProcesses(
                    gpu_ids=attempt.gpu_ids,
                    pids=attempt.members(self._processes),
                    rank_pids=attempt.rank_members(self._processes),
                    interpreter=attempt.interpreter,
                )
        return found

    def take_reading(self, reading: InventoryReading) -> None:
        """Remember what the attempts used, and end those that the watchdog names."""
        live = [item for item in self._attempts.values() if item.state is not AttemptState.ENDED]
        for attempt in live:
            if attempt.key in reading.jobs:
                attempt.take_usage(reading.jobs[attempt.key])
        samples = [memory_sample(item) for item in with_devices(live) if item.usage.memory_bytes is not None]
        stopping = {item.key for item in live if item.state is AttemptState.STOPPING}
        for verdict in self._watchdog.judge(samples, stopping):
            name = "memory_over_limit" if not verdict.end else "ended_for_memory"
            _log.warning(name, extra={**verdict.key.fields(), "reason": verdict.reason})
            if verdict.end:
                attempt = self._attempts[verdict.key.directory_name]
                # What the disk does not take now is asked for with the next samples.
                with contextlib.suppress(OSError):
                    request_stop(attempt, "gpu_oom", detail=verdict.reason, available_bytes=verdict.available_bytes)

    def close(self) -> None:
        """Forget the attempts; they run on."""
        for attempt in self._attempts.values():
            if attempt.socket is not None:
                attempt.socket.close()
        self._groups.remove_parents()

    def _check_fence(self, key: AttemptKey) -> None:
        highest = self.directory.highest_fence(key.job_id, key.incarnation_id)
        if key.fence < highest:
            raise CommandRefusedError("STALE_FENCE", f"fence {key.fence} of {key.job_id} is older than {highest}")

    def _open_socket(self, attempt: Attempt) -> None:
        if attempt.directory.exit.exists() or not attempt.run_directory.is_dir():
            return
        path = attempt.run_directory / "progress.sock"
        attempt.socket = ProgressSocket(path, lambda pid: self._belongs(attempt, pid), attempt.owner)

    def _belongs(self, attempt: Attempt, pid: int) -> bool:
        leader = attempt.processes()[1]
        return leader is not None and (pid == leader.pid or pid in attempt.members(self._processes))

    def _has_ended(self, attempt: Attempt) -> bool:
        """Whether its end is written down and its shim, whose last deed that is, is gone."""
        if not attempt.has_exit_record():
            return False
        shim = attempt.processes()[0]
        return shim is None or not self._processes.is_alive(shim)

    def _is_lost(self, attempt: Attempt) -> bool:
        """Whether no shim keeps the attempt any more; if so, its processes are ended and that is recorded."""
        shim, leader = attempt.processes()
        # A shim that starts, and finds its lock held by who looks at it, never starts its job.
        if self._is_just_spawned(attempt) if shim is None else self._processes.is_alive(shim):
            return False
        # Where the disk does not take the fact, it is looked at again.
        with contextlib.suppress(OSError), attempt.directory.taken() as is_free:
            # The lock is what a shim needs to start the job: its holder decides, once.
            if not is_free or attempt.has_exit_record():
                return False
            self._groups.clear(attempt.directory.path.name)
            if leader is not None and leader.boot_id == self._boot_id:
                self._end_remains(attempt, leader.pid)
            lost: dict[str, object] = {"return_code": None, "cause": "", "ended_wall_ms": wall_ms()}
            write_json(attempt.directory.exit, attempt.sealed(attempt.directory.exit, lost))
            return True
        return False

    def _is_just_spawned(self, attempt: Attempt) -> bool:
        # Not by the wall clock: set back, it would leave an attempt alone whose shim has never started.
        return 0 <= boot_ms() - attempt.requested_boot_ms < _SPAWNING_MS_MAX

    def _end_remains(self, attempt: Attempt, leader_pid: int) -> None:
        """Kill what did not end with the shim: the leader's session, and bearers of the attempt's marker."""
        for pid in self._processes.session_members(leader_pid):
            identity = self._processes.identify(pid)
            if identity is not None:
                self._processes.send_signal(identity, signal.SIGKILL)
        job_processes.JobProcesses(_NO_KEEPER, (), attempt.environment, attempt.uid).kill_remains()

    def _conclude(self, attempt: Attempt) -> AttemptEnd:
        co_located = [
            item
            for item in self._attempts.values()
            if item is not attempt and item.state is not AttemptState.ENDED and set(item.gpu_ids) & set(attempt.gpu_ids)
        ]
        capacities = [gpu.memory_bytes for gpu in self._inventory.describe() if gpu.gpu_id in attempt.gpu_ids]
        used_by_co_located = sum(item.usage.memory_bytes or 0 for item in co_located)
        end = attempt.conclude(
            peak_bytes=self._inventory.peak_bytes(attempt.max_resident_bytes(), attempt.interpreter),
            available_bytes=max(0, min(capacities, default=0) - used_by_co_located),
            co_located=", ".join(sorted(item.key.job_id for item in co_located)) or "none",
        )
        if attempt.socket is not None:
            attempt.socket.close()
            attempt.socket = None
        self._groups.remove(attempt.directory.path.name)
        found = {"exit_class": end.exit_class, "exit_code": end.exit_code}
        _log.info("attempt_ended", extra={**attempt.key.fields(), **found})
        return end

    def _forget_oldest(self) -> None:
        attempts = list(self.directory.attempts())
        if len(attempts) <= _STORED_ATTEMPTS_KEPT:
            return
        stored = [item for item in attempts if item.stored.exists()]
        stored.sort(key=lambda item: item.stored.stat().st_mtime_ns)
        for directory in stored[:-_STORED_ATTEMPTS_KEPT]:
            self.directory.forget(directory)

"""Starting one attempt: checks, directories, the spec for its shim, and the shim itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.attempts.early_start import PREPARATION_LOST, early_argv, words_to_begin
from cotenant_agent.attempts.launch_plan import LaunchPlaces, LaunchPlan, batches_of_step, plan_launch
from cotenant_agent.checkpointing.checkpoints import Checkpoint
from cotenant_agent.checkpointing.shared_storage import check_owner, leave_choice
from cotenant_agent.devices.gpu_inventory import GpuInventory
from cotenant_agent.devices.memory_watchdog import claimed_bytes, surge_bytes
from cotenant_agent.errors import CommandRefusedError, DeviceError
from cotenant_agent.isolation.allow_list import AllowList
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.isolation.job_users import JobUsers, Owner, hand_over
from cotenant_agent.keeper.job_processes import start_ticks
from cotenant_agent.keeper.lost_output import keep_room as keep_room_for_lost
from cotenant_agent.keeper.programs import SHIM
from cotenant_agent.keeper.seals import SEALED, Seal
from cotenant_agent.leases import Lease
from cotenant_agent.processes import Processes, read_boot_id
from cotenant_agent.ranks.parameter_blocks import leave_assignment
from cotenant_agent.ranks.rank_plan import log_limit_bytes, world_size
from cotenant_agent.ranks.rendezvous_ports import choose_port
from cotenant_agent.ranks.spec_records import stored_job
from cotenant_agent.records import LaunchRequest
from cotenant_agent.storage.durable_files import keep_room, write_json
from cotenant_agent.storage.state_directory import StateDirectory, checkpoint_directory
from cotenant_agent.system_clock import boot_ms, wall_ms

_STOP_GRACE_MS = 30_000
"""For jobs that do not state how long a checkpoint takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """What holds for every job of this node; intervals are milliseconds.

    Attributes:
        user: runs all jobs; empty = the agent's.
        users: range of users, of which each tenant has one; empty = none.
        tasks_max: processes and threads of a job; 0 = no bound.
        namespaces: each job gets its own.
        seals: jobs could write the agent's files, which are therefore sealed.
        find_interface: looks up by which network interface ranks of gangs across nodes meet; empty = not known.
        gangs_by_transfer: each part of a gang across nodes keeps its own checkpoints, which agents fetch.
    """

    user: str = ""
    users: str = ""
    log_limit_bytes: int = 8 << 20
    checkpoint_interval_ms: int = 60_000
    tasks_max: int = 0
    namespaces: bool = False
    seals: bool = False
    find_interface: Callable[[], str] = str
    gangs_by_transfer: bool = False


class Launcher:
    """Turns a request into a running shim."""

    def __init__(
        self,
        *,
        directory: StateDirectory,
        processes: Processes,
        inventory: GpuInventory,
        groups: ControlGroups,
        allow_list: AllowList,
        rules: JobRules,
    ) -> None:
        self._directory = directory
        self._processes = processes
        self._inventory = inventory
        self._groups = groups
        self._allow_list = allow_list
        self._rules = rules
        self._boot_id = read_boot_id()
        self._users = JobUsers(directory.root / "job_users.json", rules.user, rules.users)

    def launch(
        self,
        request: LaunchRequest,
        resume: Checkpoint | None,
        live: Sequence[Attempt],
        lease: Lease,
        *,
        is_early: bool = False,
    ) -> Attempt:
        """Check the request and write down everything that the shim needs; nothing runs yet.

        Args:
            request: What to start.
            resume: Verified checkpoint to continue from.
            live: Attempts that have devices now.
            lease: Until when the attempt may run without a renewal.
            is_early: It waits for a word to begin, and takes nothing of its devices before.

        Raises:
            CommandRefusedError: not allowed, or more than the devices hold next to the `live` attempts.
        """
        for attempt in live:
            attempt.lower_memory_limit(request.co_located_limits.get(attempt.key, 0))
        if not is_early:
            self._check_capacity(request, live)
        places = self._places(request, resume)
        owner = self._users.find(request.tenant)
        is_follower = not request.chooses_port
        is_sharing = self._is_sharing(request)
        if is_follower and is_sharing and not is_early:
            check_owner(places.checkpoint_directory, None if owner is None else owner[0])
        port = _choose_port(request, live)
        plan = self._plan(request, places, lease.grace_ms, port)
        try:
            directory = self._directory.create(request.key)
        except FileExistsError:
            raise CommandRefusedError("ALREADY_STARTED", f"{request.key.directory_name} was started before") from None
        self._make_cluster_directory(request.key.incarnation_id)
        self._make_places(places, owner, is_follower=is_follower and is_sharing)
        leave_assignment(request.servers, places.run_directory, owner)
        if is_sharing and not is_follower and not is_early:
            leave_choice(places.checkpoint_directory, resume)
        stop_grace_ms = 2 * request.checkpoint_ms or _STOP_GRACE_MS
        _leave_notes(directory.log, request, plan)
        spec = self._spec(request, plan, stop_grace_ms, resume, owner)
        # Of another node's port nothing is taken here.
        spec["rendezvous_port"] = 0 if is_follower else port
        spec["resumed_fence"] = self._chosen_fence(request, resume)
        if is_early:
            spec |= {"argv": list(early_argv(request.command, plan.argv)), "is_early": True}
        seal = Seal.draw() if self._rules.seals else None
        attempt = Attempt(directory, spec, self._directory.checkpoints, self._directory.run, seal)
        keep_room(directory.stop, directory.exit)
        keep_room_for_lost(str(directory.log))
        _write_lease(attempt, lease)
        write_json(directory.spec, attempt.sealed(directory.spec, spec))
        return attempt

    def let_begin(
        self,
        early: Attempt,
        request: LaunchRequest,
        resume: Checkpoint | None,
        live: Sequence[Attempt],
        lease: Lease,
    ) -> Attempt:
        """Write down for the shim of an attempt that was started early that it may begin; arguments as in `launch`.

        Raises:
            CommandRefusedError: as `launch`; PREPARATION_LOST: it must begin from nothing.
        """
        for attempt in live:
            attempt.lower_memory_limit(request.co_located_limits.get(attempt.key, 0))
        self._check_capacity(request, live)
        places = self._places(request, resume)
        port = early.rendezvous_port if request.chooses_port else _choose_port(request, live)
        plan = self._plan(request, places, lease.grace_ms, port)
        words = words_to_begin(request.command, early.spec, plan)
        is_seen = resume is None or resume.directory.parent == places.checkpoint_directory.parent
        if words is None or not is_seen or early.gpu_ids != request.gpu_ids:
            raise CommandRefusedError(PREPARATION_LOST, "the launch is another one than was prepared")
        self._share(request, places, resume)
        spec = {
            **early.spec,
            "requested_wall_ms": wall_ms(),
            "requested_boot_ms": boot_ms(),
            "memory_limit_bytes": request.memory_limit_bytes,
            "yields_memory": request.yields_memory,
            "resume_step": -1 if resume is None else resume.step,
            "resumed_fence": self._chosen_fence(request, resume),
        }
        directory = early.directory
        begun = Attempt(directory, spec, self._directory.checkpoints, self._directory.run, early.seal)
        _write_lease(begun, lease)
        write_json(directory.spec, begun.sealed(directory.spec, spec))
        write_json(directory.go, begun.sealed(directory.go, words))
        begun.socket = early.socket
        return begun

    def start_shim(self, attempt: Attempt) -> None:
        """Start the keeper of a prepared attempt; it starts the job at most once."""
        argv = [sys.executable, "-I", "-S", "-E", str(SHIM), str(attempt.directory.path)]
        introduction = b""
        if attempt.seal is not None:
            argv.append(SEALED)
            introduction = attempt.seal.introduce(os.getpid(), start_ticks(os.getpid()))
        self._processes.spawn(argv, attempt.directory.shim_log, introduction)

    def _check_capacity(self, request: LaunchRequest, live: Sequence[Attempt]) -> None:
        devices = {gpu.gpu_id: gpu for gpu in self._inventory.describe()}
        for gpu_id in request.gpu_ids:
            gpu = devices.get(gpu_id)
            if gpu is None or not gpu.healthy:
                reason = "unknown on this node" if gpu is None else gpu.fault
                raise CommandRefusedError("DEVICE_UNAVAILABLE", f"{gpu_id}: {reason}")
            here = [item for item in live if gpu_id in item.gpu_ids]
            taken = claimed_bytes(_claim(item) for item in here)
            own = request.memory_limit_bytes, surge_bytes(request.memory_limit_bytes, request.memory_held_bytes)
            needed = claimed_bytes((*map(_claim, here), own))
            if needed > gpu.memory_bytes:
                co_located = f"({len(here)} other attempts hold {taken})"
                message = (
                    f"{gpu_id} has {gpu.memory_bytes} bytes; with this start {needed} would be promised {co_located}"
                )
                raise CommandRefusedError("OVER_CAPACITY", message)

    def _places(self, request: LaunchRequest, resume: Checkpoint | None) -> LaunchPlaces:
        key = request.key
        return LaunchPlaces(
            run_directory=self._directory.run / key.directory_name,
            checkpoint_directory=checkpoint_directory(
                self._directory.checkpoints, key.job_id, key.fence, key.incarnation_id
            ),
            resume=resume,
        )

    def _plan(self, request: LaunchRequest, places: LaunchPlaces, grace_ms: int, port: int) -> LaunchPlan:
        try:
            binding = self._inventory.bind(request.gpu_ids)
            ranks = [self._inventory.bind((gpu_id,)) for gpu_id in request.gpu_ids] if request.has_ranks else []
        except DeviceError as error:
            raise CommandRefusedError("DEVICE_UNAVAILABLE", str(error)) from error
        own = [gpu.memory_bytes for gpu in self._inventory.describe() if gpu.gpu_id in request.gpu_ids]
        plan = plan_launch(
            request,
            allow_list=self._allow_list,
            binding=binding,
            places=places,
            grace_ms=grace_ms,
            checkpoint_interval_ms=self._rules.checkpoint_interval_ms,
            device_memory_bytes=min(own, default=0),
            is_owners=self._allow_list.any_command and not (self._rules.user or self._rules.users),
            login_name=self._users.login_name(request.tenant),
            rank_bindings=ranks,
            rendezvous_port=port,
            rendezvous_interface="" if request.gang_part is None else self._rules.find_interface(),
        )
        return replace(plan, environment={**plan.environment, **self._told_of_parts(request, plan)})

    def _spec(
        self,
        request: LaunchRequest,
        plan: LaunchPlan,
        stop_grace_ms: int,
        resume: Checkpoint | None,
        owner: Owner | None,
    ) -> dict[str, object]:
        name = request.key.directory_name
        files = self._groups.create(
            name, memory_bytes=request.host_memory_bytes, cpu_cores=request.cpu_cores, tasks_max=self._rules.tasks_max
        )
        uid, gid = owner or (None, None)
        return {
            "job_id": request.key.job_id,
            "attempt": request.key.attempt,
            "fence": request.key.fence,
            "incarnation_id": request.key.incarnation_id,
            "boot_id": self._boot_id,
            "requested_wall_ms": wall_ms(),
            "requested_boot_ms": boot_ms(),
            "gpu_ids": list(request.gpu_ids),
            "measured_job": None if request.measured_job is None else stored_job(request.measured_job),
            "memory_limit_bytes": request.memory_limit_bytes,
            "memory_held_bytes": request.memory_held_bytes,
            "yields_memory": request.yields_memory,
            "stop_grace_ms": stop_grace_ms,
            "progress_regex": request.progress_regex,
            "steps_total": request.steps_total,
            "batches_per_step": batches_of_step(request),
            "global_batch_size": request.global_batch_size,
            "resume_step": -1 if resume is None else resume.step,
            "log_limit_bytes": log_limit_bytes(self._rules.log_limit_bytes, len(plan.ranks)),
            "argv": list(plan.argv),
            "environment": dict(plan.environment),
            "working_directory": plan.working_directory,
            "cpu_cores": list(plan.cpu_cores),
            "ranks": [rank.to_record() for rank in plan.ranks],
            "collective_timeout_ms": request.collective_timeout_ms,
            "world_size": world_size(request) if request.has_ranks or request.gang_part is not None else 0,
            "watches_ranks": request.watches_ranks,
            "is_part": request.gang_part is not None,
            "other_parts": 0 if request.gang_part is None else request.gang_part.nodes - 1,
            "first_rank": request.rank,
            "cgroup_procs_files": list(files.procs_files),
            "cgroup_kill_file": files.kill_file,
            "cgroup_freeze_file": files.freeze_file,
            "can_pause": True,
            "cgroup_oom_files": list(files.oom_files),
            "namespaces": self._job_view(self._places(request, resume), plan) if self._rules.namespaces else None,
            "uid": uid,
            "gid": gid,
        }

    def _is_sharing(self, request: LaunchRequest) -> bool:
        """Whether it is a part of a gang whose nodes see each other's checkpoints."""
        return request.gang_part is not None and not self._rules.gangs_by_transfer

    def _chosen_fence(self, request: LaunchRequest, resume: Checkpoint | None) -> int:
        """Under which the checkpoint was written that the other parts are to fetch from here; 0 = none is."""
        has_chosen = request.gang_part is not None and request.chooses_port and not self._is_sharing(request)
        return int(resume.directory.name) if resume is not None and has_chosen else 0

    def _share(self, request: LaunchRequest, places: LaunchPlaces, resume: Checkpoint | None) -> None:
        """Do about checkpoints what a start does once it is known which one an attempt goes on from.

        Raises:
            CommandRefusedError: This part of a gang may not write where the first one does.
        """
        owner, is_sharing = self._users.find(request.tenant), self._is_sharing(request)
        if is_sharing and not request.chooses_port:
            check_owner(places.checkpoint_directory, None if owner is None else owner[0])
            return
        if resume is not None and owner is not None:
            hand_over(resume.directory, owner)
        if is_sharing:
            leave_choice(places.checkpoint_directory, resume)

    def _told_of_parts(self, request: LaunchRequest, plan: LaunchPlan) -> dict[str, str]:
        """Whether a job's helper can see what ranks on other nodes declare; it cannot where each node has a folder."""
        if request.gang_part is None or not self._rules.gangs_by_transfer:
            return {}
        # With a parameter server there are two at least, and not one after the other.
        here = (
            [str(process.rank) for process in plan.ranks] if any(one.server is not None for one in plan.ranks) else []
        )
        return {"COTENANT_CHECKPOINT_PART": ",".join(here) or "1"}

    def _make_places(self, places: LaunchPlaces, owner: Owner | None, *, is_follower: bool) -> None:
        """Make the job's folders; where a gang shares storage its first node has made that of the checkpoints."""
        _make_job_directory(places.run_directory, owner)
        if not is_follower:
            _make_job_directory(places.checkpoint_directory, owner)
            if places.resume is not None and owner is not None:
                hand_over(places.resume.directory, owner)

    def _make_cluster_directory(self, incarnation_id: str) -> None:
        if incarnation_id:
            (self._directory.checkpoints / incarnation_id).mkdir(mode=0o711, exist_ok=True)

    def _job_view(self, places: LaunchPlaces, plan: LaunchPlan) -> dict[str, list[str]]:
        """The agent's folder looks empty to the job, except for what is the job's own."""
        root = self._directory.root.resolve()
        kept = [places.run_directory.resolve(), places.checkpoint_directory.parent.resolve()]
        if places.resume is not None and places.resume.directory.parent.resolve() not in kept:
            # Of the cluster from whose backup this one was restored, or of an older agent.
            kept.append(places.resume.directory.parent.resolve())
        working = Path(plan.working_directory).resolve()
        is_known = any(working.is_relative_to(path) for path in (*kept, self._directory.jobs.resolve()))
        # An allowed folder may lie in the agent's; one that holds attempts is none to be seen.
        if not is_known and not self._directory.jobs.resolve().is_relative_to(working):
            kept.append(working)
        return {"covered": [str(root)], "kept": [str(path) for path in kept if path.is_relative_to(root)]}


def _write_lease(attempt: Attempt, lease: Lease) -> None:
    record = lease.record(attempt.key.incarnation_id)
    write_json(attempt.directory.lease, attempt.sealed(attempt.directory.lease, record))


def _choose_port(request: LaunchRequest, live: Sequence[Attempt]) -> int:
    """Where the ranks meet: at a port of this node, unless the first one of the gang has chosen one of its own."""
    if request.gang_part is not None and not request.chooses_port:
        return request.gang_part.master_port
    return choose_port(request.key.directory_name, {item.rendezvous_port for item in live})


def _leave_notes(log: Path, request: LaunchRequest, plan: LaunchPlan) -> None:
    """Begin the job's log with what the node did otherwise than its owner may think."""
    notes = list(request.notes)
    if plan.overridden:
        notes.append(f"this node sets {', '.join(plan.overridden)}; the values that were submitted are ignored")
    if notes:
        log.touch(mode=0o600)
        log.write_text("".join(f"cotenant: {note}\n" for note in notes))


def _make_job_directory(path: Path, owner: Owner | None) -> None:
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    if owner is not None:
        os.chown(path, *owner)


def _claim(attempt: Attempt) -> tuple[int, int]:
    """Return what an attempt is promised or uses, and what of that others may use meanwhile."""
    limit_bytes = attempt.memory_limit_bytes
    promised_bytes = max(limit_bytes, attempt.usage.memory_bytes or 0)
    return promised_bytes, surge_bytes(limit_bytes, attempt.memory_held_bytes)

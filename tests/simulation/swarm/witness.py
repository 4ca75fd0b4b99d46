"""What really happens, seen from outside: no word of the programs is believed, their processes are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase
from scheduler_service.live_loop import LiveLoop
from tests.simulation.swarm.gang_witness import GangWitness
from tests.support.engine_invariants import BrokenInvariantError, check

if TYPE_CHECKING:
    from tests.simulation.swarm.job_process import JobProcess
    from tests.simulation.swarm.scheduler_host import SchedulerHost
    from tests.simulation.swarm.world import World

_CHECK_EVERY_EVENTS = 8
_LATE_MS = 100
"""A shim looks so often."""


class Witness:
    """Counts processes and steps by the jobs' tokens, and complains at once.

    Attributes:
        done: Tokens of jobs of which a process did the last step.
        accepted: Tokens of jobs whose submission was answered.
        events: How many facts the schedulers have handled.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._running: dict[str, list[JobProcess]] = {}
        self._on_gpu: dict[str, list[JobProcess]] = {}
        self._gangs = GangWitness(world)
        self.done: set[str] = set()
        self.accepted: dict[str, None] = {}
        self.events = 0

    # --- what the machines do -----------------------------------------------------------------------------------

    def job_begun(self, process: JobProcess) -> None:
        """A job's program runs from now on."""
        self._world.trace("begun", process.plan.token, process.key, process.steps_done, process.gpu_ids)
        self._running.setdefault(process.plan.token, []).append(process)
        for gpu_id in process.gpu_ids:
            self._on_gpu.setdefault(gpu_id, []).append(process)
        self._gangs.rank_begun(process)
        self.job_works(process)

    def job_works(self, process: JobProcess) -> None:
        """A job's program does something: no other of it may, and none that does not share its GPUs."""
        token = process.plan.token
        for other in self._running[token]:
            is_other_run = other.group is not process.group or (other is not process and other.rank == process.rank)
            if is_other_run and not other.is_frozen and not self._is_of_two_schedulers(process, other):
                self._world.violation(f"{token} runs twice at once: {_place(other)} and {_place(process)}")
        for gpu_id in process.gpu_ids:
            for other in self._on_gpu[gpu_id]:
                is_shared = not (process.plan.is_exclusive or other.plan.is_exclusive)
                # Two agents, beside each other or one after its folder was lost, each with a scheduler of its own, know
                # nothing of each other either.
                is_apart = process.memory != other.memory and self._is_of_two_schedulers(process, other)
                if other.plan.token != token and not other.is_frozen and not is_shared and not is_apart:
                    self._world.violation(f"{gpu_id} is given twice: {_place(other)} and {_place(process)} use it")

    def job_goes_on(self, process: JobProcess) -> None:
        """A job's program, which has stood still, makes a step: its lease lasts, or it may end in good order."""
        left_ms, supervisor = process.shim.lease_left_ms(), process.shim.supervisor
        if left_ms is None or left_ms > -_LATE_MS:
            return
        is_ending = supervisor is not None and supervisor.kill_at_ms is not None
        if not is_ending or (process.shim.lease_left_ms(with_grace=True) or 0) <= -_LATE_MS:
            self._world.violation(f"{_place(process)} makes a step {-left_ms} ms after its lease")

    def _is_of_two_schedulers(self, one: JobProcess, other: JobProcess) -> bool:
        """Whether two schedulers started or kept a job that neither could know to be the other's too.

        A copy that shares no node with its original cannot be told from it. What holds is judged where orders are
        given (`SchedulerHost.order_given`), and here after a restore: it starts nothing that a copy may still run.
        """
        copied_s = max(self._world.copied_s.get(process.keeper, -1.0) for process in (one, other))
        if one.keeper == other.keeper or copied_s < 0:
            return False
        restored_s = self._world.schedulers[0].restored_s
        return not copied_s < restored_s < max(one.ordered_s, other.ordered_s)

    def job_resumed(self, process: JobProcess, token: str, step: object) -> None:
        """A job's program read this checkpoint."""
        if (token, step) != (process.plan.token, process.steps_done):
            self._world.violation(f"{_place(process)} resumed step {step} of {token}")

    def job_done(self, process: JobProcess) -> None:
        """A job's program has done its last step."""
        self._world.trace("done", process.plan.token, process.key)
        self.done.add(process.plan.token)

    def job_ended(self, process: JobProcess) -> None:
        """A job's program runs no more."""
        self._world.trace("ended", process.plan.token, process.key, process.steps_done)
        self._gangs.rank_ended(process)
        self._running[process.plan.token].remove(process)
        for gpu_id in process.gpu_ids:
            self._on_gpu[gpu_id].remove(process)

    # --- what the schedulers say --------------------------------------------------------------------------------

    def observer(self, loop: LiveLoop) -> LoopObserver:
        """See every fact that a scheduler handles."""
        return LoopObserver(self._world, self, loop)

    def scheduler_serves(self, host: SchedulerHost) -> None:
        """A scheduler has recovered: whatever was answered must be known."""
        assert host.loop is not None
        state = host.loop.engine.state
        self._world.trace("serves", host.name, host.loop.sequence)
        known = {token_of(job) for job in state.jobs.values()}
        lost = [token for token in self.accepted if token not in known and self._world.must_know(token)]
        if lost and not host.is_copy:
            self._world.violation(f"{host.name} has lost {', '.join(lost)}")
        self.check_ends(state.jobs.values())

    def check_ends(self, jobs: Iterator[JobRecord] | Any) -> None:
        """No job is finished without its steps."""
        for job in jobs:
            if job.phase is Phase.FINISHED and token_of(job) not in self.done:
                self._world.violation(f"{job.job_id} ({token_of(job)}) is FINISHED without its steps")


class LoopObserver:
    """Looks at one scheduler after every fact."""

    def __init__(self, world: World, witness: Witness, loop: LiveLoop) -> None:
        self._world = world
        self._witness = witness
        self._loop = loop

    def event_handled(self, event: Event, found: Sequence[Command], *, duration_ns: int) -> None:
        """Look at what this fact has changed."""
        witness, state = self._witness, self._loop.engine.state
        witness.events += 1
        job_id = getattr(event, "job_id", "")
        self._world.trace("event", self._loop.sequence, type(event).__name__, job_id, len(found))
        job = state.jobs.get(job_id)
        if job is not None:
            witness.check_ends([job])
        if state.rejected:
            self._world.violation(f"a decision was dropped: {state.rejected[-1]}")
            state.rejected.clear()
        # What others of the same append follow is decided upon with the last of them.
        if witness.events % _CHECK_EVERY_EVENTS == 0 and not event.is_followed:
            try:
                check(state)
            except BrokenInvariantError as error:
                self._world.violation(str(error))

    def batch_handled(self) -> None:
        """Nothing more."""


def token_of(job: JobRecord) -> str:
    """The name that a job has for ever."""
    environment: Any = job.submission.launch.get("environment", {})
    return str(environment.get("SEED", ""))


def _place(process: JobProcess) -> str:
    job_id, attempt, fence = process.key
    return f"{process.plan.token} ({job_id}.{attempt}, fence {fence}, {process.machine.name})"

"""One run of the swarm: machines, wires, users and misfortunes, all drawn from one seed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from cotenant.v1 import node_agent_pb2 as messages
from cotenant_agent.checkpointing.checkpoint_transfers import STAGING
from scheduler_service.core.records import ENDED_PHASES
from tests.simulation.swarm.agent_host import AgentHost
from tests.simulation.swarm.faults import SLEEP_RATES, STANDSTILL_RATES, TRANSFER_RATES, SwarmFaults
from tests.simulation.swarm.job_process import JobPlan, JobProcess, SimulatedSocket
from tests.simulation.swarm.machine import Machine
from tests.simulation.swarm.misfortunes import Misfortunes
from tests.simulation.swarm.network import Connection, Wire
from tests.simulation.swarm.product_patches import simulated_machines
from tests.simulation.swarm.rank_group import RankGroup
from tests.simulation.swarm.relay_calls import forged
from tests.simulation.swarm.run_report import RunReport
from tests.simulation.swarm.scheduler_host import SchedulerHost
from tests.simulation.swarm.shim_process import ShimProcess
from tests.simulation.swarm.users import Users
from tests.simulation.swarm.virtual_time import KilledError, SimulatedProcess, StuckError, VirtualLoop, current
from tests.simulation.swarm.witness import Witness

POLICIES = ("fifo", "horus", "sjf_bsbf", "restless", "pausing", "srtf")
_PARTS_END_RATIO = 0.1
"""Of the worlds with gangs across nodes those with many, whose parts often end with 0 in the middle."""
_PART_ENDS_RATIO = 0.5
_MEASURING_RATIO = 0.1
_SLEEPING_RATIO = 0.2
_STANDSTILLS_RATIO = 0.2
_MOVING_RATIO = 0.3
"""Of the worlds with gangs across nodes those with many, which their policy moves all the time."""
_PYTHON_RATIO = 0.8
"""Of the jobs those that can be started early."""
_WAITS_AT_MOST_S = 60.0
ENDS_WITHIN_S = 600.0
"""After the faults, and after each end of a job from then on: backoffs of a minute, leases, and one job's work. Gangs
of which no two fit at once end one after the other, and may take longer together."""

Memory = tuple[Path, int]
"""What an agent remembers by: its folder, and how often the content of that was lost."""
Placed = tuple[Memory, tuple[str, int, int]]
"""Where something was ordered, and its job, attempt and fence."""


class World:
    """Everything that a seed draws."""

    def __init__(self, seed: int, root: Path, *, jobs: int = 20, is_told: bool = False) -> None:
        self.seed = seed
        self.root = root
        self.generator = random.Random(seed)
        self.context = contextvars.copy_context()
        self.loop = VirtualLoop()
        self.loop.run_storage = self._store
        self.loop.set_exception_handler(self._take_exception)
        self.story: list[str] | None = [] if is_told else None
        self._hash = hashlib.sha256()
        self.violations: list[str] = []
        self.struck: Counter[str] = Counter()
        self.faults = SwarmFaults.drawn(self.generator)
        self.are_faults_over = False
        self.repaired_s = 0.0
        self.forgotten: set[str] = set()
        self.events = 0
        self.gpus_per_node = self.generator.choice((1, 2))
        self.snapshot_every_events = self.generator.choice((20, 100, 10_000))
        self.policy = self.generator.choice(POLICIES)
        self.has_shared_storage = self.generator.random() < 0.7
        # Drawn apart: the stories of the others stay as they are.
        self.transfers = random.Random(f"transfers-{seed}")
        if not self.has_shared_storage:
            self.faults = self.faults.with_transfers(self.transfers)
        self._slow_disk = self.generator.choice((0.01, 0.2))
        self.agent_folders: dict[SimulatedProcess, Path] = {}
        self.scheduler_processes: dict[SimulatedProcess, SchedulerHost] = {}
        self.sockets: dict[str, SimulatedSocket] = {}
        self.plans: dict[str, JobPlan] = {}
        self.shims: dict[Path, ShimProcess] = {}
        self.copied_s: dict[str, float] = {}
        self.groups: dict[tuple[object, ...], dict[str, RankGroup]] = {}
        self.has_gangs_across = random.Random(f"gangs-{seed}").random() < 0.5
        self._parts = random.Random(f"parts-{seed}")
        self.have_parts_ends = self.has_gangs_across and self._parts.random() < _PARTS_END_RATIO
        self._moves = random.Random(f"moves-{seed}")
        is_restless = self._moves.random() < _MOVING_RATIO
        self.do_gangs_move = self.has_gangs_across and not self.have_parts_ends and is_restless
        self.policy = "restless" if self.do_gangs_move else self.policy
        self.measures_new_jobs = measures_new_jobs(seed)
        self.policy = "horus" if self.measures_new_jobs else self.policy
        self.waiting: dict[JobProcess, None] = {}
        self.gangs_prepared = self.fetched = self.outlived = 0
        self.losses: Counter[Path] = Counter()
        self.orders: dict[Placed, tuple[str, float]] = {}
        self.keepers: dict[Placed, str] = {}
        self.witness = Witness(self)
        self.schedulers = [SchedulerHost(self, Machine(self, "head", rate=self._drawn_rate()), "head")]
        self.sleeps = random.Random(f"sleeps-{seed}")
        self.do_machines_sleep = self.sleeps.random() < _SLEEPING_RATIO
        self.standstills = random.Random(f"standstills-{seed}")
        self.do_machines_stand_still = self.standstills.random() < _STANDSTILLS_RATIO
        self.nodes = [
            AgentHost(self, self._machine_of_node(f"n{index}"), f"n{index}", self.gpus_per_node)
            for index in range(self.generator.choice((3, 3, 4)))
        ]
        self._wires: dict[str, Wire] = {}
        self.users = Users(self, jobs)
        self.misfortunes = Misfortunes(self)

    def _drawn_rate(self) -> float:
        return 1.0 + self.generator.uniform(-0.01, 0.01) * self.strikes("clock_drift")

    def _machine_of_node(self, name: str) -> Machine:
        kernel = self.schedulers[0].machine if self.do_machines_sleep and name == "n0" else None
        return Machine(self, name, rate=self._drawn_rate(), kernel=kernel)

    # --- what the others ask ------------------------------------------------------------------------------------

    def strikes(self, kind: str) -> bool:
        """Whether a misfortune of this kind happens at this occasion."""
        rate, generator = self.faults.rate(kind), self.transfers if kind in TRANSFER_RATES else self.generator
        if not rate or self.are_faults_over or generator.random() >= rate:
            return False
        self.struck[kind] += 1
        return True

    def strikes_asleep(self) -> bool:
        """Whether a machine falls asleep at this occasion; drawn apart."""
        self.struck["sleep"] += (falls := self.do_machines_sleep and self.sleeps.random() < SLEEP_RATES["sleep"])
        return falls

    def strikes_still(self) -> bool:
        """Whether machines are held from this occasion on; drawn apart."""
        rate = STANDSTILL_RATES["standstill"]
        self.struck["standstill"] += (is_held := self.do_machines_stand_still and self.standstills.random() < rate)
        return is_held

    def strikes_part(self) -> bool:
        """Whether all ranks of a gang on one of its nodes end with 0; drawn apart, as such gangs are."""
        if not self.have_parts_ends or self.are_faults_over or self._parts.random() >= _PART_ENDS_RATIO:
            return False
        self.struck["rank_leaves"] += 1
        return True

    def command(self) -> list[str]:
        """Return a job's: one that can be started early, or not."""
        return [sys.executable, "train.py"] if self._moves.random() < _PYTHON_RATIO else ["/bin/true"]

    def preparation_s(self) -> float:
        """How long a process that was started early takes to get ready."""
        return self._moves.choice((0.5, 3.0, 8.0))

    def strike_here(self, kind: str) -> None:
        """Let the present process die between two steps where its last write has come."""
        current().count_write()

    def extra_delay_s(self) -> float:
        """What one message takes more than usual."""
        return self.generator.uniform(0.1, 6.0) if self.strikes("delay") else self.generator.random() * 0.01

    def late_news_s(self) -> float:
        """How long the other end does not hear of a broken stream."""
        return self.generator.uniform(0.0, 8.0) if self.strikes("reset") else 0.0

    def disk_delay_s(self) -> float:
        """What a flush takes."""
        return self.generator.random() * self._slow_disk

    def wire_of(self, machine: Machine) -> Wire:
        """Between a machine and the schedulers."""
        return self._wires.setdefault(machine.name, Wire())

    def checkpoints_of(self, machine: Machine) -> Path:
        """Where a machine's jobs write checkpoints: on storage that all share, or on their own."""
        return self.root / "checkpoints" if self.has_shared_storage else machine.root / "checkpoints"

    def scheduler_of(self, process: SimulatedProcess) -> SchedulerHost:
        """Whose process that is."""
        return self.scheduler_processes[process]

    def scheduler_for(self, machine: Machine) -> SchedulerHost | None:
        """Who answers where this machine dials."""
        answering = [host for host in self.schedulers if host.is_alive and host.agents is not None]
        return self.generator.choice(answering) if len(answering) > 1 else next(iter(answering), None)

    def memory_of(self, agent_folder: Path) -> Memory:
        """What an agent with that folder remembers by at present."""
        return agent_folder, self.losses[agent_folder]

    def heard(self, machine: Machine, content: bytes) -> bytes:
        """What comes out of the wire at a machine: what was sent, or something forged."""
        return forged(machine, content) if self.faults.rate("forged_checkpoint") else content

    def connect(self, machine: Machine, requests: AsyncIterator[messages.ConnectRequest]) -> Connection:
        """Dial."""
        connection = Connection(self, machine, requests)
        self.misfortunes.connections[machine.name] = connection
        return connection

    def start_shim(self, machine: Machine, directory: Path) -> ShimProcess:
        """The agent starts the keeper of an attempt."""
        shim = ShimProcess(machine, directory)
        self.shims[directory] = shim
        shim.later(self.generator.uniform(0.01, 0.2), shim.begin)
        return shim

    def file_written(self, path: Path) -> None:
        """The kernel's word to whoever looks at a file often."""
        shim = self.shims.get(path.parent)
        if shim is not None and not shim.is_dead and path.name != "exit.json":
            shim.file_changed()

    def must_know(self, token: str) -> bool:
        """Whether no scheduler may have forgotten this job: those that a restored backup does not know are lost."""
        return token not in self.forgotten

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Let the world itself do something."""
        self.loop.call_later(delay_s, action, context=self.context)

    def trace(self, *facts: object) -> None:
        """Remember what happened."""
        line = f"{self.loop.time():.3f} {' '.join(map(str, facts))}"
        self._hash.update(line.encode())
        self.events += 1
        if self.story is not None:
            self.story.append(line)

    def tell(self, direction: str, name: str, item: tuple[str, Any], kind: type[Message]) -> None:
        """Write a message into the story, where one is written; it is no part of the trace."""
        if self.story is not None:
            text = " ".join(str(kind.FromString(item[1])).split())[:400] if item[0] == "message" else repr(item[1])
            self.story.append(f"{self.loop.time():.3f} {direction} {name} {item[0]} {text}")

    def violation(self, finding: str) -> None:
        """Something that must never happen has happened."""
        self.trace("VIOLATION", finding)
        self.violations.append(f"at {self.loop.time():.1f} s: {finding}")

    def note_failure(self, finding: str) -> None:
        """A part of the product failed in a way that its callers would see as a bug."""
        if not self.loop.is_ending:
            self.violation(finding)

    def _store(self, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        self.scheduler_of(current()).store(future, work)

    def _take_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.loop.is_ending and not isinstance(error, KilledError):
            self.violation(f"nobody took {error!r}: {context.get('message')}")

    # --- one run ------------------------------------------------------------------------------------------------

    def run(self) -> RunReport:
        """Run until every job has ended after the faults, or the time is over."""
        try:
            self.loop.run_until_complete(self._live())
        except StuckError as error:
            self.violation(str(error))
        self._check_left_behind()
        report = RunReport(
            seed=self.seed,
            trace_sha256=self._hash.hexdigest(),
            violations=tuple(self.violations),
            events=self.events,
            facts=self.witness.events,
            jobs=len(self.users.tokens),
            nodes=len(self.nodes),
            simulated_s=self.loop.time(),
            kinds=tuple(self.faults.rates),
            struck=self.struck,
            fetched=self.fetched,
            gangs_prepared=self.gangs_prepared,
            lent_pauses=self._lent_pauses(),
            outlived=self.outlived,
        )
        self._end()
        return report

    def _lent_pauses(self) -> int:
        loop = self.schedulers[0].loop
        return sum(job.counts.lent_pauses for job in loop.engine.state.jobs.values()) if loop is not None else 0

    def _check_left_behind(self) -> None:
        """Of checkpoints that were fetched, or were not to the end, nothing lies where they are put together."""
        for node in self.nodes:
            staging = self.checkpoints_of(node.machine) / STAGING / f"of-{node.node_id}"
            if staging.is_dir() and any(staging.iterdir()) and not self.violations:
                self.violation(f"{node.node_id} has left {sorted(path.name for path in staging.iterdir())} behind")

    async def _live(self) -> None:
        for host in self.schedulers:
            host.start()
        for node in self.nodes:
            self.later(self.generator.random(), node.start)
        self.users.begin()
        self.misfortunes.begin()
        fewest, since_s = len(self.users.tokens), 0.0
        while not self.violations:
            unended = self._unended() if self.are_faults_over else self.users.tokens
            if not unended:
                break
            if self.schedulers[0].loop is not None and len(unended) < fewest:
                fewest, since_s = len(unended), self.loop.time()
            if self.are_faults_over and self.loop.time() > max(self.repaired_s, since_s) + ENDS_WITHIN_S:
                self.violation(f"none of these has ended in {ENDS_WITHIN_S:.0f} s without faults: {unended}")
                return
            await asyncio.sleep(1.0)
        await self._wait_for_the_prepared()

    async def _wait_for_the_prepared(self) -> None:
        """Nothing that was started early may wait where no job is left for it; what nobody orders has its lease."""
        until_s = self.loop.time() + _WAITS_AT_MOST_S
        while self.waiting and not self.violations:
            if self.loop.time() > until_s:
                names = ", ".join(sorted(process.name for process in self.waiting))
                self.violation(
                    f"{names} still waits for a launch {_WAITS_AT_MOST_S:.0f} s after the last job has ended"
                )
            await asyncio.sleep(1.0)

    def _unended(self) -> list[str]:
        host = self.schedulers[0]
        if host.loop is None:
            return ["no scheduler answers"]
        jobs = host.loop.engine.state.jobs
        living = (job for job in jobs.values() if job.phase not in ENDED_PHASES)
        return [f"{job.job_id} {job.phase} {job.reason.code}" for job in living] + self.users.unanswered()

    def _end(self) -> None:
        """Clean up what the dead have left: nothing of it counts."""
        self.loop.is_ending = True
        for process in self.loop.processes:
            process.kill()
        self.loop.clean_up()
        for host in self.schedulers:
            if host.log is not None:
                host.log.close()


def measures_new_jobs(seed: int) -> bool:
    """Say whether nothing is known of jobs that are long enough to be paused for each other; drawn apart as well."""
    return random.Random(f"measured-{seed}").random() < _MEASURING_RATIO


def run_seed(seed: int, *, jobs: int = 20, story: list[str] | None = None) -> RunReport:
    """Run one seed on files in memory where there are such, else in the folder for temporary files."""
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="cotenant-swarm-", dir=folder))
    # Cycles wait for the end of the run: what their collection would call has no place in simulated time.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with simulated_machines(are_jobs_measured=measures_new_jobs(seed)):
            world = World(seed, root, jobs=jobs, is_told=story is not None)
            report = world.run()
            if story is not None:
                story.extend(world.story or ())
            return report
    finally:
        if is_collecting:
            gc.enable()
        shutil.rmtree(root, ignore_errors=True)

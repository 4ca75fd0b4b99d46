"""What happens to a run by and by, and the repair after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cotenant.v1 import node_agent_pb2 as messages
from tests.simulation.swarm.agent_host import AgentHost
from tests.simulation.swarm.job_process import JobProcess
from tests.simulation.swarm.machine import Machine
from tests.simulation.swarm.network import Connection
from tests.simulation.swarm.queue_changes import QueueChanges
from tests.simulation.swarm.scheduler_host import SchedulerHost
from tests.simulation.swarm.second_instances import SecondInstances
from tests.simulation.swarm.shim_process import ShimProcess
from tests.simulation.swarm.virtual_time import FAULT, SLEEP, STANDSTILL, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.swarm.world import World

_EVERY_S = 1.0
FAULTS_S = 45.0
"""How long things go wrong; longer, until three have and enough has happened."""
STRIKES_MIN = 3
EVENTS_MIN = 200
_STANDSTILLS_S = (12.5, 18.0, 40.0, 120.0)
"""From a little more than a lease to ten of them: with the product's leases of 30 s, 31 s to 300 s."""


class Misfortunes:
    """Draws, once a second and machine, what goes wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._generator = world.generator
        self.connections: dict[str, Connection] = {}
        self._copies = SecondInstances(world, self._reset)
        self._queue_changes = QueueChanges(world)

    def begin(self) -> None:
        """Start with the run."""
        self._world.later(_EVERY_S, self._next)

    def _next(self) -> None:
        now_s, is_eventful = self._world.loop.time(), self._world.events >= EVENTS_MIN
        has_enough = self._world.struck.total() >= STRIKES_MIN and is_eventful
        # Gangs take their time to be moved.
        faults_s = 2 * FAULTS_S if self._world.do_gangs_move else FAULTS_S
        if now_s > faults_s and (has_enough or now_s > 4 * FAULTS_S):
            self._repair()
            return
        for node in self._world.nodes:
            self._strike_node(node)
            if node.machine.is_on and self._world.strikes_asleep():
                self._world.trace("fault", "sleep", node.node_id)
                self._fall_asleep(node)
            if node.machine.is_on and self._world.strikes_still():
                self._world.trace("fault", "standstill", node.node_id)
                self._stand_still(node)
        self._strike_scheduler()
        if self._world.strikes("cancel"):
            self._world.users.cancel_one()
        if self._world.strikes("queue_change"):
            self._queue_changes.change_one()
        self._world.later(_EVERY_S, self._next)

    # --- nodes --------------------------------------------------------------------------------------------------

    def _strike_node(self, node: AgentHost) -> None:
        kinds: dict[str, Callable[[AgentHost], None]] = {
            "agent_crash": self._crash_agent,
            "shim_crash": self._crash_shim,
            "machine_crash": self._crash_machine,
            "freeze": self._freeze,
            "partition": self._cut,
            "reset": self._reset,
            "clock_jump": self._jump,
            "disk_full": self._fill,
            "wiped_node": self._wipe,
            "cloned_node": self._copies.clone,
            "forged_report": self._forge,
        }
        for kind, strike in kinds.items():
            if node.machine.is_on and self._world.strikes(kind):
                self._world.trace("fault", kind, node.node_id)
                strike(node)

    def _soon(self, longest_s: float, action: Callable[[], object]) -> None:
        self._world.later(self._generator.uniform(0.2, longest_s), action)

    def _crash_agent(self, node: AgentHost) -> None:
        if node.process is not None and self._generator.random() < 0.5:
            # In the middle of a write that is still to come.
            node.process.writes_left = self._generator.randrange(6)
            self._world.later(_EVERY_S, node.kill)
        else:
            node.kill()
        self._soon(self._generator.choice((3.0, 40.0)), node.start)

    def _crash_shim(self, node: AgentHost) -> None:
        shims = [process for process in node.machine.living() if isinstance(process, ShimProcess)]
        if shims:
            self._generator.choice(shims).kill()

    def _crash_machine(self, node: AgentHost) -> None:
        node.machine.power_off(self._generator)
        self._soon(self._generator.choice((5.0, 40.0)), lambda: self._boot(node))

    def _boot(self, node: AgentHost) -> None:
        if not node.machine.is_on:
            node.machine.power_on()
            node.start()

    def _freeze(self, node: AgentHost) -> None:
        """The agent alone, one job with its shim, or the whole machine stands still; the clocks go on."""
        living: list[SimulatedProcess] = [process for process in node.machine.living() if not process.is_frozen]
        shims = [process for process in living if isinstance(process, ShimProcess)]
        kind = self._generator.choice(("agent", "job", "machine"))
        if kind == "agent":
            living = [process for process in living if process is node.process]
        elif kind == "job" and shims:
            shim = self._generator.choice(shims)
            living = [shim, *shim.jobs]
        for process in living:
            process.freeze(FAULT)
        self._soon(self._generator.choice((5.0, 30.0)), lambda: _thaw(living, FAULT))

    def _fall_asleep(self, node: AgentHost) -> None:
        """Let everything under the kernel of a node stand still, and its clocks but for that of the boot."""
        machines = [node.machine, *([node.machine.kernel] if node.machine.kernel is not None else [])]
        if any(machine.is_asleep for machine in machines):
            return
        for machine in machines:
            machine.fall_asleep()
        self._world.later(self._world.sleeps.choice((5.0, 30.0, 60.0)), lambda: self._wake_up(machines))

    def _wake_up(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            machine.wake_up()
        _thaw([process for process in self._world.loop.processes if process.machine in machines], SLEEP)

    def _stand_still(self, node: AgentHost) -> None:
        """Let a node stand still for longer than its leases, or every machine, while all clocks go on."""
        world = self._world
        machines = [node.machine]
        if world.standstills.random() < 0.4:
            machines = [world.schedulers[0].machine, *(other.machine for other in world.nodes)]
        machines = [machine for machine in machines if not machine.is_held]
        self._hold(machines)
        longest_s = world.standstills.choice(_STANDSTILLS_S)
        world.later(world.standstills.uniform(_STANDSTILLS_S[0], longest_s), lambda: self._go_on(machines))

    def _hold(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            for process in machine.living():
                if isinstance(process, ShimProcess):
                    process.note_standstill()
            machine.stand_still()

    def _go_on(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            machine.go_on()
        processes = [process for process in self._world.loop.processes if process.machine in machines]
        for process in processes:
            if isinstance(process, JobProcess) and not process.is_dead:
                process.note_standstill()
        _thaw(processes, STANDSTILL)

    def _cut(self, node: AgentHost) -> None:
        wire = self._world.wire_of(node.machine)
        wire.is_cut = True
        self._soon(self._generator.choice((4.0, 40.0)), wire.mend)

    def _reset(self, node: AgentHost) -> None:
        connection = self.connections.get(node.machine.name)
        if connection is not None:
            connection.break_down()

    def _jump(self, node: AgentHost) -> None:
        node.machine.wall_jump_ns += self._generator.choice((3_600, -3_600, 400_000)) * 10**9

    def _fill(self, node: AgentHost) -> None:
        node.machine.is_disk_full = True
        self._soon(15.0, lambda: setattr(node.machine, "is_disk_full", False))

    def _wipe(self, node: AgentHost) -> None:
        """The folder is lost, deleted or no more mounted where it was; what was started from it runs on."""
        node.kill()
        if self._generator.random() < 0.5:
            shutil.rmtree(node.state_dir, ignore_errors=True)
            self._world.losses[node.state_dir] += 1
        else:
            node.state_dir = node.state_dir.with_name(node.state_dir.name + "x")
        self._soon(self._generator.choice((3.0, 40.0)), node.start)

    def _forge(self, node: AgentHost) -> None:
        """A node says of every running attempt of the others that it has ended well."""
        connection = self.connections.get(node.machine.name)
        host = connection.host if connection is not None else None
        if connection is None or host is None or host.loop is None:
            return
        for job in host.loop.engine.state.running.values():
            record = host.loop.engine.state.jobs[job.request.job_id]
            if node.node_id not in record.node_ids:
                key = messages.AttemptKey(job_id=record.job_id, attempt=record.attempt, fence=record.fence)
                exited = messages.AttemptExited(key=key, exit_class="done", steps_done=record.request.steps_total)
                connection.say(messages.ConnectRequest(attempt_exited=exited))

    # --- the scheduler ------------------------------------------------------------------------------------------

    def _strike_scheduler(self) -> None:
        host = self._world.schedulers[0]
        if not host.is_alive:
            return
        self._look_after_state(host)
        kinds: dict[str, Callable[[SchedulerHost], None]] = {
            "scheduler_crash": self._crash_scheduler,
            "freeze": self._freeze_scheduler,
            "disk_full": self._fill_scheduler,
            "two_schedulers": self._copies.copy_scheduler,
        }
        if host.backups:
            kinds = {"old_backup": self._restore, **kinds}
        kind = next((kind for kind in kinds if self._world.strikes(kind)), None)
        if kind is not None:
            self._world.trace("fault", kind, host.name)
            kinds[kind](host)

    def _look_after_state(self, host: SchedulerHost) -> None:
        """Let an operator back up now and then, and confirm or mend what stands still."""
        faults = self._world.faults
        if self._generator.random() < 0.1 and faults.rate("old_backup"):
            host.back_up()
        if host.restored_s >= 0 and self._world.loop.time() > host.restored_s + 10.0 and host.scheduling is not None:
            host.confirm()
        if faults.rate("two_schedulers") and self._generator.random() < 0.1:
            self._copies.mend_standstill(host)

    def _restore(self, host: SchedulerHost) -> None:
        # An operator confirms a restore when the scheduler of the lost state runs no more, nor a copy of it.
        self._copies.stop_schedulers()
        host.kill(self._generator, is_torn=False)
        known = host.restore(self._generator.choice(host.backups))
        self._world.forgotten |= self._world.witness.accepted.keys() - known
        self._soon(self._generator.choice((2.0, 25.0)), host.start)

    def _crash_scheduler(self, host: SchedulerHost) -> None:
        host.kill(self._generator, is_torn=self._world.strikes("torn_write"))
        if self._world.strikes("clock_jump"):
            host.machine.wall_jump_ns += self._generator.choice((3_600, -3_600, 36_000_000)) * 10**9
        self._soon(self._generator.choice((2.0, 25.0)), host.start)

    def _freeze_scheduler(self, host: SchedulerHost) -> None:
        if host.process is not None:
            host.process.freeze(FAULT)
            self._soon(self._generator.choice((3.0, 25.0)), partial(host.process.thaw, FAULT))

    def _fill_scheduler(self, host: SchedulerHost) -> None:
        host.machine.is_disk_full = True
        self._soon(15.0, lambda: setattr(host.machine, "is_disk_full", False))

    # --- afterwards ---------------------------------------------------------------------------------------------

    def _repair(self) -> None:
        """Everything works again; nothing that was lost comes back."""
        self._world.are_faults_over = True
        self._world.repaired_s = self._world.loop.time()
        self._world.trace("repaired")
        self._world.users.choose_policy("fifo")
        self._copies.stop_all()
        self._act_as_operator()
        machines = [host.machine for host in self._world.schedulers] + [node.machine for node in self._world.nodes]
        self._wake_up(machines)
        self._go_on(machines)
        for host in self._world.schedulers:
            host.machine.is_disk_full = False
            if host.process is not None:
                host.process.thaw(FAULT)
            host.start()
        for node in self._world.nodes:
            node.machine.is_disk_full = False
            self._boot(node)
            _thaw(node.machine.living(), FAULT)
            self._world.wire_of(node.machine).mend()
            node.start()

    def _act_as_operator(self) -> None:
        """Do what the scheduler asks for: nodes that obeyed a copy may tell it later that it is behind."""
        host = self._world.schedulers[0]
        self._copies.mend_standstill(host)
        self._queue_changes.settle()
        if host.restored_s >= 0:
            host.confirm()
        self._world.later(5.0, self._act_as_operator)


def _thaw(processes: Sequence[SimulatedProcess], why: str) -> None:
    """Let them go on, keepers before their jobs."""
    for process in sorted(processes, key=lambda one: isinstance(one, JobProcess)):
        process.thaw(why)

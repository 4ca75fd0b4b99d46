"""What goes wrong in a run: every run enables a random subset of the kinds, each rarely or often.

| fault | how it is injected |
|---|---|
| scheduler_crash | kill -9 between any two steps; restarted on the files as they lay there |
| torn_write | the crash hits a write: a part of its bytes is on the disk |
| agent_crash | kill -9, at any instant or in the middle of a durable write; restarted later |
| shim_crash | kill -9 of one shim |
| machine_crash | power off: everything ends, unflushed files are torn; a new boot later |
| freeze | an agent, a shim, a whole machine or the scheduler stands still while clocks go on |
| partition | a machine's wire holds everything that is on it until it is mended |
| reset | a stream breaks at the agent's end, and the other end hears of it late: its words come late |
| delay | some messages take seconds |
| duplicate | messages come twice |
| clock_jump | a machine's wall clock jumps; the scheduler's at its next start |
| clock_drift | machines' clocks run 1 % faster or slower (drawn at the beginning) |
| disk_full | of an agent or of the scheduler, for a while |
| wiped_node | the agent is killed and its state folder lost; shims run on in what was deleted |
| cloned_node | a second agent with a node's name and a copy of its folder, beside it, on another machine or on an |
| | image of the first; stopped some time later |
| old_backup | an older copy made by `backup` is restored by `restore`, and confirmed some time later |
| two_schedulers | a second one on a copy of the state folder answers agents too; stopped some time later, and the |
| | first, where it stands still, is backed up, restored and confirmed |
| forged_report | a node reports attempts that another one holds as finished |
| job_crashes | a job's program, or one rank of a gang, dies |
| rank_leaves | one rank of a gang, or all of one node, ends with 0 in the middle, and the others wait for it |
| queue_change | users hold, release and retry jobs, operators cordon, drain and uncordon nodes |
| predictor_down | questions are answered by a failure |
| cancel, repeat | users cancel jobs, and send a request twice |

In one run of five, drawn apart, a node shares the kernel of the scheduler's machine, and machines sleep:

| fault | how it is injected |
|---|---|
| sleep | everything on a machine stands still, and of its clocks the one that does not count sleep |

In one run of five, drawn apart, machines are held for longer than their leases:

| fault | how it is injected |
|---|---|
| standstill | everything on a node, or on all machines, stands still while their clocks go on |

Where nodes share no storage, checkpoints travel; of these, drawn apart:

| fault | how it is injected |
|---|---|
| broken_transfer | a stream with a checkpoint breaks between two of its pieces |
| forged_checkpoint | a node sends the checkpoint of another job or attempt in the place of what it was asked for |
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

RATES: dict[str, tuple[float, ...]] = {
    "scheduler_crash": (0.01, 0.05),
    "torn_write": (0.5,),
    "agent_crash": (0.01, 0.05),
    "shim_crash": (0.01, 0.05),
    "machine_crash": (0.01, 0.03),
    "freeze": (0.02, 0.06),
    "partition": (0.02, 0.06),
    "reset": (0.03, 0.1),
    "clock_jump": (0.05,),
    "disk_full": (0.02, 0.05),
    "wiped_node": (0.01, 0.03),
    "cloned_node": (0.01, 0.03),
    "old_backup": (0.02, 0.05),
    "two_schedulers": (0.02, 0.05),
    "forged_report": (0.05, 0.2),
    "cancel": (0.02, 0.05),
    "delay": (0.02, 0.2),
    "duplicate": (0.05, 0.3),
    "job_crashes": (0.01, 0.05),
    "rank_leaves": (0.02, 0.1),
    "queue_change": (0.05, 0.2),
    "predictor_down": (0.3, 1.0),
    "repeat": (0.3,),
    "clock_drift": (1.0,),
}
"""Kind of fault -> its rates: per second for instants, per occasion for the others."""
TRANSFER_RATES: dict[str, tuple[float, ...]] = {
    "broken_transfer": (0.0, 0.05, 0.2),
    "forged_checkpoint": (0.0, 0.3, 0.7),
}
"""The same for checkpoints that travel: per piece, and per checkpoint."""
SLEEP_RATES: dict[str, float] = {"sleep": 0.03}
"""The same for machines that sleep, per second."""
STANDSTILL_RATES: dict[str, float] = {"standstill": 0.015}
"""The same for machines that are held, per second."""
SWITCHED_OFF: frozenset[str] = frozenset()
"""Kinds that the product does not survive yet."""
KINDS_MIN = 3


@dataclass(frozen=True)
class SwarmFaults:
    """The rates of one run; a kind that is absent does not occur."""

    rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def drawn(cls, generator: random.Random) -> SwarmFaults:
        """A random subset of at least three kinds."""
        known = sorted(RATES.keys() - SWITCHED_OFF)
        kinds = generator.sample(known, generator.randrange(KINDS_MIN, len(known) + 1))
        return cls(rates={kind: generator.choice(RATES[kind]) for kind in sorted(kinds)})

    def with_transfers(self, generator: random.Random) -> SwarmFaults:
        """The same, and what may befall checkpoints that travel."""
        rates = {kind: generator.choice(TRANSFER_RATES[kind]) for kind in sorted(TRANSFER_RATES.keys() - SWITCHED_OFF)}
        return SwarmFaults(rates={**self.rates, **rates})

    def rate(self, kind: str) -> float:
        """Per second, or per occasion."""
        return self.rates.get(kind, 0.0)

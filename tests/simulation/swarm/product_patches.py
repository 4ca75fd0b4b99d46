"""Where the simulated machine is put below the product: every name that is replaced, in one table."""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from cotenant import job as job_helper
from cotenant import system_clock as common_clock
from cotenant_agent import node_agent, protocol, wiring
from cotenant_agent import system_clock as agent_clock
from cotenant_agent.attempts import attempt, attempt_table, launching
from cotenant_agent.checkpointing import checkpoint_pieces
from cotenant_agent.keeper import job_hold, rank_ends, shim, shim_records, standstill
from cotenant_agent.records import AttemptObservation
from cotenant_agent.storage import durable_files, state_disk
from scheduler_service.adapters import system_clock as scheduler_clock
from scheduler_service.adapters.storage import stored_identity
from scheduler_service.commands import running_scheduler
from scheduler_service.core.trial_sharing import first_measurement_rules, measuring_starts
from scheduler_service.grpc_api.agents import node_agent_servicer
from tests.simulation.swarm import (
    agent_host,
    gang_witness,
    job_process,
    machine,
    network,
    relay_calls,
    scheduler_host,
    shim_process,
)
from tests.simulation.swarm.virtual_time import current
from tests.support.restless import make_restless_policy

AGENT_TICK_S = 2.0
SCHEDULER_TICK_S = 0.5
_BOOTED = (attempt_table, launching, node_agent, node_agent_servicer)


_POLICIES = SimpleNamespace(make_policy=make_restless_policy, unusable_plugins=tuple)


def _boot_id() -> str:
    return current().machine.boot_id


def _inventory(*_: Any) -> agent_host.SimulatedInventory:
    machine = current().machine
    return agent_host.SimulatedInventory(machine.name, machine.world.gpus_per_node)


def _token_hex(draws: random.Random) -> Callable[[int], str]:
    return lambda count: draws.randbytes(count).hex()


def _table() -> list[tuple[Any, str, Any]]:
    clock = machine.SimulatedTime()
    draws = random.Random(0)
    return [
        # Chance: fences after a restore are part of the story.
        (stored_identity, "secrets", SimpleNamespace(token_hex=_token_hex(draws), randbelow=draws.randrange)),
        # Clocks.
        *((module, "time", clock) for module in (agent_clock, scheduler_clock, common_clock, shim, shim_records)),
        (node_agent, "_TICK_S", AGENT_TICK_S),
        (node_agent, "_STANDSTILL_NS", 3 * AGENT_TICK_S * 1e9),
        (running_scheduler, "TICK_S", SCHEDULER_TICK_S),
        # Files: real ones, in memory.
        (os, "fsync", lambda _: None),
        (durable_files, "_temporary", machine.temporary_file),
        (durable_files, "room_of", machine.KeptRoom),
        (state_disk, "free_bytes", machine.left_bytes),
        (wiring, "StateDirectory", agent_host.LentStateDirectory),
        (running_scheduler, "SqliteEventLog", scheduler_host.CrashingEventLog),
        (running_scheduler, "PacedWork", scheduler_host.Unpaced),
        # Processes.
        (wiring, "LinuxProcesses", machine.SimulatedProcesses),
        (wiring, "_build_inventory", _inventory),
        (wiring, "_isolation", lambda _: ()),
        (wiring, "find_interface", lambda _: ""),
        *((module, "read_boot_id", _boot_id) for module in _BOOTED),
        (node_agent, "read_machine_id", lambda: current().machine.machine_id),
        (attempt_table, "ProgressSocket", job_process.SimulatedSocket),
        (attempt_table, "job_processes", SimpleNamespace(JobProcesses=shim_process.SimulatedJobProcesses)),
        (job_helper, "os", job_process.JobSystem()),
        (job_helper, "_reporter", lambda: None),
        *((module, "os", shim_process.ShimKernel()) for module in (shim, shim_records, job_hold)),
        (shim_records, "open", shim_process.open_in_directory),
        (shim, "sys", shim_process.ShimArguments()),
        (shim, "signal", shim_process.ShimSignals()),
        *((module, "start_ticks", shim_process.start_ticks) for module in (shim, job_hold)),
        (shim, "boot_ms", shim_process.boot_ms),
        (shim, "control_process", lambda *_: None),
        (shim, "AttemptSupervisor", shim_process.SimulatedSupervisor),
        (shim, "JobProcesses", shim_process.SimulatedJobProcesses),
        (shim, "RotatingLog", shim_process.SilentLog),
        (shim, "StartBarriers", shim_process.SimulatedBarriers),
        (rank_ends, "RANKS_SILENT_MS", gang_witness.RANKS_SILENT_MS),
        (standstill, "STANDSTILL_MS", shim_process.STANDSTILL_MS),
        (launching, "choose_port", lambda name, taken: 20_000 + len(taken)),
        # The network.
        (node_agent, "open_channel", lambda _: network.Channel()),
        (node_agent, "NodeAgentServiceStub", relay_calls.RelayStub),
        (checkpoint_pieces, "os", relay_calls.TransferFiles()),
        (checkpoint_pieces, "shutil", relay_calls.TransferFolders()),
        (checkpoint_pieces, "CONTENTS_BYTES_MAX", relay_calls.CONTENTS_BYTES_MAX),
        (node_agent, "tls_mismatch", lambda _: None),
        (running_scheduler, "GrpcServer", scheduler_host.SimulatedServer),
        (running_scheduler, "predictor_channel", lambda _: None),
        (running_scheduler, "PredictorClient", scheduler_host.SimulatedPredictor),
        # What decides nothing.
        (protocol, "known_names", lambda allowed: (allowed,)),
        (running_scheduler, "Metrics", scheduler_host.NoMetrics),
        (running_scheduler, "policy_registry", _POLICIES),
    ]


def _measured_jobs() -> list[tuple[Any, str, Any]]:
    """Measure something of jobs, and let those of a minute lend as much of their lives as others do of hours."""
    return [
        (attempt, "AttemptObservation", _measured),
        (first_measurement_rules, "PAUSE_REPORTS_LEAST", 8_000 / scheduler_host.HEARTBEAT_MS),
        (first_measurement_rules, "LENT_RATIO_LEAST", 0.4),
        (first_measurement_rules, "LENT_RATIO_MAX", 0.4),
        (measuring_starts, "HOST_REMAINING_PAUSES_MIN", 1.0),
        (first_measurement_rules, "HOST_SLACK_PAUSES_MIN", 0.0),
    ]


def _measured(**values: Any) -> AttemptObservation:
    used_bytes = agent_host.GPU_BYTES // 8
    memory = {"memory_bytes": used_bytes, "memory_peak_bytes": used_bytes}
    return AttemptObservation(**values | memory | {"utilization_ratio": 0.3})


@contextlib.contextmanager
def simulated_machines(*, are_jobs_measured: bool = False) -> Iterator[None]:
    """The product runs on simulated machines inside the block.

    Args:
        are_jobs_measured: Their memory is told, and jobs of a minute are paused for others.

    Raises:
        LookupError: The product renamed what a fake is to replace: its real code would run.
    """
    missing = object()
    table = _table() + (_measured_jobs() if are_jobs_measured else [])
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in table]
    for owner, name, value in before:
        if value is missing and not hasattr(builtins, name):
            raise LookupError(f"{owner.__name__} has no {name} any more that a fake could replace")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    for owner, name, replacement in table:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        logging.disable(level)
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

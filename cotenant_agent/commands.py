"""The command line of the agent: `run`, `probe` and `leave-cluster`."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
from dataclasses import asdict
from pathlib import Path

import click

from cotenant.client_errors import InputError
from cotenant.command_groups import ListedGroup
from cotenant.command_run import EXIT_ERROR, EXIT_USAGE, HELP, run_command
from cotenant.option_types import Integers
from cotenant.structured_log import start_logging
from cotenant_agent.attempts.pausing_means import pausing_enforcements
from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.errors import AgentError, DeviceError, DriverMissingError, OperatorError, SettingsError
from cotenant_agent.isolation.cgroups import detect
from cotenant_agent.isolation.isolation_means import NAMESPACE_ENFORCEMENTS, SEALED_FILES, find_namespace_obstacle
from cotenant_agent.leaving import leave_cluster
from cotenant_agent.observing.command import observe
from cotenant_agent.settings import SETTINGS, AgentSettings
from cotenant_agent.wiring import build_agent

_log = logging.getLogger(__name__)
EXIT_CODES = ((InputError, EXIT_USAGE), (SettingsError, EXIT_USAGE), (AgentError, EXIT_ERROR))


@click.group(cls=ListedGroup, context_settings=HELP)
def cli() -> None:
    """Run jobs on one machine and measure them: the node agent of cotenant."""


@cli.command("run")
@SETTINGS.options()
def run_agent(settings: AgentSettings) -> None:
    """Offer this node's devices to a scheduler and run its jobs until SIGTERM or SIGINT."""
    try:
        asyncio.run(_run_until_signalled(settings))
    except DriverMissingError as error:
        raise DeviceError(
            f"{error}; install the driver of a GPU of NVIDIA (those of other makers, and on the chip of their host, "
            "are not offered), or let cores stand in: --standin-cores 0,1"
        ) from error
    if settings.ready_file:
        Path(settings.ready_file).unlink(missing_ok=True)


@cli.command("probe")
@click.option("--cores", type=Integers(), default=(), help="Stand-in cores to look at; all by default.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def look_at_machine(cores: tuple[int, ...], output: str) -> None:
    """Print which devices are here and what could be enforced."""
    found = probe(cores)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        click.echo(f"{name}: {json.dumps(value)}")


@cli.command("leave-cluster")
@click.option(
    "--state-dir", required=True, type=click.Path(path_type=Path), help="Of this node's agent, which must be stopped."
)
def leave(state_dir: Path) -> None:
    """Let this node join another cluster: the next one that its agent dials. Checkpoints of the former one are kept."""
    left = leave_cluster(state_dir)
    click.echo(f"left cluster {left[:8]}" if left else "this node belongs to no cluster")


cli.add_command(observe)


def main() -> int:
    """Run the command line and return its exit status."""
    return run_command(cli, exit_codes=EXIT_CODES)


async def _run_until_signalled(settings: AgentSettings) -> None:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    start_logging("agent", settings.log_level, fields={"node_id": settings.node_id}, is_service=True)
    try:
        with build_agent(settings) as agent:
            _log.info("agent_started", extra={"pid": os.getpid(), "scheduler": settings.scheduler})
            await agent.run(leave)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = "make room there, or choose a --state-dir on another disk"
        raise OperatorError(f"{settings.state_dir} takes nothing: {error.strerror}; {remedy}") from error
    _log.info("agent_left")


def probe(cores: tuple[int, ...] = ()) -> dict[str, object]:
    """Devices and enforceable limits as plain data.

    Args:
        cores: cores to consider as stand-in devices; empty = all that this process may use.
    """
    groups = detect("probe")
    obstacle = find_namespace_obstacle()
    isolation = (SEALED_FILES,) if obstacle else NAMESPACE_ENFORCEMENTS
    found: dict[str, object] = {
        "gpus": [],
        "nvml": "",
        "standin_cores": sorted(os.sched_getaffinity(0) & set(cores or range(os.cpu_count() or 1))),
        "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "is_root": os.geteuid() == 0,
        "enforcements": [
            "shim_lease",
            "watchdog",
            *groups.enforcements,
            *pausing_enforcements(groups, os.environ),
            *isolation,
        ],
        "no_namespaces": obstacle,
        "mps_control": shutil.which("nvidia-cuda-mps-control") or "",
    }
    groups.remove_parents()
    try:
        inventory = NvmlInventory(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    except DeviceError as error:
        found["nvml"] = str(error)
        return found
    found["gpus"] = [asdict(gpu) for gpu in inventory.describe()]
    inventory.close()
    return found

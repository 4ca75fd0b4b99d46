"""engine: advise or place the jobs of an engine that people already run."""

from __future__ import annotations

import signal
import threading

import click

from cotenant import system_clock
from cotenant.cli.session import Session, show, tell, with_session
from cotenant.client_errors import InputError, ServiceError
from cotenant.default_policy import DEFAULT_POLICY
from cotenant.engines.bridge import Bridge
from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.slurm.adapter import SlurmEngine
from cotenant.engines.slurm.commands import InstalledCommands
from cotenant.engines.slurm.reading import DeviceRule
from cotenant.option_types import FiniteRange
from cotenant.quantities import parse_bytes


@click.group()
def engine() -> None:
    """Beside an engine that people already run: advise its jobs, or place them."""


@engine.command(
    epilog="""\b
Example:  cotenant engine slurm --advise --gpu 'gpu-a*=NVIDIA A100-SXM4-80GB:80GiB'
"""
)
@click.option("--advise/--place", "advises", default=True, show_default=True, help="Write advice, or place held jobs.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    required=True,
    metavar="NODES=DEVICE:MEMORY",
    help="What the GPUs of some nodes are; NODES may hold * and ?. Repeat it; the first that fits counts.",
)
@click.option("--policy", default=DEFAULT_POLICY, show_default=True, help="That decides.")
@click.option(
    "--interval", "interval_s", type=FiniteRange(0.1, 3600), default=5.0, show_default=True, metavar="SECONDS"
)
@click.option("--once", is_flag=True, help="One round only.")
@with_session
def slurm(
    session: Session, /, advises: bool, gpus: tuple[str, ...], policy: str, interval_s: float, *, once: bool
) -> None:
    """Advise or place the jobs of Slurm whose comment begins with the word cotenant (docs/slurm.md)."""
    devices = [_device_rule(text) for text in gpus]
    slurm_engine = SlurmEngine(InstalledCommands(), devices)
    bridge = Bridge(slurm_engine, session.scheduler().decide, policy=policy, places=not advises)
    if once:
        _show_round(bridge)
    else:
        _run_rounds(bridge, interval_s)


def _run_rounds(bridge: Bridge, interval_s: float) -> None:
    """Go on until SIGTERM; an engine or a scheduler that does not answer is asked again."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        try:
            _show_round(bridge)
        except (EngineUnreachableError, ServiceError) as error:
            tell(f"error: {error.message}; asking again in {interval_s:g} s", style="red")
        stop.wait(interval_s)


def _show_round(bridge: Bridge) -> None:
    for line in bridge.run_round(now_ms=system_clock.now_ms()).lines:
        show(line)


def _device_rule(text: str) -> DeviceRule:
    nodes, _, about = text.partition("=")
    device, _, memory = about.rpartition(":")
    if not (nodes and device and memory):
        raise InputError(f"--gpu {text!r} is not NODES=DEVICE:MEMORY", remedy="write it like 'gpu*=NVIDIA A10:24GiB'")
    return DeviceRule(nodes=nodes, device=device, memory_bytes=parse_bytes(memory))

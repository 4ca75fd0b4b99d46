"""Command line of the agent: `run` and `probe`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cotenant.extras import missing_extra_line
from cotenant.structured_log import start_logging

try:
    from cotenant_agent.errors import AgentError, DriverMissingError
    from cotenant_agent.probe import probe
    from cotenant_agent.settings import AgentSettings, add_arguments, load_settings
    from cotenant_agent.wiring import build_agent
except ModuleNotFoundError as error:
    sys.exit(missing_extra_line("cotenant_agent", error))

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent.

    Returns:
        0; 1 when something on this machine must be changed first (the reason is on standard error).
    """
    options = _parser().parse_args(arguments)
    try:
        if options.command == "probe":
            sys.stdout.write(_render(probe(tuple(options.cores)), options.output))
            return 0
        settings = load_settings(vars(options))
        asyncio.run(_run(settings))
        if settings.ready_file:
            Path(settings.ready_file).unlink(missing_ok=True)
    except DriverMissingError as error:
        sys.stderr.write(f"cotenant agent: {error}; install the driver, or let cores stand in: --standin-cores 0,1\n")
        return 1
    except AgentError as error:
        sys.stderr.write(f"cotenant agent: {error}\n")
        return 1
    return 0


async def _run(settings: AgentSettings) -> None:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    start_logging("agent", "info", fields={"node_id": settings.node_id}, is_service=True)
    with build_agent(settings) as agent:
        _log.info("agent_started", extra={"pid": os.getpid(), "scheduler": settings.scheduler})
        await agent.run(leave)
    _log.info("agent_left")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cotenant_agent", description="The node agent of cotenant.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="offer this node's devices to a scheduler and run its jobs")
    add_arguments(run)
    look = commands.add_parser("probe", help="say which devices are here and what could be enforced")
    look.add_argument("-o", "--output", choices=("json", "text"), default="text")
    look.add_argument("--cores", type=int, action="append", default=[], help="stand-in core to look at")
    return parser


def _render(found: dict[str, object], output: str) -> str:
    if output == "json":
        return json.dumps(found, indent=2) + "\n"
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in found.items())


if __name__ == "__main__":
    sys.exit(main())

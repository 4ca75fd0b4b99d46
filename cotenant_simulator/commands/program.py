"""The command line: simulate. Data on stdout, everything else on stderr."""

from __future__ import annotations

import sys

import click

from cotenant.command_run import run_command
from cotenant_simulator.commands.simulate import simulate
from cotenant_simulator.errors import InputError, SimulatorError

_EXIT_FAILED = 1
_EXIT_USAGE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def program() -> None:
    """Simulates workloads under scheduling policies."""


program.add_command(simulate)


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        return run_command(program)
    except SimulatorError as error:
        sys.stderr.write(f"error: {error}\n")
        return _EXIT_USAGE if isinstance(error, InputError) else _EXIT_FAILED

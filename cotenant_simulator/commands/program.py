"""The command line: simulate, shadow. Data on stdout, everything else on stderr."""

from __future__ import annotations

import click

from cotenant.command_groups import ListedGroup
from cotenant.command_run import EXIT_ERROR, EXIT_USAGE, HELP, run_command
from cotenant_simulator.commands.forecast import forecast
from cotenant_simulator.commands.shadow import shadow
from cotenant_simulator.commands.simulate import simulate
from cotenant_simulator.errors import InputError, SimulatorError

_EXIT_CODES = ((InputError, EXIT_USAGE), (SimulatorError, EXIT_ERROR))


@click.group(cls=ListedGroup, context_settings=HELP)
def program() -> None:
    """Simulate workloads under scheduling policies."""


program.add_command(simulate)
program.add_command(forecast)
program.add_command(shadow)


def main() -> int:
    """Run the command line and return its exit status."""
    return run_command(program, exit_codes=_EXIT_CODES)

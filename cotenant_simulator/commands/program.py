"""The command line: simulate. Data on stdout, everything else on stderr."""

from __future__ import annotations

import sys

import click

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
        status: object = program.main(standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except SimulatorError as error:
        sys.stderr.write(f"error: {error}\n")
        return _EXIT_USAGE if isinstance(error, InputError) else _EXIT_FAILED

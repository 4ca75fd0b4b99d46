"""The command line: one group, errors as one line with the remedy, no tracebacks."""

from __future__ import annotations

import sys

import click

from cotenant.command_run import run_command
from scheduler_service.commands.decide import decide
from scheduler_service.commands.policies import policies
from scheduler_service.commands.serve import serve
from scheduler_service.commands.state import backup, export_log, restore
from scheduler_service.errors import CallerError, SchedulerServiceError

# 1 = failed, 2 = wrong use, as everywhere in cotenant.
_EXIT_FAILED = 1
_EXIT_USAGE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """The scheduler of cotenant: decides which jobs share a GPU."""


for command in (serve, backup, restore, export_log, decide, policies):
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        sys.exit(run_command(cli))
    except SchedulerServiceError as error:
        click.echo(f"error: {error.message}", err=True)
        sys.exit(_EXIT_USAGE if isinstance(error, CallerError) else _EXIT_FAILED)

"""The command line: one group, errors as one line with the remedy, no tracebacks."""

from __future__ import annotations

import click

from cotenant.client_errors import InputError
from cotenant.command_groups import ListedGroup
from cotenant.command_run import EXIT_ERROR, EXIT_USAGE, HELP, run_command
from scheduler_service.commands.audit import audit
from scheduler_service.commands.decide import decide
from scheduler_service.commands.policies import policies
from scheduler_service.commands.serve import serve
from scheduler_service.commands.state import backup, export_log, log, restore
from scheduler_service.errors import CallerError, SchedulerServiceError

_EXIT_CODES = ((CallerError, EXIT_USAGE), (InputError, EXIT_USAGE), (SchedulerServiceError, EXIT_ERROR))


@click.group(cls=ListedGroup, context_settings=HELP)
def cli() -> None:
    """Decide which jobs share a GPU: the scheduler of cotenant."""


for command in (serve, backup, restore, export_log, log, audit, decide, policies):
    cli.add_command(command)


def main() -> int:
    """Run the command line and return its exit status."""
    return run_command(cli, exit_codes=_EXIT_CODES)

"""serve: the scheduler itself, from settings to a drained end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from cotenant.structured_log import start_logging
from scheduler_service.commands.running_scheduler import RunningScheduler
from scheduler_service.errors import SettingsError
from scheduler_service.settings import ENVIRONMENT_PREFIX, Settings, load_settings

_log = logging.getLogger(__name__)
Command = TypeVar("Command", bound=Callable[..., Any])


def _settings_flags(command: Command) -> Command:
    """Give a command one flag per setting; None = not given."""
    for setting in reversed(dataclasses.fields(Settings)):
        name = f"--{setting.name.replace('_', '-')}"
        default = f"  [default: {setting.default!r}]"
        text = f"{setting.metadata['meaning'][0].upper()}{setting.metadata['meaning'][1:]}.{default}"
        kind = type(setting.default)
        declared = f"{name}/--no-{name[2:]}" if kind is bool else name
        command = click.option(declared, setting.name, type=kind, default=None, help=text)(command)
    return command


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=f"{ENVIRONMENT_PREFIX}CONFIG",
    help="TOML file with settings; flags and COTENANT_SCHEDULER_* variables come before it.",
)
@_settings_flags
def serve(config: Path | None, **flags: object) -> None:
    """Run the scheduler until SIGTERM or SIGINT."""
    settings = load_settings(flags=flags, environment=os.environ, file=config)
    start_logging("scheduler", settings.log_level, is_service=True)
    try:
        asyncio.run(run_until_signalled(settings))
    finally:
        if settings.ready_file:
            Path(settings.ready_file).unlink(missing_ok=True)


async def run_until_signalled(settings: Settings) -> None:
    """Recover, serve, and drain when told to end.

    Raises:
        SettingsError: An address or file is unusable.
        StateError: The state directory is.
    """
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    scheduler = RunningScheduler(settings)
    try:
        addresses = await scheduler.start()
        if settings.ready_file:
            write_ready_file(settings.ready_file, addresses)
        await scheduler.wait_for(ending)
    finally:
        await scheduler.stop()


def write_ready_file(ready_file: str, addresses: Mapping[str, object]) -> None:
    """Write where the scheduler serves; readers see the whole file or none.

    Raises:
        SettingsError: The path cannot be written.
    """
    path = Path(ready_file)
    arriving = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        arriving.write_text(json.dumps(addresses) + "\n")
        arriving.replace(path)
    except OSError as error:
        raise SettingsError(f"the ready file {path} cannot be written: {error.strerror}") from error

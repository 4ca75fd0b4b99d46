"""serve: the scheduler itself, from settings to a drained end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from cotenant.structured_log import start_logging
from cotenant.tls_settings import check_listening
from scheduler_service.commands.running_scheduler import RunningScheduler
from scheduler_service.errors import SettingsError
from scheduler_service.settings import SETTINGS, Settings

# A thread that encodes a snapshot or explains a job gives way to the event loop after this: each of the few turns that
# a request takes would wait five times as long with Python's own 5 ms.
_SWITCH_INTERVAL_S = 0.001
ALLOCATIONS_PER_COLLECTION = 50_000
"""Messages to watchers outlive Python's own 700 allocations, and were taken for long-lived objects: thousands of
records were searched for cycles, 50 to 110 ms each time, every few seconds."""


@click.command()
@SETTINGS.options()
def serve(settings: Settings) -> None:
    """Run the scheduler until SIGTERM or SIGINT."""
    check_listening(settings)
    start_logging("scheduler", settings.log_level, is_service=True)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    try:
        asyncio.run(run_until_signalled(settings))
    finally:
        if settings.ready_file:
            Path(settings.ready_file).unlink(missing_ok=True)


async def run_until_signalled(settings: Settings) -> None:
    """Recover, serve, and drain when asked to end.

    Raises:
        InputError: An address or file is unusable.
        StateError: The state directory is.
    """
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    scheduler = RunningScheduler(settings)
    with scheduler.policy_watch.running():
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

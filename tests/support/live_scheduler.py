"""The whole scheduler inside the test's process, on loopback, with nothing that it could start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scheduler_service.commands.running_scheduler import RunningScheduler
from scheduler_service.settings import Settings


@contextmanager
def running_scheduler(state_dir: Path, **settings: Any) -> Iterator[str]:
    """Serves until the block ends and yields the address."""
    chosen = Settings(
        **{"address": "127.0.0.1:0", "metrics_address": "", "predictor": "", "state_dir": str(state_dir)} | settings
    )
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()
    address: list[str] = []
    begun = threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        scheduler = RunningScheduler(chosen)
        try:
            address.append(str((await scheduler.start())["address"]))
            begun.set()
            await scheduler.wait_for(ending)
        except BaseException as error:
            failures.append(error)
        finally:
            begun.set()
            await scheduler.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    begun.wait(timeout=60)
    try:
        if failures:
            raise failures[0]
        yield address[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(timeout=90)
        loop.close()
    assert not failures, failures

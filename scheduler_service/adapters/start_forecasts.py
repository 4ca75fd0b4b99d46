"""When waiting jobs start: asked of the simulator, a process of its own that reads a file and prints JSON.

At most one process runs for the queue as it is, and a few for what would be if. Each has a bound of CPU and of time,
and runs at low priority. The file holds no commands and no environments, and is gone when the answer is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.errors import CotenantError
from cotenant.programs import command_line
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event, PolicyChosen
from scheduler_service.core.queue_events import (
    JobAltered,
    JobHeld,
    JobReleased,
    NodeCordoned,
    NodeUncordoned,
    TenantsChosen,
)
from scheduler_service.errors import OverloadedError

_log = logging.getLogger(__name__)

FRESH_MS = 15_000
"""A forecast younger than this answers as it is."""
LIVING_JOBS_MAX = 5_000
CPU_S_MAX = 20
TIMEOUT_S = 60.0
QUESTIONS_MAX = 2
"""What-if questions at a time."""
RUNS_MIN = 9
_ANSWER_BYTES_MAX = 16 << 20
_ENDED = ("finished", "failed", "cancelled")
_ORDERS = (JobHeld, JobReleased, JobAltered, NodeCordoned, NodeUncordoned, TenantsChosen, PolicyChosen)
_SIMULATIONS_MAX = 2
"""That one caller waits for: the one that runs may have begun before an order."""


class ForecastError(Exception):
    """Nothing can be expected; the message says why, to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWait:
    """How long one job waits from `Forecast.as_of_ms` on.

    Attributes:
        position: Among the waiting jobs by expected start, from 1.
        wait_ms: With the expected lengths; None = not known, with the two ends of the interval.
        depends_on: Jobs of unknown length that may have to end before.
        held_by: Why it did not start in the simulation, in words; empty = it did.
    """

    position: int
    wait_ms: int | None = None
    wait_lower_ms: int | None = None
    wait_upper_ms: int | None = None
    depends_on: tuple[str, ...] = ()
    held_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one process has found.

    Attributes:
        as_of_ms: The instant of the state.
        confidence: Nominal coverage of the intervals.
        runs: Behind each of them; below `RUNS_MIN` there are none.
        waits: By job id.
        orders: People had given so many that change who waits for what (`StartForecasts.event_handled`).
    """

    as_of_ms: int
    confidence: float
    runs: int
    waits: Mapping[str, ExpectedWait]
    orders: int = 0


@dataclass(slots=True, kw_only=True)
class StartForecasts:
    """Asks, and keeps the newest answer about the queue as it is.

    Attributes:
        folder: Where questions lie for a moment; private.
        freeze: Returns what returns the engine's snapshot of this instant, in any thread.
        now_ms: The scheduler's clock.
        living_jobs: How many jobs have not ended.
        report_interval_ms: Between two reports of a node.
    """

    folder: Path
    freeze: Callable[[], Callable[[], Mapping[str, Any]]]
    now_ms: Callable[[], int]
    living_jobs: Callable[[], int]
    report_interval_ms: int
    _newest: Forecast | None = None
    _running: asyncio.Task[Forecast] | None = None
    _questions: int = 0
    _orders: int = 0

    def __post_init__(self) -> None:
        """Remove what a killed process has left."""
        for path in self.folder.glob("*.json"):
            path.unlink(missing_ok=True)

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Note an order of people after which an earlier forecast may contradict the reason of a job."""
        self._orders += isinstance(event, _ORDERS)

    def batch_handled(self) -> None:
        """Nothing follows from the end of a batch."""

    async def of_queue(self, job_id: str, *, patience_s: float) -> Forecast:
        """Return when the waiting jobs start: the newest forecast if it is fresh or no newer one comes in time.

        Args:
            job_id: A forecast that lacks this job is not fresh.
            patience_s: How long the caller waits.

        Raises:
            ForecastError: There is none yet.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for _ in range(_SIMULATIONS_MAX):
                    if (fresh := self._fresh(job_id)) is not None:
                        return fresh
                    found = await asyncio.shield(self._simulated())
                    if self._is_about(found, job_id):  # even if it took longer than it stays fresh
                        return found
        if self._newest is None:
            raise ForecastError("it is being simulated; ask again in some seconds")
        return self._newest

    def _fresh(self, job_id: str) -> Forecast | None:
        newest = self._newest
        if newest is None or self.now_ms() - newest.as_of_ms > FRESH_MS:
            return None
        return newest if self._is_about(newest, job_id) else None

    def _is_about(self, forecast: Forecast, job_id: str) -> bool:
        return forecast.orders == self._orders and job_id in forecast.waits

    def _simulated(self) -> asyncio.Task[Forecast]:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._ask({}))
            self._running.add_done_callback(self._keep)
        return self._running

    async def with_changes(self, changes: Mapping[str, object], *, patience_s: float) -> Forecast:
        """Return when the waiting jobs would start.

        Raises:
            ForecastError: It was not found in time, or cannot be simulated.
            OverloadedError: Too many such questions are being answered.
        """
        if self._questions >= QUESTIONS_MAX:
            raise OverloadedError(f"{QUESTIONS_MAX} what-if questions are being simulated; ask again in a moment")
        self._questions += 1
        try:
            return await asyncio.wait_for(self._ask(changes), patience_s)
        except TimeoutError:
            raise ForecastError(f"it was not simulated within {patience_s:.0f} s") from None
        finally:
            self._questions -= 1

    async def close(self) -> None:
        """End what is under way."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _keep(self, done: asyncio.Task[Forecast]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._newest = done.result()
        elif not isinstance(error, ForecastError):
            _log.error("forecast_failed", extra={"finding": f"{type(error).__name__}: {error}"})

    async def _ask(self, changes: Mapping[str, object]) -> Forecast:
        if self.living_jobs() > LIVING_JOBS_MAX:
            raise ForecastError(f"more than {LIVING_JOBS_MAX} jobs are too many to simulate")
        encode, as_of_ms, orders = self.freeze(), self.now_ms(), self._orders
        path = await asyncio.to_thread(self._write, encode, as_of_ms, changes)
        try:
            content = await self._run(path)
        finally:
            path.unlink(missing_ok=True)
        return _read(content, as_of_ms, orders)

    def _write(self, encode: Callable[[], Mapping[str, Any]], as_of_ms: int, changes: Mapping[str, object]) -> Path:
        question = {
            "engine": _without_secrets(encode()),
            "now_ms": as_of_ms,
            "report_interval_ms": self.report_interval_ms,
            "changes": changes,
        }
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(suffix=".json", dir=self.folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(question, file)
        except OSError as error:
            raise ForecastError(f"{self.folder} cannot be written: {error.strerror}") from error
        return Path(name)

    async def _run(self, path: Path) -> bytes:
        try:
            command = command_line("forecast", [str(path), "--cpu-s", str(CPU_S_MAX)])
        except CotenantError as error:
            raise ForecastError(str(error)) from error
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_ANSWER_BYTES_MAX,
        )
        try:
            content, complaint = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            raise ForecastError(f"the simulation did not end within {TIMEOUT_S:.0f} s") from None
        finally:
            await _end(process)
        if process.returncode != 0:
            lines = complaint.decode("utf-8", "replace").strip().splitlines()
            complaint_line = (lines or [f"the simulation ended with {process.returncode}"])[-1]
            raise ForecastError(complaint_line.removeprefix("error: ")[:300])
        return content


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _without_secrets(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out ended jobs, and of the others what only agents need: commands and environments."""
    state = dict(engine["state"])
    state["jobs"] = [{**job, "launch": {}, "history": []} for job in state["jobs"] if job["phase"] not in _ENDED]
    return {**engine, "state": state}


def _read(content: bytes, as_of_ms: int, orders: int) -> Forecast:
    try:
        found = json.loads(content)
        waits = {job_id: _wait(fields) for job_id, fields in found["jobs"].items()}
        confidence, runs = float(found["confidence"]), int(found["runs"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ForecastError(f"the simulation printed no forecast: {error!r}"[:300]) from error
    return Forecast(as_of_ms=as_of_ms, confidence=confidence, runs=runs, waits=waits, orders=orders)


def _wait(fields: Mapping[str, Any]) -> ExpectedWait:
    times = {name: int(fields[name]) for name in ("wait_ms", "wait_lower_ms", "wait_upper_ms")}
    known = {name: value for name, value in times.items() if times["wait_ms"] >= 0}
    depends_on = tuple(map(str, fields["depends_on"]))
    return ExpectedWait(
        position=int(fields["position"]), depends_on=depends_on, held_by=str(fields.get("held_by", "")), **known
    )

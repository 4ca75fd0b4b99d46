"""An event loop whose time jumps from timer to timer, and the processes that its callbacks belong to.

Every callback carries the process in whose name it runs: those of a dead process are dropped, as after kill -9, and
those of a frozen one wait. Nothing reads a real clock, starts a thread or waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tests.simulation.swarm.machine import Machine

PROCESS: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("PROCESS", default=None)
SIGNAL, FAULT, SLEEP, STANDSTILL = "signal", "fault", "sleep", "standstill"
"""Why a process stands still: a SIGSTOP of its keeper, a fault of its own, a machine that sleeps, one that is held."""
_CALLBACKS_MAX = 3_000_000
_CLEANING_TURNS = 20


class KilledError(BaseException):
    """The process died in the middle of a step; no handler for errors of the program sees it."""


class StuckError(AssertionError):
    """Nothing is left to do, or the run goes on for ever."""


class SimulatedProcess:
    """One process: alive, frozen or dead.

    Attributes:
        thawed_s: When it last went on after a freeze; negative = never.
        writes_left: Durable writes until it is killed in the middle of one; negative = it is not.
    """

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.loop = machine.loop
        self.is_dead = False
        self._stops = set(machine.stops)
        self.thawed_s = -1.0
        self.writes_left = -1
        self.at_death: list[Callable[[], object]] = []
        self._kept: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.loop.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in the name of this process."""
        return self.loop.create_task(work, context=self.context)

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Call something in the name of this process, unless it is dead by then."""
        self.loop.call_later(max(0.0, delay_s), action, context=self.context)

    def keep(self, handle: asyncio.Handle) -> None:
        """Let a callback wait: of a frozen process until it goes on, of a dead one until the run is cleaned up."""
        self._kept.append(handle)

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still, for whatever reason."""
        return bool(self._stops)

    def freeze(self, why: str) -> None:
        """Let it stand still for this reason, among others."""
        self._stops.add(why)

    def thaw(self, why: str) -> None:
        """Let it go on, unless there is another reason."""
        if why not in self._stops:
            return
        self._stops.discard(why)
        if not (self.is_dead or self._stops):
            self.thawed_s = self.loop.time()
            self.release()

    def release(self) -> None:
        """Let callbacks run that had to wait."""
        self.loop.put_back(self._kept)
        self._kept = []

    def kill(self) -> None:
        """SIGKILL: no handler, no cleaning up."""
        if self.is_dead:
            return
        self.is_dead = True
        for action in self.at_death:
            action()

    def count_write(self) -> None:
        """Die here where this is the write that is not survived; raises KilledError."""
        if self.is_dead:
            raise KilledError
        if self.writes_left > 0:
            self.writes_left -= 1
        elif self.writes_left == 0:
            self.die_here()

    def die_here(self) -> NoReturn:
        """End in the middle of a step."""
        self.kill()
        raise KilledError


def current() -> SimulatedProcess:
    """The process in whose name the present callback runs."""
    process = PROCESS.get()
    assert process is not None, "a product's code runs in no process"
    return process


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of their times; equal seeds give equal orders.

    Attributes:
        is_ending: The run is over: what is left of every process is cleaned up.
        run_storage: Carries out what a program gives to its storage thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._count = 0
        self.is_ending = False
        self.processes: list[SimulatedProcess] = []
        self.run_storage: Callable[[asyncio.Future[Any], Callable[[], Any]], None] | None = None

    def time(self) -> float:
        """Seconds since the beginning of the run."""
        return self._now_s

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """Call without the looks at threads and debugging, which cost a tenth of a run."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Call at an instant, likewise."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Call some seconds later."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while not ready:
            if not scheduled:
                raise StuckError("nothing is left to do")
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if handle._cancelled:
                continue
            self._now_s = max(self._now_s, handle._when)
            ready.append(handle)
        self._count += len(ready)
        if self._count > _CALLBACKS_MAX and not self.is_ending:
            raise StuckError("the run does not end")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is None or self.is_ending or not (process.is_dead or process.is_frozen):
                handle._run()
            else:
                process.keep(handle)

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Let callbacks run that had to wait."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads are instants: of the storage as its disk takes them, others at once."""
        future: asyncio.Future[Any] = self.create_future()
        work = (lambda: func(*args)) if args else func
        if executor is not None and self.run_storage is not None:
            self.run_storage(future, work)
        else:
            settle(future, work)
        return future

    def clean_up(self) -> None:
        """Let every task of the living and the dead end, so that nothing is left for the garbage collector."""
        self.is_ending = True
        for process in self.processes:
            process.release()
        for _ in range(_CLEANING_TURNS):
            living = asyncio.all_tasks(self)
            if not living:
                break
            for task in living:
                task.cancel()
            self.call_soon(self.stop)
            self.run_forever()
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""


def settle(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    """Do the work and let its waiter have what came out."""
    try:
        result = work()
    except Exception as error:
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)

"""The last core of this machine as a device: what every machine has, so that everything can be tried everywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from cotenant_profiler import isolation
from cotenant_profiler.errors import ProfilerError
from cotenant_profiler.measured_device import DeviceWindow, EndOfWatch, WorkerPlace


class StandinDevice:
    """A core, the last one that this process may use; while it is open, this process keeps to the others.

    Args:
        core: Another core, which may then be the only one; None = the last one.
    """

    def __init__(self, core: int | None = None) -> None:
        self._usable = os.sched_getaffinity(0)
        if core is None and len(self._usable) < 2:
            raise ProfilerError(
                "the stand-in device needs a core of its own and the profiler another one; there is only one"
            )
        if core is not None and core not in self._usable:
            raise ProfilerError(f"this process may not run on core {core}, only on {sorted(self._usable)}")
        self.core = max(self._usable) if core is None else core

    @property
    def driver(self) -> str:
        """See `MeasuredDevice.driver`."""
        return "none"

    @property
    def place(self) -> WorkerPlace:
        """See `MeasuredDevice.place`."""
        return WorkerPlace(arguments=("--core", str(self.core)))

    def watch(self, pids: Sequence[int]) -> EndOfWatch:
        """See `MeasuredDevice.watch`; utilization is known to the processes themselves."""
        before = isolation.read_core(self.core, pids)

        def end() -> DeviceWindow:
            after = isolation.read_core(self.core, pids)
            return DeviceWindow(
                foreign_ratio=isolation.foreign_ratio(before, after),
                elsewhere_ratio=isolation.elsewhere_ratio(before, after),
            )

        return end

    def memory_bytes(self, pid: int) -> int | None:
        """See `MeasuredDevice.memory_bytes`."""
        return None

    def __enter__(self) -> Self:
        os.sched_setaffinity(0, self._usable - {self.core} or self._usable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.sched_setaffinity(0, self._usable)

"""Lets a whole job stand still and go on, as its keeper does it; like the shim it needs the standard library only.

The kernel's freezer holds everything in the job's control group, whatever it does and however fast it starts others.
What is outside of that group, or everything where there is none, gets SIGSTOP. A pause ends with its order, at its
deadline, and before anything is asked of the job; the deadline is kept here, since the keeper outlives the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from cotenant_agent.keeper.freezer import Freezer
from cotenant_agent.keeper.job_processes import JobProcesses

PAUSED_MS_MAX = 60_000
"""No pause lasts longer, whatever its order says."""
_SETTLE_MS_MAX = 5_000
"""A process that does not stand still by then waits for its driver or its disk; the pause is given up."""
_LOOK_INTERVAL_MS = 1_000


class JobPauser:
    """One job and its pauses.

    Args:
        processes: The job's.
        freeze_file: Of the job's control group; empty = it has none that freezes.
        remember: Keeps the record of the pauses for the agent; raises OSError where the disk does not take it.
    """

    def __init__(
        self, processes: JobProcesses, freeze_file: str, remember: Callable[[dict[str, object]], None]
    ) -> None:
        self._processes = processes
        self._freezer = Freezer(freeze_file)
        self._remember = remember
        self._began_ms = 0
        self._is_confirmed = False
        self._is_saved = True
        self._is_thawed = True
        self._given_up_until_ms = 0
        self._look_at_ms = 0
        self._paused_ms = 0
        self._changes = 0
        self._failure = ""

    def look(self, order: Mapping[str, object] | None, now_ms: int) -> None:
        """Do what the order says at this instant; called several times a second.

        Args:
            order: `until_boot_ms`, when the pause ends; None = the job runs.
            now_ms: Milliseconds since boot.
        """
        until_ms = order.get("until_boot_ms") if order is not None else None
        until_ms = until_ms if isinstance(until_ms, int) else 0
        if self._began_ms and now_ms >= min(until_ms, self._began_ms + PAUSED_MS_MAX):
            self._end(now_ms)
        elif self._began_ms:
            self._go_on_pausing(until_ms, now_ms)
        elif now_ms < until_ms and until_ms != self._given_up_until_ms:
            self._began_ms, self._is_confirmed, self._is_thawed, self._failure = now_ms, False, False, ""
            self._go_on_pausing(until_ms, now_ms)
        elif not (self._is_saved and self._is_thawed):
            self._let_go()
            self._save()

    def note_standstill(self) -> None:
        """Tell the agent that the job stood still by no order: what it measures of it meanwhile says nothing."""
        self._changes += 1
        self._save()

    def _go_on_pausing(self, until_ms: int, now_ms: int) -> None:
        if self._is_confirmed and now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + _LOOK_INTERVAL_MS
        is_still = self._hold()
        if self._is_confirmed:
            return
        if is_still:
            self._is_confirmed = True
            self._changes += 1
            if self._save():
                return
            # The agent would not know of it.
            self._failure = "the disk of the state directory takes no record of the pause"
        elif now_ms - self._began_ms < _SETTLE_MS_MAX:
            return
        else:
            self._failure = f"its processes did not all stand still within {_SETTLE_MS_MAX // 1000} s"
        self._given_up_until_ms = until_ms
        self._end(now_ms)

    def _end(self, now_ms: int) -> None:
        self._let_go()
        if self._is_confirmed:
            self._paused_ms += now_ms - self._began_ms
            self._changes += 1
        self._began_ms, self._is_confirmed = 0, False
        self._save()

    def _hold(self) -> bool:
        """Hold whatever still runs; whether the whole job stands still."""
        if not self._freezer.freeze():
            return self._processes.hold(())
        return self._processes.hold((self._freezer.members_file,)) and self._freezer.is_frozen()

    def _let_go(self) -> None:
        """Let everything go on; tried again until the kernel takes it."""
        self._is_thawed = self._freezer.thaw()
        self._processes.let_go()

    def _save(self) -> bool:
        """Leave the record for the agent; whether the disk took it."""
        self._is_saved = False
        with contextlib.suppress(OSError):
            self._remember(
                {
                    "since_boot_ms": self._began_ms if self._is_confirmed else 0,
                    "paused_ms": self._paused_ms,
                    "changes": self._changes,
                    "failure": self._failure,
                    "failed_until_boot_ms": self._given_up_until_ms,
                }
            )
            self._is_saved = True
        return self._is_saved

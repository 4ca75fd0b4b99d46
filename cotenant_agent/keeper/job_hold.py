"""Holds a whole job without asking it, for its keeper, through what is this job's alone; standard library only.

That is its own control group, which the kernel freezes, or else the process groups that its keeper has started. A
process that left these (setsid) is reached by neither without a control group: such a job cannot be held.
"""

from __future__ import annotations

import contextlib
import os
import signal

from cotenant_agent.keeper.freezer import Freezer
from cotenant_agent.keeper.job_processes import JobProcesses, start_ticks

_LOOK_INTERVAL_MS = 1_000


class JobGroups:
    """The process groups that a keeper has started for its job: it signals no other, whatever it is asked for."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """Name the leader of a group, which was forked for the job and still runs; raises OSError when it is gone."""
        self._leaders[pid] = start_ticks(pid)

    def signal_all(self, number: int) -> frozenset[int]:
        """Signal every group that is still the one that was started; the numbers of these."""
        return frozenset(group for group in self._leaders if self.signal(group, number))

    def signal(self, group: int, number: int) -> bool:
        """Signal one group; False, and no signal, where it is not certainly one of the job's."""
        if not self._is_own(group):
            return False
        with contextlib.suppress(OSError):
            os.killpg(group, number)
            return True
        return False

    def _is_own(self, group: int) -> bool:
        """Whether it was started here, and its leader, also as a zombie, still keeps its number from others."""
        # 0 is the keeper's own group, and 1 would be everybody's: killpg(1) is kill(-1).
        if group <= 1 or group not in self._leaders:
            return False
        with contextlib.suppress(OSError, IndexError):
            is_leader = os.getpgid(group) == group != os.getpgrp()
            return is_leader and start_ticks(group) == self._leaders[group]
        return False


class JobHold:
    """One job, held and released.

    Args:
        processes: The job's.
        freeze_file: Of the job's own control group; empty = it has none that freezes.
    """

    def __init__(self, processes: JobProcesses, freeze_file: str) -> None:
        self._processes = processes
        self._freezer = Freezer(freeze_file)
        self.groups = JobGroups()
        self._are_groups_stopped = False
        self._look_at_ms = 0
        self._is_whole = False

    def hold(self, now_ms: int) -> bool:
        """Hold the job, again as often as it is called: others may let it go; whether that reaches all of it."""
        members, stopped = "", frozenset[int]()
        if self._freezer.freeze():
            members = self._freezer.members_file
        else:
            self._are_groups_stopped = True
            stopped = self.groups.signal_all(signal.SIGSTOP)
        if now_ms >= self._look_at_ms:
            # A look goes through all processes of the machine.
            self._look_at_ms = now_ms + _LOOK_INTERVAL_MS
            self._is_whole = self._processes.are_within(members, stopped)
        return self._is_whole

    def release(self) -> bool:
        """Let all of it go on; whether the kernel took it."""
        self._look_at_ms = 0
        if self._are_groups_stopped:
            self._are_groups_stopped = False
            self.groups.signal_all(signal.SIGCONT)
        return self._freezer.thaw()

    def let_die(self) -> None:
        """Let what is killed end: the freezer of version 1 keeps that too, so none of its members may go on alive."""
        if self._freezer.keeps_killed:
            self._processes.kill_members(self._freezer.members_file)
            self._freezer.thaw()

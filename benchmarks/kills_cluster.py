"""A scheduler and two agents as real processes that may be killed, frozen, wiped, cloned and restored."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cotenant.v1 import scheduling_pb2
from tests.support.agent import AgentProcess, end_jobs, find_processes, prepare_baseline
from tests.support.scheduler_process import SchedulerClient, SchedulerProcess

LEASE_MS = 2_000
GRACE_MS = 2_000
HEARTBEAT_MS = 300
_CONFIRMED_WITHIN_S = 60.0


class KilledNode:
    """A node with one stand-in device; its agent and its state directory may be replaced."""

    def __init__(self, folder: Path, index: int, scheduler: SchedulerProcess) -> None:
        self._folder = folder
        self._index = index
        self._scheduler = scheduler
        self._folders = 1
        self.state = folder / f"n{index}"
        prepare_baseline(self.state)
        self.agent = self._start(self.state)

    def _start(self, state: Path) -> AgentProcess:
        names = ("--node-id", f"n{self._index}", "--checkpoint-dir", str(self._folder / "checkpoints"))
        rules = ("--allow-directory", str(self._folder), "--allow-any-command", "--no-calibrate")
        return AgentProcess(state, self._scheduler, *names, *rules, devices=("--standin-cores", str(self._index)))

    def shims(self) -> Sequence[int]:
        """Processes that keep attempts of the present folder."""
        return find_processes(f"{self.state}/jobs/")

    def restart(self) -> None:
        """Kill -9 of the agent, and a new one."""
        self.agent.kill()
        self.agent = self._start(self.state)

    def wipe(self) -> None:
        """Kill -9 of the agent, and a new one on an empty folder; what was started from the old one runs on."""
        self.agent.kill()
        self.state.rename(self._next_folder())
        prepare_baseline(self.state)
        self.agent = self._start(self.state)

    def clone(self, *, is_replaced: bool, lives_s: float) -> None:
        """Start a second agent on a copy of the folder, and kill it later.

        Args:
            is_replaced: The first one is killed before, and started again while the second lives.
            lives_s: How long the second one lives.
        """
        copy = self._next_folder()
        # Sockets are not copied, and files come and go.
        with contextlib.suppress(shutil.Error):
            shutil.copytree(self.state, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        if is_replaced:
            self.agent.kill()
        second = self._start(copy)
        time.sleep(lives_s * 0.7)
        if is_replaced:
            self.agent = self._start(self.state)
        time.sleep(lives_s * 0.3)
        second.kill()

    def _next_folder(self) -> Path:
        self._folders += 1
        return self._folder / f"n{self._index}-{self._folders}"


class KilledCluster:
    """All processes of one run, below one folder.

    Attributes:
        work: Where jobs may work.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._backups = 0
        self.work = folder / "work"
        self.work.mkdir()
        times = ("--lease-ms", str(LEASE_MS), "--grace-ms", str(GRACE_MS), "--heartbeat-ms", str(HEARTBEAT_MS))
        arguments = ("--predictor", "", "--policy", "fifo", "--progress-interval-ms", "200", *times)
        self.scheduler = SchedulerProcess(folder, arguments=arguments)
        self.nodes: Sequence[KilledNode] = ()

    def __enter__(self) -> Self:
        self.scheduler.__enter__()
        self._client = SchedulerClient(self.scheduler.address)
        self.nodes = [KilledNode(self._folder, index, self.scheduler) for index in range(2)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, error, trace)
        self.scheduler.kill()
        end_jobs(self._folder)

    @property
    def scheduler_pid(self) -> int:
        """The scheduler's process."""
        assert self.scheduler.process is not None
        return self.scheduler.process.pid

    def jobs(self, *, timeout_s: float) -> Sequence[scheduling_pb2.Job]:
        """Every job; raises RpcError where the scheduler does not answer in time."""
        request = scheduling_pb2.ListJobsRequest(page_size=1000)
        return list(self._client.stub.ListJobs(request, timeout=timeout_s, wait_for_ready=True).jobs)

    def submit(self, spec: scheduling_pb2.JobSpec, *, request_id: str, timeout_s: float) -> scheduling_pb2.Job:
        """Submit a job once, however often it is asked for; raises RpcError where there is no answer in time."""
        request = scheduling_pb2.SubmitJobRequest(request_id=request_id, spec=spec)
        return self._client.stub.SubmitJob(request, timeout=timeout_s, wait_for_ready=True).job

    def restore(self, pause_s: float) -> None:
        """Back up under load, kill the scheduler some time later, restore, start and confirm."""
        self._backups += 1
        backup = str(self._folder / f"backup-{self._backups}")
        self._command("backup", backup)
        time.sleep(pause_s)
        self.scheduler.kill()
        self._command("restore", backup, "--force")
        self.scheduler.start()
        self._confirm()

    def _command(self, verb: str, folder: str, *flags: str) -> None:
        program = [sys.executable, "-m", "scheduler_service", verb, folder]
        subprocess.run(
            [*program, "--state-dir", str(self.scheduler.state_dir), *flags], check=True, capture_output=True
        )

    def _confirm(self) -> None:
        request = scheduling_pb2.ConfirmRestoreRequest()
        self._client.stub.ConfirmRestore(request, timeout=_CONFIRMED_WITHIN_S, wait_for_ready=True)

    def keep_logs(self, target: Path) -> None:
        """Copy what the programs and the jobs wrote, for a look at what was found."""
        target.mkdir(exist_ok=True)
        for path in (*self._folder.glob("*.stderr"), *self._folder.glob("*.log"), *self.work.glob("*.steps")):
            shutil.copy(path, target)

"""A gang of forked ranks over gloo that is stopped and resumed in any number of ranks, without an agent."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from cotenant import job
from cotenant_agent.checkpointing.checkpoints import newest_resumable
from cotenant_agent.ranks.rendezvous_ports import choose_port

Training = Callable[[list[str]], None]


class GangAttempts:
    """A job whose attempts have any number of ranks; each is stopped at a step, as by SIGTERM in the midst of it.

    Args:
        folder: Where checkpoints, the log of rank 0 and errors go; it is made.
        main: The training's; the parent must have no other thread, since the ranks are forks.
        flags: Its command line but for `--steps`.
        steps: Of the whole job.
    """

    def __init__(self, folder: Path, main: Training, flags: list[str], steps: int) -> None:
        folder.mkdir()
        # The first step of an optimizer imports for more than a second, in every fork unless it was done here.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
        self._folder, self._main, self._flags, self._steps = folder, main, flags, steps
        self._fence = 0

    def train(self, ranks: int, until: int, servers: int = 0) -> None:
        """One attempt, perhaps with parameter servers; it ends with a checkpoint unless it has come to its end."""
        self._fence += 1
        earlier = [self._folder / "job-1" / str(fence) for fence in range(self._fence - 1, 0, -1)]
        resume = newest_resumable(earlier)
        common = {
            "COTENANT_JOB_ID": "job-1", "COTENANT_FENCE": str(self._fence), "WORLD_SIZE": str(ranks + servers),
            "COTENANT_CHECKPOINT_DIR": str(self._folder / "job-1" / str(self._fence)),
            "COTENANT_RESUME": "" if resume is None else str(resume.directory),
            "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_PORT": str(choose_port(f"{self._folder}{self._fence}", ())),
        }  # fmt: skip
        if servers:
            common["COTENANT_SERVERS"] = str(servers)
        roles = ["worker"] * ranks + ["server"] * servers
        pids = [
            self._fork({**common, "RANK": str(rank), "COTENANT_ROLE": role}, until) for rank, role in enumerate(roles)
        ]
        codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
        if codes != {0 if until == self._steps else job.EXIT_CHECKPOINTED}:
            raise AssertionError(f"exit codes {codes}: {(self._folder / 'errors').read_text()}")

    def losses(self) -> list[float]:
        """Of every step, over all attempts."""
        lines = [line for line in (self._folder / "log").read_text().splitlines() if line.startswith("step ")]
        if [int(line.split()[1].partition("/")[0]) for line in lines] != list(range(1, self._steps + 1)):
            raise AssertionError("a step is missing, or was done twice")
        return [float(re.split("loss ", line)[1]) for line in lines]

    def _fork(self, environment: dict[str, str], until: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            os.environ.update(environment)
            _stop_at(until, self._steps)
            with (self._folder / "log").open("a") as log, redirect_stdout(log):
                self._main([*self._flags, "--steps", str(self._steps)])
                log.flush()
            os._exit(0)
        except BaseException as error:
            (self._folder / "errors").write_text(repr(error))
        os._exit(1)


def _stop_at(step: int, steps: int) -> None:
    """Let only one rank, the last one, hear of the stop: the others learn of it from the all-reduce."""
    reported: Callable[..., None] = job.report

    def report(done: int, **values: Any) -> None:
        reported(done, **values)
        if done == step != steps and job.rank() == job.world_size() - 1:
            job.should_stop()
            os.kill(os.getpid(), signal.SIGTERM)

    job.report = report  # type: ignore[assignment]

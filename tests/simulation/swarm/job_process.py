"""The jobs' side: training processes that count steps, write checkpoints with the real helper, and obey or do not."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant import job as job_helper
from cotenant_agent.progress_reading.progress import ProgressReport
from tests.simulation.swarm.machine import Machine, MachineProcess, check_room, read_record, stamp
from tests.simulation.swarm.rank_group import group_of
from tests.simulation.swarm.virtual_time import PROCESS

if TYPE_CHECKING:
    from tests.simulation.swarm.shim_process import ShimProcess

ADVANCE_S = 2.0
"""Simulated jobs move in leaps, to save callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job is like.

    Attributes:
        token: Names the job for ever, whatever ids clusters give it.
        steps_per_leap: Steps done in `ADVANCE_S` seconds.
        checkpoint_leaps: Leaps between two checkpoints; 0 = it writes none.
        stop_s: How long it takes to write a checkpoint and leave; negative = it ignores SIGTERM.
        is_exclusive: It may share no GPU.
        is_sharded: Each rank writes a file of its own, instead of rank 0 one for all.
    """

    token: str
    steps_total: int
    steps_per_leap: int
    checkpoint_leaps: int
    stop_s: float
    is_exclusive: bool
    is_sharded: bool

    @classmethod
    def drawn(cls, token: str, generator: random.Random, forms: random.Random) -> JobPlan:
        """Every kind of job, more or less often; the forms of checkpoints are drawn apart."""
        steps_per_leap = generator.choice((1, 5, 20))
        return cls(
            token=token,
            steps_total=generator.randrange(1, 8) * steps_per_leap + generator.randrange(steps_per_leap),
            steps_per_leap=steps_per_leap,
            checkpoint_leaps=generator.choice((0, 1, 2)),
            stop_s=generator.choice((0.1, 0.1, 2.0, -1.0)),
            is_exclusive=generator.random() < 0.5,
            is_sharded=forms.random() < 0.5,
        )


class JobProcess(MachineProcess):
    """One process of a job: all of it, or a rank of a gang, whose ranks step together or not at all.

    Attributes:
        environment: What the shim starts it with.
        gpu_ids: Devices that it uses.
        shim: Its keeper.
        ranks: How many its gang has on its node, or 0.
        group: All processes of its attempt.
        leaps: How many it has done.
        is_early: It waits for a word, other than the shim's, to begin; `is_prepared` when it does nothing else.
        launcher: Name of the scheduler that ordered its start, and `ordered_s` when.
        memory: What the agent that started it remembers by.
    """

    def __init__(self, machine: Machine, shim: ShimProcess, tell_parent: Callable[[int, int], None]) -> None:
        directory = shim.directory
        spec: dict[str, Any] = read_record(directory / "spec.json")
        super().__init__(f"job {directory.name}", machine)
        self._local_rank = local_rank = len(shim.jobs)
        own: dict[str, Any] = {}
        if spec["ranks"]:
            own = spec["ranks"][local_rank]
        self.shim, self.rank, self.ranks = shim, int(own.get("rank", 0)), len(spec["ranks"])
        self.environment: Mapping[str, str] = {**spec["environment"], **own.get("environment", {})}
        self.gpu_ids: tuple[str, ...] = tuple(spec["gpu_ids"])
        if self.ranks:
            self.gpu_ids = self.gpu_ids[local_rank : local_rank + 1]
        self.key = (str(spec["job_id"]), int(str(spec["attempt"])), int(str(spec["fence"])))
        self.memory = machine.world.memory_of(directory.parent.parent)
        self.launcher, self.ordered_s = machine.world.orders.get((self.memory, self.key), ("", -1.0))
        self._spec = spec
        self._join_group()
        self.plan = machine.world.plans[self.environment["SEED"]]
        self.steps_done = self.resumed_step = 0
        self.leaps = 0
        self.has_begun = False
        self.is_early: bool = spec.get("is_early") is True
        self.is_prepared = False
        self._is_leaving = self._was_overdue = False
        self.status: int = signal.SIGKILL
        self._tell_parent = tell_parent
        self.at_death.append(self._end)

    @property
    def keeper(self) -> str:
        """Name of the scheduler that renewed its lease last, or else ordered its start."""
        return self.machine.world.keepers.get((self.memory, self.key), self.launcher)

    def begin(self) -> None:
        """The shim's word has come: train, or get ready for it where it was started early."""
        if self.is_early:
            self.machine.world.waiting[self] = None
            self.later(self.machine.world.preparation_s(), self._get_ready)
        else:
            self.context.run(self._train)

    def _get_ready(self) -> None:
        if self.machine.world.strikes("job_crashes"):
            self._exit(signal.SIGKILL)
            return
        self.is_prepared = True
        self.shim.file_changed()

    def let_train(self, words: Mapping[str, Any]) -> None:
        """The word for those who were started early; whose attempt it is, and of which gang, is known by now."""
        self.environment = {**self.environment, **words["environment"]}
        self.later(0.0, self._train_at_last)

    def _train_at_last(self) -> None:
        self.launcher, self.ordered_s = self.machine.world.orders.get((self.memory, self.key), ("", -1.0))
        if self._spec.get("is_part") is True:
            self.group.members.remove(self)
            self._join_group()
            self.machine.world.gangs_prepared += self.rank == 0
        self._train()

    def _join_group(self) -> None:
        before = self.shim.jobs[: self._local_rank]
        self.group = group_of(self.machine, self._spec, self.launcher, before)
        self.group.members.append(self)

    def _train(self) -> None:
        """Go on from the checkpoint, or afresh."""
        self.machine.world.waiting.pop(self, None)
        self.has_begun = True
        self._resume()
        self.machine.world.witness.job_begun(self)
        self.later(ADVANCE_S, self._leap)

    def _resume(self) -> None:
        self.steps_done = self.resumed_step = job_helper.resume_step()
        directory = job_helper.resume_directory()
        if directory is not None:
            written = read_record(directory / self._checkpoint_name())
            self.machine.world.witness.job_resumed(self, str(written.get("token")), written.get("step"))
            is_fetched = written.get("machine") != self.machine.name and not self.machine.world.has_shared_storage
            self.machine.world.fetched += is_fetched

    def note_standstill(self) -> None:
        """It goes on after its machine was held: whether its lease and grace ended meanwhile."""
        self._was_overdue = (self.shim.lease_left_ms(with_grace=True) or 0) < 0

    def _leap(self) -> None:
        if self._is_leaving:
            return
        self.machine.world.witness.job_works(self)
        if self.thawed_s >= 0:
            self.machine.world.witness.job_goes_on(self)
            self.machine.world.outlived += self._was_overdue
            self._was_overdue = False
        if self.group.waits(self):
            self.later(ADVANCE_S, self._leap)
        elif self.ranks and self.group.is_first(self) and self.machine.world.strikes("rank_leaves"):
            self._exit(0)
        elif self.group.is_across and self.group.is_first(self) and self.machine.world.strikes_part():
            for rank in self.shim.living_jobs():
                rank._exit(0)
        else:
            self._step()

    def _step(self) -> None:
        self.steps_done = min(self.steps_done + self.plan.steps_per_leap, self.plan.steps_total)
        self.leaps += 1
        if self.rank == 0:
            self._report()
        if self.machine.world.strikes("job_crashes"):
            self._exit(self.machine.world.generator.choice((signal.SIGSEGV, signal.SIGKILL)))
        elif self.steps_done >= self.plan.steps_total:
            self._finish()
        else:
            if self._writes and self.plan.checkpoint_leaps and self.leaps % self.plan.checkpoint_leaps == 0:
                self._write_checkpoint()
            self.later(ADVANCE_S, self._leap)

    def _finish(self) -> None:
        if self.rank == 0:
            self._write_progress()
        if self.group.has_done(self.plan.steps_total):
            self.machine.world.witness.job_done(self)
        self._exit(0)

    def receive_signal(self, number: int) -> None:
        """SIGTERM as the job's program handles it, others as every process."""
        if number != signal.SIGTERM or not self.has_begun:
            super().receive_signal(number)
        elif self.plan.stop_s >= 0 and not self._is_leaving and not self.group.waits(self):
            self._is_leaving = True
            self.later(self.plan.stop_s, self._leave)

    def _leave(self) -> None:
        self.machine.world.witness.job_works(self)
        if self.plan.checkpoint_leaps and (not self._writes or self._write_checkpoint()):
            self._exit(job_helper.EXIT_CHECKPOINTED << 8)
        else:
            self._exit(signal.SIGTERM)

    def _exit(self, status: int) -> None:
        self.status = status
        self.kill()

    def _end(self) -> None:
        self.machine.world.waiting.pop(self, None)
        if self.has_begun:
            self.machine.world.witness.job_ended(self)
        self._tell_parent(self.pid, self.status)

    def _report(self) -> None:
        socket = self.machine.world.sockets.get(self.environment["COTENANT_PROGRESS"])
        if socket is not None:
            socket.put(ProgressReport(step=self.steps_done, at_ns=self.machine.boot_ns()))

    def _write_progress(self) -> None:
        path = Path(self.environment["COTENANT_PROGRESS"]).with_name(job_helper.PROGRESS_FILE_NAME)
        with contextlib.suppress(OSError):
            check_room(path)
            path.write_text(json.dumps({"step": self.steps_done, "at_ns": self.machine.boot_ns()}))

    @property
    def _writes(self) -> bool:
        return self.rank == 0 or self.plan.is_sharded

    def _checkpoint_name(self) -> str:
        """Of a sharded one the rank is part of the name: whoever resumes reads what its own predecessor wrote."""
        rank = f".rank-{self.rank}" if self.ranks and self.plan.is_sharded else ""
        return f"step-{self.steps_done}{rank}.json"

    def _write_checkpoint(self) -> bool:
        """With the product's helper; whether the disk took it."""
        path = Path(self.environment["COTENANT_CHECKPOINT_DIR"]) / self._checkpoint_name()
        try:
            check_room(path)
            path.write_text(
                json.dumps({"token": self.plan.token, "step": self.steps_done, "machine": self.machine.name})
            )
            job_helper.checkpointed(
                path, self.steps_done, duration_ms=1, is_shard=bool(self.ranks) and self.plan.is_sharded
            )
            if (manifest := path.with_name(job_helper.MANIFEST_NAME)).exists():
                stamp(manifest)
        except OSError:
            return False
        return True


class JobSystem:
    """In the place of `os` in the helper: every simulated process has an environment of its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def environ(self) -> Mapping[str, str]:
        """Of the present process."""
        process = PROCESS.get()
        return process.environment if isinstance(process, JobProcess) else {}


class SimulatedSocket:
    """In the place of the agent's progress socket: whoever opened it last hears the job."""

    def __init__(self, path: Path, is_from_job: Callable[[int], bool], owner: tuple[int, int] | None = None) -> None:
        process = PROCESS.get()
        assert process is not None
        self._reports: list[ProgressReport] = []
        process.machine.world.sockets[str(path)] = self

    def put(self, report: ProgressReport) -> None:
        """A datagram."""
        self._reports.append(report)

    def receive(self) -> list[ProgressReport]:
        """What has arrived."""
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """Nothing is open."""

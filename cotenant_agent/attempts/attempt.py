"""One attempt as the agent sees it: files on disk, processes, progress, use of memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cotenant.device_sharing import uses_mps
from cotenant_agent.attempts.exit_classes import classify, describe
from cotenant_agent.attempts.process_identities import read_identity, read_rank_identities
from cotenant_agent.checkpointing.checkpoints import Checkpoint, read_checkpoint
from cotenant_agent.devices.measurement_windows import window_doubts
from cotenant_agent.keeper.seals import Seal
from cotenant_agent.processes import Processes, ProcessIdentity
from cotenant_agent.progress_reading.job_log import open_log_progress
from cotenant_agent.progress_reading.log_reading import read_tail
from cotenant_agent.progress_reading.progress import (
    ProgressReport,
    ProgressSocket,
    ProgressTrack,
    ProgressWindow,
    parse_report,
)
from cotenant_agent.ranks.rank_times import RankTimes
from cotenant_agent.ranks.spec_records import (
    process_name,
    read_log_name,
    read_measured_job,
    read_ranks,
    read_watched_ranks,
)
from cotenant_agent.records import (
    STEPS_LIMIT,
    AttemptEnd,
    AttemptKey,
    AttemptObservation,
    AttemptPause,
    AttemptState,
    ExitFacts,
    GpuReading,
    JobUsage,
    LivingAttempt,
)
from cotenant_agent.storage.durable_files import read_file, read_integer, read_json, read_text, refresh_json
from cotenant_agent.storage.state_directory import AttemptDirectory, checkpoint_directory
from cotenant_agent.system_clock import boot_ms, steady_ns

_log = logging.getLogger(__name__)

_LOG_TAIL_BYTES = 4096
_CLASSIFIED_TAIL_BYTES = 65536
_PROGRESS_FILE_BYTES = 4096


class Attempt:
    """An attempt that lies in a directory; made again from it after a restart of the agent.

    Attributes:
        standstills: How often the agent stood still; each parts what is measured, as the begin of a pause does.
    """

    def __init__(
        self,
        directory: AttemptDirectory,
        spec: dict[str, object],
        checkpoint_root: Path,
        run: Path,
        seal: Seal | None = None,
    ) -> None:
        self.directory = directory
        self.seal = seal
        self._refused: set[str] = set()
        self.key = AttemptKey(
            job_id=read_text(spec, "job_id"),
            attempt=read_integer(spec, "attempt"),
            fence=read_integer(spec, "fence"),
            incarnation_id=read_text(spec, "incarnation_id"),
        )
        gpu_ids = spec.get("gpu_ids")
        self.gpu_ids = tuple(str(gpu_id) for gpu_id in gpu_ids) if isinstance(gpu_ids, list) else ()
        self.memory_limit_bytes = read_integer(spec, "memory_limit_bytes")
        self.memory_held_bytes = read_integer(spec, "memory_held_bytes")
        environment = spec.get("environment")
        self.environment = environment if isinstance(environment, dict) else {}
        self.living_attempt = self._as_living(spec)
        self.uid = read_integer(spec, "uid", os.geteuid())
        self.owner = (self.uid, read_integer(spec, "gid")) if spec.get("uid") is not None else None
        self.can_pause = spec.get("can_pause") is True
        self.rendezvous_port = read_integer(spec, "rendezvous_port")
        self.resumed_fence = read_integer(spec, "resumed_fence")
        self.collective_timeout_ms = read_integer(spec, "collective_timeout_ms")
        self.ranks = read_ranks(spec)
        self.stop_grace_ms = read_integer(spec, "stop_grace_ms")
        self.started_ms = read_integer(spec, "requested_wall_ms")
        self.requested_boot_ms = read_integer(spec, "requested_boot_ms")
        self.run_directory = run / directory.path.name
        self.checkpoint_directory = checkpoint_directory(
            checkpoint_root, self.key.job_id, self.key.fence, self.key.incarnation_id
        )
        self.rank_times = RankTimes(self.run_directory, read_watched_ranks(spec))
        self.socket: ProgressSocket | None = None
        self.usage = JobUsage()
        self.end: AttemptEnd | None = None
        self.announced = False
        self._resume_step = read_integer(spec, "resume_step", -1)
        observed = read_json(directory.observed)
        self.memory_peak_bytes = read_integer(observed, "memory_peak_bytes")
        self.track = ProgressTrack(max(read_integer(observed, "steps_done"), self._resume_step, 0))
        # An attempt of an older agent, which states no total, goes on as it was begun.
        self._recognises = not read_text(spec, "progress_regex") and "steps_total" in spec
        self._steps_total = read_integer(spec, "steps_total")
        self._log_progress = open_log_progress(
            spec, directory.log, (observed or {}).get("log"), are_several=bool(self.ranks)
        )
        self._written_observation = (self.track.steps_done, self.memory_peak_bytes)
        self.spec, self.standstills = spec, 0
        self._leader: ProcessIdentity | None = None
        self._shim: ProcessIdentity | None = None
        self._init: ProcessIdentity | None = None
        self._ranks: tuple[ProcessIdentity, ...] = ()

    @property
    def state(self) -> AttemptState:
        """From the files; nothing is remembered."""
        if self.end is not None or self.has_exit_record():
            return AttemptState.ENDED
        if self._is_written(self.directory.stop):
            return AttemptState.STOPPING
        if not self.directory.state.exists():
            return AttemptState.PREPARING
        return AttemptState.PAUSED if self.pause.is_paused else AttemptState.RUNNING

    @property
    def is_early(self) -> bool:
        """It was started early and has had no word to begin: it makes no step and has no device."""
        return self.spec.get("is_early") is True and not self._is_written(self.directory.go)

    def read(self, path: Path) -> dict[str, object] | None:
        """What the shim or this agent has written there; None when it is absent or has another writer."""
        record = read_json(path)
        if record is None or self.seal is None or self.seal.is_on(path.name, record):
            return record
        if path.name not in self._refused:
            self._refused.add(path.name)
            _log.error("record_refused", extra={**self.key.fields(), "file": path.name, "reason": "it has no seal"})
        return None

    def sealed(self, path: Path, record: dict[str, object]) -> dict[str, object]:
        """The record as it may be written there for the shim."""
        return record if self.seal is None else self.seal.put_on(path.name, record)

    def has_exit_record(self) -> bool:
        """Whether the end is written down, by who may."""
        return self._is_written(self.directory.exit)

    def _is_written(self, path: Path) -> bool:
        return path.exists() and (self.seal is None or self.read(path) is not None)

    @property
    def pause(self) -> AttemptPause:
        """What the shim has written down about pauses."""
        if not self.directory.paused.exists():
            return AttemptPause(changes=self.standstills)
        record, order = self.read(self.directory.paused), self.read(self.directory.pause)
        since_ms, order_ms = read_integer(record, "since_boot_ms"), read_integer(order, "until_boot_ms")
        has_failed = order_ms > 0 and order_ms == read_integer(record, "failed_until_boot_ms")
        return AttemptPause(
            is_paused=since_ms > 0,
            paused_ms=read_integer(record, "paused_ms") + (boot_ms() - since_ms if since_ms else 0),
            changes=read_integer(record, "changes") + self.standstills,
            failure=read_text(record, "failure") if has_failed else "",
        )

    @property
    def checkpoint_step(self) -> int:
        """Step of the newest accepted checkpoint that this job could go on from; -1 = none."""
        own = self._own_checkpoint()
        return max(self._resume_step, own.step if own is not None else -1)

    def _as_living(self, spec: dict[str, object]) -> LivingAttempt:
        job = read_measured_job(spec)
        return LivingAttempt(key=self.key, gpu_ids=self.gpu_ids, job=job, under_mps=self.uses_mps)

    @property
    def uses_mps(self) -> bool:
        """A server of MPS stands between it and its device."""
        return bool(self.environment.get("CUDA_VISIBLE_DEVICES")) and uses_mps(self.environment)

    @property
    def interpreter(self) -> str:
        """The program that it runs, by its path; empty where it runs as another user than this agent."""
        argv = self.spec.get("argv")
        return str(argv[0]) if self.owner is None and isinstance(argv, list) and argv else ""

    def processes(self) -> tuple[ProcessIdentity | None, ProcessIdentity | None]:
        """(shim, leader) as recorded when the job started."""
        if self._shim is None:
            record = self.read(self.directory.state)
            if record is not None:
                self._shim = read_identity(record, "shim")
                self._leader = read_identity(record, "job")
                self._init = read_identity(record, "init") if "init_pid" in record else None
                self._ranks = read_rank_identities(record) if self.ranks else ()
        return self._shim, self._leader

    def members(self, processes: Processes) -> tuple[int, ...]:
        """Pids of the job as this machine counts, the leader first; with its namespace also what left the leader."""
        leader = self.processes()[1]
        if self._init is not None:
            # The namespace's first process is no part of the job.
            return processes.tree(self._init.pid)[1:]
        if self._ranks:
            return tuple(pid for rank in self._ranks if processes.is_alive(rank) for pid in processes.tree(rank.pid))
        return () if leader is None else processes.tree(leader.pid)

    def rank_members(self, processes: Processes) -> tuple[tuple[int, ...], ...]:
        """Pids of each rank of a gang, in the order of its devices; empty where there is one process for all."""
        self.processes()
        ranks = self._ranks[: len(self.gpu_ids)]
        return tuple(processes.tree(rank.pid) if processes.is_alive(rank) else () for rank in ranks)

    def note_pauses(self) -> bool:
        """Close what is being measured where the job has begun or ceased to stand still; whether it has."""
        pause = self.pause
        if pause.changes == self.living_attempt.pause_changes:
            return False
        self.living_attempt = replace(self.living_attempt, pause_changes=pause.changes)
        self.track.interrupt(is_paused=pause.is_paused)
        return True

    def read_progress(self) -> None:
        """Take in everything that the job reported since the last call."""
        now_ns = steady_ns()
        reports = self.socket.receive() if self.socket is not None else []
        if any(report.allocated_bytes is None for report in reports):
            self._stop_recognising()
        self.track.accept_plausible(reports, now_ns)
        if self._log_progress is not None:
            self._accept_log(self._log_progress.read(now_ns), now_ns)

    def _stop_recognising(self) -> None:
        """A job that says itself how far it is needs no guess."""
        if self._recognises:
            self._log_progress = None

    def _accept_log(self, reports: list[ProgressReport], now_ns: int) -> None:
        """Take in what the log shows; what was recognised only never completes a job that was told to stop."""
        may_go_on = self._is_written(self.directory.stop) or not self.has_exit_record()
        is_bounded = self._recognises and self._steps_total > 0 and may_go_on
        self.track.accept_plausible(reports, now_ns, self._steps_total - 1 if is_bounded else STEPS_LIMIT)

    def _read_last_progress(self) -> None:
        """Take in what the job reported before it ended: also a last line without an end, as a bar leaves it."""
        self.read_progress()
        self.read_progress_file()
        if self._log_progress is not None:
            now_ns = steady_ns()
            self._accept_log(self._log_progress.read_to_end(now_ns), now_ns)

    def read_progress_file(self) -> None:
        """Take in the file that the helper leaves next to its socket: nothing is lost with a dropped datagram."""
        report = parse_report(read_file(self.run_directory / "progress.json", _PROGRESS_FILE_BYTES))
        if report is not None:
            self._stop_recognising()
            self.track.accept_plausible([report], steady_ns())

    def lower_memory_limit(self, limit_bytes: int) -> None:
        """Note that less is reserved than at the launch, because the job was measured; nothing raises a limit."""
        if 0 < limit_bytes < self.memory_limit_bytes:
            self.memory_limit_bytes = limit_bytes

    def take_usage(self, usage: JobUsage) -> None:
        """Remember what was measured."""
        self.usage = usage
        self.memory_peak_bytes = max(self.memory_peak_bytes, usage.memory_bytes or 0)

    def observe(self, readings: Iterable[GpuReading] = ()) -> AttemptObservation:
        """Close the window since the last observation, and leave the counters for a next agent.

        Args:
            readings: of the node's devices, as newly as there are any.
        """
        pause = self.pause
        memory_states, allocated_bytes = self.track.allocated.observe(self.memory_peak_bytes)
        window = self.track.close_window()
        if pause.changes != self.living_attempt.pause_changes:
            # It reaches across the beginning or the end of a pause.
            window = ProgressWindow(steps=0, duration_ms=0)
        newest = (self.track.steps_done, self.memory_peak_bytes)
        if newest != self._written_observation:
            self._written_observation = newest
            record: dict[str, object] = {"steps_done": newest[0], "memory_peak_bytes": newest[1]}
            if self._log_progress is not None:
                record["log"] = self._log_progress.to_record()
            refresh_json(self.directory.observed, record)
        return AttemptObservation(
            key=self.key,
            steps_done=self.track.steps_done,
            epoch=self.track.epoch,
            loss=self.track.loss,
            window_steps=window.steps,
            window_ms=window.duration_ms,
            utilization_ratio=None if pause.is_paused else self.usage.utilization_ratio,
            memory_bytes=self.usage.memory_bytes,
            memory_peak_bytes=self.memory_peak_bytes,
            checkpoint_step=self.checkpoint_step,
            quality_flags=window_doubts(self.gpu_ids, readings),
            paused_ms=pause.paused_ms,
            memory_states=memory_states,
            allocated_bytes=allocated_bytes,
            are_ranks_done=self.directory.ranks_done.exists(),
            steps_total=self.track.steps_total,
        )

    def conclude(self, *, peak_bytes: int, available_bytes: int, co_located: str) -> AttemptEnd:
        """Make the report of an ended attempt out of its exit record.

        Args:
            peak_bytes: peak device memory as the kernel's record implies, 0 when it implies nothing.
            available_bytes: device memory that others left to this attempt at its end.
            co_located: the other jobs on its devices, in words.
        """
        self._read_last_progress()
        record = self.read(self.directory.exit)
        stop = self.read(self.directory.stop)
        facts = self._exit_facts(record)
        exit_class = classify(facts)
        self.memory_peak_bytes = max(self.memory_peak_bytes, peak_bytes)
        detail = read_text(stop, "detail") or describe(exit_class, facts)
        if facts.failed_rank is not None:
            detail = f"{process_name(self.spec, facts.failed_rank)} ended first: {detail}"
        if exit_class == "gpu_oom":
            available_bytes = read_integer(stop, "available_bytes") or available_bytes
            limit = f"{self.memory_limit_bytes} bytes" if self.memory_limit_bytes else "none"
            detail += f"; limit: {limit}, peak: {self.memory_peak_bytes} bytes, co-located: {co_located}"
        self.end = AttemptEnd(
            key=self.key,
            exit_class=exit_class,
            exit_code=-1 if facts.return_code is None else facts.return_code,
            steps_done=self._steps_at_end(exit_class, facts),
            checkpoint_step=self.checkpoint_step,
            memory_peak_bytes=self.memory_peak_bytes,
            memory_available_bytes=available_bytes,
            log_tail=facts.log_tail.encode()[-_LOG_TAIL_BYTES:].decode("utf-8", "ignore"),
            detail=detail,
            failed_rank=facts.failed_rank,
        )
        return self.end

    def _steps_at_end(self, exit_class: str, facts: ExitFacts) -> int:
        """The steps of an ended attempt: one that prints each tenth has ended with success within ten of its last."""
        log, done = self._log_progress, self.track.steps_done
        if log is not None and facts.cause and facts.return_code == 0 and self._steps_total:
            # Libraries end with 0 when they are told to: what a script does behind its last step has not run then.
            return min(done, self._steps_total - 1)
        if log is None or exit_class != "done" or self._is_written(self.directory.stop):
            return done
        done = max(done, log.steps_by_last_line(facts.log_tail, self._steps_total))
        return self._steps_total if 0 < self._steps_total - done <= log.unseen_at_end else done

    def max_resident_bytes(self) -> int:
        """Peak resident set of the ended leader, as the kernel reported it to the shim."""
        return read_integer(self.read(self.directory.exit), "max_resident_bytes")

    def _exit_facts(self, record: dict[str, object] | None) -> ExitFacts:
        return_code = (record or {}).get("return_code")
        place = read_integer(record, "failed_rank", -1)
        failed_rank = self.ranks[place] if 0 <= place < len(self.ranks) else None
        tail = read_tail(self.directory, _CLASSIFIED_TAIL_BYTES, self.log_name(failed_rank)).decode("utf-8", "replace")
        if read_integer(record, "dropped_log_bytes"):  # a full disk took no more, and the shim knows the end
            tail = read_text(record, "log_tail")
        return ExitFacts(
            return_code=return_code if isinstance(return_code, int) else None,
            cause=read_text(record, "cause"),
            oom_kills=read_integer(record, "oom_kills"),
            log_tail=tail,
            checkpoint_is_new=self._checkpoint_is_new(),
            reported_failure=self.track.failure,
            failed_rank=failed_rank,
        )

    def log_name(self, rank: int | None) -> str:
        """Name of the file of one rank's output; of the only process where there are no ranks."""
        return read_log_name(self.spec, rank)

    def _own_checkpoint(self) -> Checkpoint | None:
        # Of a gang across nodes each may have the files of its own ranks only.
        return read_checkpoint(self.checkpoint_directory, may_be_part=self.spec.get("is_part") is True)

    def _checkpoint_is_new(self) -> bool:
        checkpoint = self._own_checkpoint()
        if checkpoint is None:
            return False
        try:
            return checkpoint.written_ns >= self.directory.stop.stat().st_mtime_ns
        except OSError:
            return True

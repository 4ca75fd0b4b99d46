"""The keeper of one job attempt: started as `python -I -S -E shim.py DIRECTORY`, with a few modules of ours next to it.

It outlives the agent. It starts the job at most once (a lock and a state file), copies its output into bounded logs,
holds the lease, carries out stop requests and leaves an exit record. It opens no connection: files in, files out.
A job is one process, or the ranks of a gang: where one of these ends without success the others are asked to end, and
killed when they do not; so are those that are silent for long after one has ended with 0, and servers when all have.
If it is killed itself, the job is killed with it, so that no job ever runs unwatched: everything in its process
namespace, or, where there is none, its ranks (parent-death signal).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

if not __package__:
    # As a program it knows the standard library only.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100,PTH120

from cotenant_agent.keeper import rank_ends
from cotenant_agent.keeper.deadline_watch import watch_deadlines
from cotenant_agent.keeper.job_hold import JobHold
from cotenant_agent.keeper.job_pausing import JobPauser
from cotenant_agent.keeper.job_processes import JobProcesses, children_of, start_ticks
from cotenant_agent.keeper.job_start import EXIT_CANNOT_EXECUTE, become_job
from cotenant_agent.keeper.kept_lease import KeptLease
from cotenant_agent.keeper.namespaces import INIT_PID, JobView, control_process, start_namespace
from cotenant_agent.keeper.rank_ends import SILENT_RANKS, RankEnds, RankSilence, lost_grace_ms
from cotenant_agent.keeper.rotating_log import RotatingLog, copy_output, drain_output
from cotenant_agent.keeper.shim_records import Records, changed_ns, read_counter, read_number, take_records
from cotenant_agent.keeper.standstill import StandstillHold
from cotenant_agent.keeper.start_barrier import StartBarriers
from cotenant_agent.system_clock import awake_ms, boot_ms

_TICK_MS = 100
_AWAITED_TICK_MS = 20
_LOOK_INTERVAL_MS = 1000
_PIPE_READ_BYTES = 65536
_LEFT_BEHIND_MS = 2000
_EXIT_ALREADY_STARTED = 3
_PR_SET_CHILD_SUBREAPER = 36


class AttemptSupervisor:
    """One attempt from fork to exit record."""

    def __init__(self, spec: dict[str, Any], records: Records) -> None:
        self._spec = spec
        self._records = records
        self._lease = KeptLease(records)
        self._ranks: list[dict[str, Any]] = spec.get("ranks") or [{}]
        self._logs = [RotatingLog(int(spec["log_limit_bytes"]))]
        self._logs += [RotatingLog(int(spec["log_limit_bytes"]), str(rank["log"])) for rank in self._ranks[1:]]
        self._pids: list[int] = []
        self._init = 0
        self._news = -1
        self._ends = RankEnds(len(self._ranks), sum("server" in rank for rank in self._ranks))
        self._silence = RankSilence(read_number(spec, "ranks_silent_ms") or rank_ends.RANKS_SILENT_MS)
        self._outputs = 0
        self._cause = ""
        self._kill_at_ms: int | None = None
        self._killed = False
        self._look_at_ms = self._lost_at_ms = 0
        uid = os.geteuid() if spec.get("uid") is None else int(spec["uid"])
        self._processes = JobProcesses(os.getpid(), spec.get("cgroup_procs_files", []), spec["environment"], uid)
        freeze_file = str(spec.get("cgroup_freeze_file", ""))
        self._pauser = JobPauser(self._processes, freeze_file, lambda record: records.write("paused.json", record))
        self._hold = JobHold(self._processes, freeze_file)
        self._standstill = StandstillHold(self._hold, self._lease, records, self._pauser.note_standstill)
        self._oom_kills_before = self._oom_kills()
        self._barriers = StartBarriers(len(self._ranks) if spec.get("is_early") is True else 0)

    def run(self) -> None:
        """Start the job, keep it until every process of it is gone, write the exit record."""
        outputs, endings, go = self._start()
        self._let_begin(go)
        logs = dict(zip(outputs, self._logs, strict=True))
        poller = select.poll()
        for descriptor in (*outputs, *endings):
            poller.register(descriptor, select.POLLIN)
        while not self._finished():
            self._supervise()
            for descriptor, _ in poller.poll(self._tick_ms()):
                if not self._take_in(descriptor, logs):
                    poller.unregister(descriptor)
        self._processes.kill_outsiders()
        for output, log in logs.items():
            drain_output(output, log)
        self._record_exit()

    def _tick_ms(self) -> int:
        """How long to sleep at most: a job that is prepared and waits for the word to begin waits for nothing else."""
        return _AWAITED_TICK_MS if self._barriers.are_awaited else _TICK_MS

    def _look_at_barriers(self) -> None:
        """Tell the agent that a job which was started early is prepared, and that job that it may begin."""
        if self._barriers.look_for_prepared():
            # What the disk does not take is told at the next look; the job waits meanwhile as it would anyway.
            with contextlib.suppress(OSError):
                self._records.write("prepared.json", {"prepared_boot_ms": boot_ms()})
                self._barriers.note_told()
        if (words := self._records.read("go.json")) is not None:
            self._barriers.open(words)

    def _take_in(self, descriptor: int, logs: Mapping[int, RotatingLog]) -> bool:
        """Read what has become readable; whether more may follow there."""
        if descriptor in logs:
            self._outputs += 1
            return copy_output(descriptor, logs[descriptor])
        # A namespace tells of its ranks one by one, a descriptor of a process is readable once.
        return descriptor == self._news and self._take_news()

    def _start(self) -> tuple[list[int], list[int], int]:
        """Fork the job; returns where its output arrives, what becomes readable with its end, and what lets it go."""
        pipes = [os.pipe() for _ in self._ranks]
        wait, go = os.pipe()
        supervisor = os.getpid()
        parent = INIT_PID if self._spec.get("namespaces") else supervisor
        jobs = [self._job_of(rank, pipes[rank][1], wait, go, parent) for rank in range(len(pipes))]
        if self._spec.get("namespaces"):
            self._news = self._start_in_namespace(jobs)
            endings = [self._news]
        else:
            self._pids = [_fork(job) for job in jobs]
            endings = [os.pidfd_open(pid) for pid in self._pids]
        for output, job_output in pipes:
            os.close(job_output)
            os.set_blocking(output, False)
        os.close(wait)
        self._barriers.close_jobs_ends()
        for pid in self._pids:
            self._hold.groups.add(pid)
        # The job waits for the byte on `go` until this record is on disk: it can never run twice.
        self._records.write(
            "state.json",
            {
                "boot_id": self._spec["boot_id"],
                "shim_pid": supervisor,
                "shim_start_ticks": start_ticks(supervisor),
                "job_pid": self._pids[0],
                "job_start_ticks": start_ticks(self._pids[0]),
                "ranks": [{"pid": pid, "start_ticks": start_ticks(pid)} for pid in self._pids],
                **({"init_pid": self._init, "init_start_ticks": start_ticks(self._init)} if self._init else {}),
                "started_boot_ms": boot_ms(),
                "started_wall_ms": time.time_ns() // 1_000_000,
            },
        )
        return [output for output, _ in pipes], endings, go

    def _job_of(self, rank: int, output: int, wait: int, go: int, parent: int) -> Callable[[], NoReturn]:
        """What a fork has to do to become one rank; the only process of a job is its rank 0."""
        changes = self._ranks[rank]
        barrier = self._barriers.of(rank)
        environment = {**self._spec["environment"], **changes.get("environment", {})}
        environment |= barrier.environment if barrier is not None else {}
        spec = {
            **self._spec,
            "environment": environment,
            "cpu_cores": changes.get("cpu_cores", self._spec.get("cpu_cores")),
            "argv": changes.get("argv", self._spec["argv"]),
        }

        def run_job() -> NoReturn:
            os.close(go)
            if barrier is not None:
                barrier.leave_to_job()
            become_job(spec, output, wait, parent)

        return run_job

    def _start_in_namespace(self, jobs: Sequence[Callable[[], NoReturn]]) -> int:
        """Fork the job below the first process of a namespace; returns where that tells of the job's end."""
        news, report = os.pipe()
        wanted = self._spec["namespaces"]
        try:
            view = JobView(wanted["covered"], wanted["kept"])
            self._init, self._lease.lifeline = start_namespace(jobs, view, report, watch_deadlines)
            os.set_blocking(self._lease.lifeline, False)
            os.close(report)
            line = os.read(news, _PIPE_READ_BYTES).decode("utf-8", "replace").strip()
            # In the order of their ranks: none of them has let anything begin yet.
            self._pids = children_of(self._init)
            if line != "started" or len(self._pids) != len(jobs):
                raise OSError(f"its view of the machine cannot be made: {line}")
        except OSError as error:
            # Without an exit record the attempt is lost, which is no fault of the job, and starts again.
            self._logs[0].write(f"cotenant: {error}\n".encode())
            raise
        self._processes.leave_out(self._init)
        os.set_blocking(news, False)
        return news

    def _take_news(self) -> bool:
        """Read which ranks the first process of their namespace has collected; whether it may tell of more."""
        try:
            content = os.read(self._news, _PIPE_READ_BYTES)
        except BlockingIOError:
            return True
        for line in content.decode("ascii", "replace").splitlines():
            rank, status, resident_bytes = map(int, line.split())
            self._ends.note(rank, status, resident_bytes)
        return bool(content)

    def _let_begin(self, go: int) -> None:
        """Give all ranks the word to begin, unless their time is over by now: the machine may have stood still."""
        self._look_for_stop(boot_ms())
        if self._kill_at_ms is None:
            os.write(go, b"g" * len(self._ranks))
        os.close(go)

    def _finished(self) -> bool:
        """Collect what ended; true when no process of the job is left, adopted orphans included."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return not self._is_anybody_stopping()
            if self._init and not self._ends.are_complete:
                self._take_news()
            if pid == 0:
                return False
            if pid in self._pids:
                self._ends.note(self._pids.index(pid), status, usage.ru_maxrss * 1024)
            elif pid == self._init:
                # What ends with its namespace is killed by the kernel.
                self._ends.note_killed()

    def _is_anybody_stopping(self) -> bool:
        """Whether a process of the job that is no descendant of this one may still write its checkpoint."""
        return self._kill_at_ms is not None and boot_ms() < self._kill_at_ms and self._processes.has_told_alive()

    def _supervise(self) -> None:
        now_ms = boot_ms()
        # A job that has ended was not affected by a stop that came later: its success stays one.
        is_asked = self._kill_at_ms is None and not self._ends.are_complete and not self._standstill.is_to_wait(now_ms)
        if is_asked and not self._look_for_stop(now_ms):
            self._look_for_lost_rank(now_ms)
            self._look_for_silent_ranks(now_ms)
        if self._barriers.are_closed:
            self._look_at_barriers()
        is_to_run = self._kill_at_ms is not None or self._ends.are_complete
        # The freezer of version 1 holds also what was killed.
        if is_to_run or not self._standstill.is_holding:
            self._pauser.look(None if is_to_run else self._records.read("pause.json"), now_ms)
        now_ms = boot_ms()  # It may have stood still since this look began.
        overdue = self._kill_at_ms is not None and (now_ms >= self._kill_at_ms or self._lease.end_left_ms(now_ms) <= 0)
        if overdue or (self._ends.are_complete and not self._cause):
            self._kill_everything()
        elif self._kill_at_ms is not None and self._is_time_to_look(now_ms):
            self._processes.ask_newcomers_to_stop()

    def _look_for_lost_rank(self, now_ms: int) -> None:
        """End the others where a rank ended without success; no order asked for that, so there is no cause."""
        grace_ms = self._ends.peers_grace_ms(read_number(self._spec, "stop_grace_ms"))
        if self._kill_at_ms is not None or grace_ms is None:
            return
        if self._ends.failed_rank is None:
            self._say_ranks_are_done()
            if self._ended_parts() < read_number(self._spec, "other_parts"):
                return
        if self._ends.failed_rank is not None:
            self._lost_at_ms = self._lost_at_ms or now_ms
            # Ranks that are about to end with 0 leave their servers with broken connections.
            if self._ends.is_a_server_lost and now_ms - self._lost_at_ms < _LEFT_BEHIND_MS:
                return
            self._ends.blame()
        self._begin_stop("", now_ms + grace_ms)

    def _look_for_silent_ranks(self, now_ms: int) -> None:
        """End those that one which ended with 0, here or on another node, has left behind, where they only wait."""
        # The agent notes there how far the job is.
        signs = (self._outputs, changed_ns("observed.json"))
        if self._kill_at_ms is None and self._silence.is_over(
            self._ends, signs, awake_ms(), ended_parts=self._ended_parts()
        ):
            self._begin_stop(SILENT_RANKS, now_ms + lost_grace_ms(read_number(self._spec, "stop_grace_ms")))

    def _ended_parts(self) -> int:
        """How many parts of this gang have ended with success on other nodes, but perhaps for their servers."""
        told = self._records.read("ended_parts.json") if self._spec.get("is_part") is True else None
        return read_number(told or {}, "parts")

    def _say_ranks_are_done(self) -> None:
        """Tell the agent that no rank of this node needs its servers, all having ended with 0; other nodes' may."""
        if read_number(self._spec, "other_parts") and not changed_ns("ranks_done.json"):
            self._records.write("ranks_done.json", {"ranks_done_boot_ms": boot_ms()})

    def _is_time_to_look(self, now_ms: int) -> bool:
        """Once a second: a look goes through all processes of the machine."""
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + _LOOK_INTERVAL_MS
        return True

    def _look_for_stop(self, now_ms: int, *, is_again: bool = False) -> bool:
        """Begin an end that is due; whether the job waits instead, since it has stood still within this look."""
        if (request := self._records.read("stop.json")) is not None:
            # What had ended before it was asked to is collected first: its success stays one.
            if not self._finished() and not self._ends.are_complete:
                self._begin_stop(str(request.get("cause", "stopped")), now_ms + read_number(request, "grace_ms"))
            return False
        left_ms, woken_ms = self._lease.left_ms(now_ms), boot_ms()
        # Once in a look: what reads so slowly that every reading seems a standstill would come to no end.
        if not is_again and self._standstill.has_begun_within_look(woken_ms):
            return self._standstill.is_to_wait(woken_ms) or self._look_for_stop(woken_ms, is_again=True)
        if left_ms <= 0:
            # From the deadline, not from now: after a standstill of the machine others count on the end by then.
            self._begin_stop("fenced", woken_ms + self._lease.end_left_ms(woken_ms))
        return False

    def _begin_stop(self, cause: str, kill_at_ms: int) -> None:
        self._cause = cause
        self._kill_at_ms = kill_at_ms
        if self._standstill.is_holding:
            # Another run of it may have begun: not even a checkpoint may be written beside that.
            self._kill_at_ms = boot_ms()
            self._kill_everything()
            return
        # What stands still can neither write a checkpoint nor end.
        self._pauser.look(None, boot_ms())
        self._look_at_ms = boot_ms() + _LOOK_INTERVAL_MS
        if not self._processes.ask_to_stop():
            self._signal_groups(signal.SIGTERM)

    def _signal_groups(self, number: int) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _kill_everything(self) -> None:
        self._killed = self._killed or not self._ends.are_complete
        if kill_file := self._spec.get("cgroup_kill_file"):
            with contextlib.suppress(OSError), open(kill_file, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write("1")
        self._signal_groups(signal.SIGKILL)
        self._processes.kill_children()
        self._hold.let_die()
        if self._is_time_to_look(boot_ms()):
            self._processes.kill_outsiders()

    def _oom_kills(self) -> int:
        return sum(read_counter(path, "oom_kill") for path in self._spec.get("cgroup_oom_files", []))

    def _record_exit(self) -> None:
        failed_rank = self._ends.failed_rank
        log = self._logs[failed_rank or 0]
        self._records.write_at_last(
            "exit.json",
            {
                "return_code": self._ends.return_code(was_stopped=bool(self._cause)),
                **({"failed_rank": failed_rank} if failed_rank is not None and len(self._ranks) > 1 else {}),
                "cause": self._cause,
                "killed": self._killed,
                "oom_kills": self._oom_kills() - self._oom_kills_before,
                "max_resident_bytes": self._ends.max_resident_bytes,
                "dropped_log_bytes": sum(one.dropped_bytes for one in self._logs),
                "log_tail": log.tail.decode("utf-8", "replace"),
                "ended_wall_ms": time.time_ns() // 1_000_000,
            },
        )


def _fork(job: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid == 0:
        job()
    return pid


def main() -> int:
    """Keep the attempt whose directory is the only argument."""
    os.chdir(sys.argv[1])
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return _EXIT_ALREADY_STARTED
    records = take_records(sys.argv[2:])
    if records.read("state.json") or records.read("exit.json"):
        return _EXIT_ALREADY_STARTED
    spec = records.read("spec.json")
    if spec is None:
        return EXIT_CANNOT_EXECUTE
    control_process(_PR_SET_CHILD_SUBREAPER, 1)
    AttemptSupervisor(spec, records).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

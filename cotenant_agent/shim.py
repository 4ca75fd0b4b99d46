"""The keeper of one job attempt: started as `python -I -S -E shim.py DIRECTORY`, with a few modules of ours next to it.

It outlives the agent. It starts the job at most once (a lock and a state file), copies its output into bounded logs,
holds the lease, carries out stop requests and leaves an exit record. It opens no connection: files in, files out.
If it is killed itself, the job is killed with it, so that no job ever runs unwatched: everything in its process
namespace, or, where there is none, its first process (parent-death signal).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

if not __package__:
    # As a program it knows the standard library only.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100,PTH120

from cotenant_agent.deadline_watch import tell_deadline, watch_deadlines
from cotenant_agent.job_pausing import JobPauser
from cotenant_agent.job_processes import JobProcesses, children_of, start_ticks
from cotenant_agent.job_start import EXIT_CANNOT_EXECUTE, become_job
from cotenant_agent.namespaces import INIT_PID, JobView, control_process, start_namespace
from cotenant_agent.shim_records import Records, read_counter, read_number, take_records
from cotenant_agent.system_clock import boot_ms

_TICK_MS = 100
_LOOK_INTERVAL_MS = 1000
_PIPE_READ_BYTES = 65536
_TAIL_BYTES = 8192
_DRAIN_MS = 1000
_EXIT_ALREADY_STARTED = 3
_PR_SET_CHILD_SUBREAPER = 36


class RotatingLog:
    """Two files of at most `limit_bytes` each; a full disk loses output, never the job."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._descriptor = self._open()
        self._size_bytes = os.fstat(self._descriptor).st_size
        self.dropped_bytes = 0
        self.tail = b""

    def write(self, output: bytes) -> None:
        """Append, rotating at the limit."""
        self.tail = (self.tail + output)[-_TAIL_BYTES:]
        while output:
            if self._size_bytes >= self._limit_bytes and not self._rotate():
                self.dropped_bytes += len(output)
                return
            room = self._limit_bytes - self._size_bytes
            part, output = output[:room], output[room:]
            self._append(part)
            # Also what was lost: the next rotation gives the disk room.
            self._size_bytes += len(part)

    def _append(self, part: bytes) -> None:
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(self._descriptor, part)
        self.dropped_bytes += len(part) - written

    def _rotate(self) -> bool:
        """Go on in a new file; whether there is one."""
        try:
            # Absent where the last try has moved it and found no room for its successor.
            with contextlib.suppress(FileNotFoundError):
                os.replace("out.log", "out.log.1")  # noqa: PTH105
            descriptor = self._open()
        except OSError:
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size_bytes = 0
        return True

    @staticmethod
    def _open() -> int:
        return os.open("out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class AttemptSupervisor:
    """One attempt from fork to exit record."""

    def __init__(self, spec: dict[str, Any], records: Records) -> None:
        self._spec = spec
        self._records = records
        self._deadline_ms = 0
        self._lease_grace_ms = 0
        self._log = RotatingLog(int(spec["log_limit_bytes"]))
        self._leader = 0
        self._init = 0
        self._news = self._lifeline = -1
        self._leader_gone = False
        self._status = 0
        self._max_resident_bytes = 0
        self._cause = ""
        self._kill_at_ms: int | None = None
        self._killed = False
        self._look_at_ms = 0
        uid = os.geteuid() if spec.get("uid") is None else int(spec["uid"])
        groups = spec.get("cgroup_procs_files", [])
        self._processes = JobProcesses(os.getpid(), groups, spec["environment"], uid)
        freeze_file = str(spec.get("cgroup_freeze_file", ""))
        self._pauser = JobPauser(self._processes, freeze_file, lambda record: records.write("paused.json", record))
        self._oom_kills_before = self._oom_kills()

    def run(self) -> None:
        """Start the job, keep it until every process of it is gone, write the exit record."""
        output, ending, go = self._start()
        self._let_begin(go)
        poller = select.poll()
        poller.register(output, select.POLLIN)
        poller.register(ending, select.POLLIN)
        while not self._finished():
            self._supervise()
            for descriptor, _ in poller.poll(_TICK_MS):
                if descriptor == ending:
                    poller.unregister(ending)
                elif not self._copy(output):
                    poller.unregister(output)
        self._processes.kill_outsiders()
        self._drain(output)
        self._record_exit()

    def _start(self) -> tuple[int, int, int]:
        """Fork the job; returns where its output arrives, what becomes readable with its end, and what lets it go."""
        output, job_output = os.pipe()
        wait, go = os.pipe()
        supervisor = os.getpid()
        if self._spec.get("namespaces"):
            ending = self._news = self._start_in_namespace(job_output, wait, go)
        else:
            self._leader = os.fork()
            if self._leader == 0:
                os.close(go)
                become_job(self._spec, job_output, wait, supervisor)
            ending = os.pidfd_open(self._leader)
        os.close(job_output)
        os.close(wait)
        os.set_blocking(output, False)
        # The job waits for the byte on `go` until this record is on disk: it can never run twice.
        self._records.write(
            "state.json",
            {
                "boot_id": self._spec["boot_id"],
                "shim_pid": supervisor,
                "shim_start_ticks": start_ticks(supervisor),
                "job_pid": self._leader,
                "job_start_ticks": start_ticks(self._leader),
                **({"init_pid": self._init, "init_start_ticks": start_ticks(self._init)} if self._init else {}),
                "started_boot_ms": boot_ms(),
                "started_wall_ms": time.time_ns() // 1_000_000,
            },
        )
        return output, ending, go

    def _start_in_namespace(self, job_output: int, wait: int, go: int) -> int:
        """Fork the job below the first process of a namespace; returns where that tells of the job's end."""

        def run_job() -> NoReturn:
            os.close(go)
            become_job(self._spec, job_output, wait, INIT_PID)

        news, report = os.pipe()
        wanted = self._spec["namespaces"]
        try:
            view = JobView(wanted["covered"], wanted["kept"])
            self._init, self._lifeline = start_namespace(run_job, view, report, watch_deadlines)
            os.set_blocking(self._lifeline, False)
            os.close(report)
            line = os.read(news, _PIPE_READ_BYTES).decode("utf-8", "replace").strip()
            started = children_of(self._init)
            if line != "started" or not started:
                raise OSError(f"its view of the machine cannot be made: {line}")
        except OSError as error:
            # Without an exit record the attempt is lost, which is no fault of the job, and starts again.
            self._log.write(f"cotenant: {error}\n".encode())
            raise
        self._leader = started[0]
        self._processes.leave_out(self._init)
        os.set_blocking(news, False)
        return news

    def _take_news(self) -> None:
        """Read how the job has ended, where the first process of its namespace collects it."""
        with contextlib.suppress(BlockingIOError):
            status, _, resident_bytes = os.read(self._news, _PIPE_READ_BYTES).partition(b" ")
            if resident_bytes:
                self._leader_gone = True
                self._status, self._max_resident_bytes = int(status), int(resident_bytes)

    def _let_begin(self, go: int) -> None:
        """Give the job its word to begin, unless its time is over by now: the machine may have stood still."""
        self._look_for_stop(boot_ms())
        if self._kill_at_ms is None:
            os.write(go, b"g")
        os.close(go)

    def _finished(self) -> bool:
        """Collect what ended; true when no process of the job is left, adopted orphans included."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return not self._is_anybody_stopping()
            if self._init and not self._leader_gone:
                self._take_news()
            if pid == 0:
                return False
            if pid == self._leader or (pid == self._init and not self._leader_gone):
                self._leader_gone = True
                # What ends with its namespace is killed by the kernel.
                self._status = status if pid == self._leader else signal.SIGKILL
                self._max_resident_bytes = usage.ru_maxrss * 1024

    def _is_anybody_stopping(self) -> bool:
        """Whether a process of the job that is no descendant of this one may still write its checkpoint."""
        return self._kill_at_ms is not None and boot_ms() < self._kill_at_ms and self._processes.has_told_alive()

    def _supervise(self) -> None:
        now_ms = boot_ms()
        # A job that has ended was not affected by a stop that came later: its success stays one.
        if self._kill_at_ms is None and not self._leader_gone:
            self._look_for_stop(now_ms)
        is_to_run = self._kill_at_ms is not None or self._leader_gone
        self._pauser.look(None if is_to_run else self._records.read("pause.json"), now_ms)
        overdue = self._kill_at_ms is not None and (now_ms >= self._kill_at_ms or self._has_outlived_its_lease(now_ms))
        if overdue or (self._leader_gone and self._kill_at_ms is None):
            self._kill_everything()
        elif self._kill_at_ms is not None and self._is_time_to_look(now_ms):
            self._processes.ask_newcomers_to_stop()

    def _is_time_to_look(self, now_ms: int) -> bool:
        """Once a second: a look goes through all processes of the machine."""
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + _LOOK_INTERVAL_MS
        return True

    def _has_outlived_its_lease(self, now_ms: int) -> bool:
        """Whether lease and grace are over, however long a stop may take: others count on the end by then."""
        self._read_lease()
        return self._deadline_ms > 0 and now_ms >= self._deadline_ms + self._lease_grace_ms

    def _read_lease(self) -> None:
        lease = self._records.read("lease.json") or {}
        deadline_ms = read_number(lease, "deadline_boot_ms")
        # One that is gone, or older than the newest known one, changes nothing.
        if deadline_ms > self._deadline_ms:
            self._deadline_ms, self._lease_grace_ms = deadline_ms, read_number(lease, "grace_ms")
            if self._lifeline >= 0:
                tell_deadline(self._lifeline, deadline_ms + self._lease_grace_ms)

    def _look_for_stop(self, now_ms: int) -> None:
        request = self._records.read("stop.json")
        if request is not None:
            self._begin_stop(str(request.get("cause", "stopped")), now_ms + read_number(request, "grace_ms"))
            return
        self._read_lease()
        if self._deadline_ms and now_ms >= self._deadline_ms:
            # From the deadline, not from now: after a standstill of the machine others count on the end by then.
            self._begin_stop("fenced", self._deadline_ms + self._lease_grace_ms)

    def _begin_stop(self, cause: str, kill_at_ms: int) -> None:
        self._cause = cause
        self._kill_at_ms = kill_at_ms
        # What stands still can neither write a checkpoint nor end.
        self._pauser.look(None, boot_ms())
        self._look_at_ms = boot_ms() + _LOOK_INTERVAL_MS
        if not self._processes.ask_to_stop():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._leader, signal.SIGTERM)

    def _kill_everything(self) -> None:
        self._killed = self._killed or not self._leader_gone
        kill_file = self._spec.get("cgroup_kill_file")
        if kill_file:
            with contextlib.suppress(OSError), open(kill_file, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write("1")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._leader, signal.SIGKILL)
        # What left the group becomes this process's child when its parent ends (subreaper): next tick finds it here.
        with contextlib.suppress(OSError), open("/proc/thread-self/children", encoding="utf-8") as file:  # noqa: PTH123
            for pid in file.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        if self._is_time_to_look(boot_ms()):
            self._processes.kill_outsiders()

    def _copy(self, output: int) -> bool:
        try:
            content = os.read(output, _PIPE_READ_BYTES)
        except BlockingIOError:
            return True
        self._log.write(content)
        return bool(content)

    def _drain(self, output: int) -> None:
        until_ms = boot_ms() + _DRAIN_MS
        while boot_ms() < until_ms and select.select([output], [], [], 0)[0]:
            if not self._copy(output):
                return

    def _oom_kills(self) -> int:
        return sum(read_counter(path, "oom_kill") for path in self._spec.get("cgroup_oom_files", []))

    def _record_exit(self) -> None:
        self._records.write_at_last(
            "exit.json",
            {
                "return_code": os.waitstatus_to_exitcode(self._status),
                "cause": self._cause,
                "killed": self._killed,
                "oom_kills": self._oom_kills() - self._oom_kills_before,
                "max_resident_bytes": self._max_resident_bytes,
                "dropped_log_bytes": self._log.dropped_bytes,
                "log_tail": self._log.tail.decode("utf-8", "replace"),
                "ended_wall_ms": time.time_ns() // 1_000_000,
            },
        )


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

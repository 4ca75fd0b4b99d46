"""The keeper of one job attempt: started as `python -I -S -E shim.py DIRECTORY`, with two modules of ours next to it.

It outlives the agent. It starts the job at most once (a lock and a state file), copies its output into bounded logs,
holds the lease, carries out stop requests and leaves an exit record. It opens no connection: files in, files out.
If it is killed itself, the job is killed with it (parent-death signal), so that no job ever runs unwatched.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

if not __package__:
    # As a program it knows the standard library only.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100,PTH120

from cotenant_agent.job_pausing import JobPauser
from cotenant_agent.job_processes import JobProcesses, start_ticks

_TICK_MS = 100
_LOOK_INTERVAL_MS = 1000
_PIPE_READ_BYTES = 65536
_TAIL_BYTES = 8192
_DRAIN_MS = 1000
_RECORD_PATIENCE_MS = 3_600_000
_RECORD_RETRY_S = 0.5
_EXIT_ALREADY_STARTED = 3
_EXIT_CANNOT_EXECUTE = 127
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def boot_ms() -> int:
    """Milliseconds since the machine started, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def control_process(option: int, value: int) -> None:
    """prctl(2); raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def read_record(name: str) -> dict[str, Any] | None:
    """A JSON object of the attempt's directory; None when it is absent."""
    try:
        with open(name, encoding="utf-8") as file:  # noqa: PTH123 (pathlib would double the size of this process)
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def write_record(name: str, record: dict[str, Any]) -> None:
    """Replace a JSON object of the attempt's directory for good: temporary file, fsync, rename, fsync."""
    temporary = f".{name}.shim"
    with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name)  # noqa: PTH105
    directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_record_at_last(name: str, record: dict[str, Any]) -> None:
    """Replace a JSON object, trying again while the disk is full: the end of an attempt is known here only."""
    give_up_at_ms = boot_ms() + _RECORD_PATIENCE_MS
    while True:
        try:
            write_record(name, record)
        except OSError:
            if boot_ms() >= give_up_at_ms:
                raise
            time.sleep(_RECORD_RETRY_S)
        else:
            return


def read_counter(path: str, name: str) -> int:
    """A `name value` line of a control-group file; 0 when there is none."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


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

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._log = RotatingLog(int(spec["log_limit_bytes"]))
        self._leader = 0
        self._leader_gone = False
        self._status = 0
        self._max_resident_bytes = 0
        self._cause = ""
        self._kill_at_ms: int | None = None
        self._lease: dict[str, Any] | None = None
        self._killed = False
        self._look_at_ms = 0
        uid = os.geteuid() if spec.get("uid") is None else int(spec["uid"])
        groups = spec.get("cgroup_procs_files", [])
        self._processes = JobProcesses(os.getpid(), groups, spec["environment"], uid)
        freeze_file = str(spec.get("cgroup_freeze_file", ""))
        self._pauser = JobPauser(self._processes, freeze_file, lambda record: write_record("paused.json", record))
        self._oom_kills_before = self._oom_kills()

    def run(self) -> None:
        """Start the job, keep it until every process of it is gone, write the exit record."""
        output, go = self._start()
        self._let_begin(go)
        poller = select.poll()
        poller.register(output, select.POLLIN)
        leader = os.pidfd_open(self._leader)
        poller.register(leader, select.POLLIN)
        while not self._finished():
            self._supervise()
            for descriptor, _ in poller.poll(_TICK_MS):
                if descriptor == leader:
                    poller.unregister(leader)
                elif not self._copy(output):
                    poller.unregister(output)
        self._processes.kill_outsiders()
        self._drain(output)
        self._record_exit()

    def _start(self) -> tuple[int, int]:
        output, job_output = os.pipe()
        wait, go = os.pipe()
        supervisor = os.getpid()
        self._leader = os.fork()
        if self._leader == 0:
            os.close(go)
            become_job(self._spec, job_output, wait, supervisor)
        os.close(job_output)
        os.close(wait)
        os.set_blocking(output, False)
        # The job waits for the byte on `go` until this record is on disk: it can never run twice.
        write_record(
            "state.json",
            {
                "boot_id": self._spec["boot_id"],
                "shim_pid": supervisor,
                "shim_start_ticks": start_ticks(supervisor),
                "job_pid": self._leader,
                "job_start_ticks": start_ticks(self._leader),
                "started_boot_ms": boot_ms(),
                "started_wall_ms": time.time_ns() // 1_000_000,
            },
        )
        return output, go

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
            if pid == 0:
                return False
            if pid == self._leader:
                self._leader_gone = True
                self._status = status
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
        self._pauser.look(None if is_to_run else read_record("pause.json"), now_ms)
        overdue = self._kill_at_ms is not None and now_ms >= self._kill_at_ms
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

    def _look_for_stop(self, now_ms: int) -> None:
        request = read_record("stop.json")
        if request is not None:
            self._begin_stop(str(request["cause"]), now_ms + int(request["grace_ms"]))
            return
        # One that is gone, e.g. with its folder, or being written at this instant, holds as it was last read.
        self._lease = lease = read_record("lease.json") or self._lease
        if lease is not None and now_ms >= int(lease["deadline_boot_ms"]):
            # From the deadline, not from now: after a standstill of the machine others may count on the end.
            self._begin_stop("fenced", int(lease["deadline_boot_ms"]) + int(lease["grace_ms"]))

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
        write_record_at_last(
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


def open_without_links(path: str) -> int:
    """A directory whose every component is a directory and no link; raises OSError."""
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for component in path.strip("/").split("/"):
        if component:
            below = os.open(component, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    return descriptor


def become_job(spec: dict[str, Any], output: int, wait: int, supervisor: int) -> NoReturn:
    """In the child: put on every restriction, wait for the word, become the job's program."""
    try:
        os.setsid()
        for path in spec.get("cgroup_procs_files", []):
            with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write("0")
        if spec.get("cpu_cores"):
            os.sched_setaffinity(0, spec["cpu_cores"])
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if spec.get("uid") is not None:
            os.setgroups([])
            os.setgid(int(spec["gid"]))
            os.setuid(int(spec["uid"]))
        os.umask(0o077)
        # After the change of user, which would clear it.
        control_process(_PR_SET_NO_NEW_PRIVS, 1)
        control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor or os.read(wait, 1) != b"g":
            os._exit(_EXIT_CANNOT_EXECUTE)
        os.fchdir(open_without_links(spec["working_directory"]))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execve(spec["argv"][0], spec["argv"], spec["environment"])
    except BaseException as error:
        os.write(2, f"cotenant: cannot start {spec['argv'][0]}: {error}\n".encode())
    os._exit(_EXIT_CANNOT_EXECUTE)


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
    if read_record("state.json") or read_record("exit.json"):
        return _EXIT_ALREADY_STARTED
    spec = read_record("spec.json")
    if spec is None:
        return _EXIT_CANNOT_EXECUTE
    control_process(_PR_SET_CHILD_SUBREAPER, 1)
    AttemptSupervisor(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A process namespace and a mount namespace for one attempt; like the shim it needs the standard library only.

The shim stays outside. It forks the namespace's first process, which starts the job, collects what ends, and watches
what it is given to watch: when that one goes, the kernel kills everything in the namespace, whatever session, parent or
program it has. In it /proc shows the job's own processes, and the agent's folder only what is the job's own. Devices,
libraries, /tmp, /dev/shm and the network stay what they are.

An agent that is not root makes a user namespace first, in which its user is the same. As a program,
`python -I -S -E namespaces.py DIRECTORY` tries everything once and prints why it is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUSER = 0x1000_0000
_CLONE_NEWPID = 0x2000_0000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 32, 4096, 16384, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER = 36
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21
_COVER = "mode=0711,size=1m,nr_inodes=1k"
_MESSAGE_BYTES = 4096

INIT_PID = 1
"""Of the first process, as the job sees it."""


class JobView(NamedTuple):
    """What an attempt sees of the machine's folders.

    Attributes:
        covered: Folders that appear empty, as resolved paths.
        kept: Folders that are there nevertheless, inside covered ones.
    """

    covered: Sequence[str] = ()
    kept: Sequence[str] = ()


class Others:
    """Everything in the namespace whose first process this is, but for that process; nothing where that is in doubt.

    Args:
        outer: Names the namespace of its maker (`process_namespace`); empty = unknown.
    """

    def __init__(self, outer: str) -> None:
        self._outer = outer

    def signal(self, number: int) -> bool:
        """Signal all others at once, whatever they start meanwhile; False, and no signal, outside of such a namespace.

        From the first process of a namespace -1 reaches what is in it; from any other it reaches a whole machine.
        """
        if os.getpid() != INIT_PID or process_namespace() in ("", self._outer) or not self._outer:
            return False
        # No other process is left.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, number)
        return True


def process_namespace() -> str:
    """Name the process namespace of this process; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return ""


def control_process(option: int, value: int) -> None:
    """prctl(2); raises OSError."""
    _check(_libc().prctl(option, value, 0, 0, 0), f"prctl {option}")


def start_namespace(
    run_jobs: Sequence[Callable[[], NoReturn]],
    view: JobView,
    report: int,
    watch: Callable[[int, Callable[[int], bool]], None] | None = None,
) -> tuple[int, int]:
    """Fork the first process of new namespaces; the caller must be a subreaper and becomes its parent.

    That process ends with the caller.

    Args:
        run_jobs: Called in one process each, which are the job's; they have the next numbers of the namespace.
        view: What the job sees of folders.
        report: Where the first process writes lines: `started`, then `RANK STATUS PEAK_RESIDENT_BYTES` of each of these
            that has ended, or why the job could not be started.
        watch: Called in the first process, when the job has begun, with its end of a pipe from the caller, and with
            what signals everything else in the namespace.

    Returns:
        Its number, as the caller counts, and the caller's end of that pipe.

    Raises:
        OSError: the kernel refuses the namespaces.
    """
    begin, lifeline = os.pipe()
    answer, told = os.pipe()
    others = Others(process_namespace())
    watch_others = None if watch is None else lambda descriptor: watch(descriptor, others.signal)
    helper = os.fork()
    if helper == 0:
        os.close(lifeline)
        os.close(answer)
        _unshare_and_fork(told, lambda: _become_init(run_jobs, view, report, begin, watch_others))
    os.close(told)
    os.close(begin)
    with os.fdopen(answer, "rb") as stream:
        found = stream.readline(_MESSAGE_BYTES).decode("utf-8", "replace").strip()
    os.waitpid(helper, 0)
    if not found.isdigit():
        os.close(lifeline)
        raise OSError(f"this machine refuses a process namespace: {found or 'no answer'}")
    # Only now is it this process's child, and may tie its life to it.
    os.write(lifeline, b"g")
    return int(found), lifeline


def drop_root_powers() -> None:
    """Take from a job that runs as root what would undo its own mounts or reach into the first process."""
    if os.geteuid() == 0:
        for capability in (_CAP_SYS_ADMIN, _CAP_SYS_PTRACE):
            # Refused where root has few powers already, as in a user namespace.
            with contextlib.suppress(OSError):
                control_process(_PR_CAPBSET_DROP, capability)


def _unshare_and_fork(told: int, become_init: Callable[[], NoReturn]) -> NoReturn:
    """In the helper: a process does not enter a PID namespace that it makes, its next child does."""
    try:
        uid, gid = os.geteuid(), os.getegid()
        with_user = uid != 0
        _unshare(_CLONE_NEWPID | _CLONE_NEWNS | (_CLONE_NEWUSER if with_user else 0))
        if with_user:
            for name, content in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
                with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(content)
        init = os.fork()
        if init == 0:
            os.close(told)
            become_init()
        os.write(told, f"{init}\n".encode())
    except BaseException as error:
        os.write(told, f"{error}\n".encode()[:_MESSAGE_BYTES])
    os._exit(0)


def _become_init(
    run_jobs: Sequence[Callable[[], NoReturn]],
    view: JobView,
    report: int,
    begin: int,
    watch: Callable[[int], None] | None,
) -> NoReturn:
    """In the first process: live as long as the shim, start the job, collect what ends."""
    try:
        # The kernel lets no signal through to it for which it has no handler; Python has one for this.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.read(begin, 1)
        control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if _is_closed(begin):
            os._exit(1)
        _arrange(view)
        ranks = {_fork(run_job): rank for rank, run_job in enumerate(run_jobs)}
        os.chdir("/")
        _keep_open_only(report, begin)
        # A job of the same user may not trace it: it would take the tie to the shim off.
        control_process(_PR_SET_DUMPABLE, 0)
        os.write(report, b"started\n")
        if watch is not None:
            watch(begin)
        _collect(ranks, report)
    except BaseException as error:
        os.write(report, f"{error}\n".encode()[:_MESSAGE_BYTES])
    os._exit(1)


def _fork(run_job: Callable[[], NoReturn]) -> int:
    # The shim has its own: the swarm of simulated machines puts another `os` into that module.
    pid = os.fork()
    if pid == 0:
        run_job()
    return pid


def _collect(ranks: Mapping[int, int], report: int) -> NoReturn:
    """Collect every orphan of the namespace until nothing is left."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            os._exit(0)
        if pid in ranks:
            os.write(report, f"{ranks[pid]} {status} {usage.ru_maxrss * 1024}\n".encode())


def _keep_open_only(*kept: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in (0, 1, 2, *kept):
            with contextlib.suppress(OSError):
                os.close(int(name))


def _is_closed(descriptor: int) -> bool:
    """Whether the other end of a pipe is gone."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return bool(poller.poll(0))


def _arrange(view: JobView) -> None:
    """Put a /proc of the namespace's own in place, and empty folders over the covered ones."""
    # What the machine mounts later still arrives; what is mounted here does not leave.
    _mount("none", "/", "", _MS_REC | _MS_SLAVE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for directory in view.covered:
        _cover(directory, [path for path in view.kept if path.startswith(f"{directory}/")])


def _cover(directory: str, kept: Sequence[str]) -> None:
    """Lay an empty folder over one, with holes where the kept ones are."""
    holes = {path: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW) for path in kept}
    _mount("tmpfs", directory, "tmpfs", _MS_NOSUID | _MS_NODEV, _COVER)
    previous = os.umask(0o066)
    for path, descriptor in holes.items():
        os.makedirs(path, mode=0o711, exist_ok=True)  # noqa: PTH103
        _mount(f"/proc/self/fd/{descriptor}", path, "", _MS_BIND | _MS_REC)
        os.close(descriptor)
    os.umask(previous)
    _mount("none", directory, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc().mount(
        source.encode(), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or 'flags'} at {target}")


def _unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _try_once(directory: str) -> str:
    """Start a namespace that looks at itself; returns why it is refused, empty = it is not."""
    control_process(_PR_SET_CHILD_SUBREAPER, 1)
    report, told = os.pipe()
    try:
        start_namespace([lambda: _look_around(directory)], JobView([directory]), told)
    except OSError as error:
        return str(error)
    os.close(told)
    with os.fdopen(report, "r", encoding="utf-8", errors="replace") as stream:
        lines = stream.read(_MESSAGE_BYTES).splitlines()
    if lines[:1] == ["started"] and lines[1:] and lines[1].split()[1] == "0":
        return ""
    return lines[0] if lines[:1] != ["started"] and lines else "what was asked for is not what was made"


def _look_around(directory: str) -> NoReturn:
    """In the job's place: whether it is alone and the folder is empty."""
    is_alone = {int(name) for name in os.listdir("/proc") if name.isdigit()} <= {INIT_PID, os.getpid()}  # noqa: PTH208
    is_empty = not os.listdir(directory)  # noqa: PTH208
    os._exit(0 if is_alone and is_empty and os.getppid() == INIT_PID else 1)


if __name__ == "__main__":
    print(_try_once(os.path.realpath(sys.argv[1])))  # noqa: T201

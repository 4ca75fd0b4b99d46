"""From a fork of the shim to the job's program; like the shim it needs the standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, NoReturn

from cotenant_agent.keeper.namespaces import control_process, drop_root_powers

EXIT_CANNOT_EXECUTE = 127
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def open_without_links(path: str) -> int:
    """A directory whose every component is a directory and no link; raises OSError."""
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for component in path.strip("/").split("/"):
        if component:
            below = os.open(component, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    return descriptor


def become_job(spec: dict[str, Any], output: int, wait: int, parent_pid: int) -> NoReturn:
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
        elif spec.get("namespaces"):
            drop_root_powers()
        os.umask(0o077)
        # After the change of user, which would clear it.
        control_process(_PR_SET_NO_NEW_PRIVS, 1)
        control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid or os.read(wait, 1) != b"g":
            os._exit(EXIT_CANNOT_EXECUTE)
        os.fchdir(open_without_links(spec["working_directory"]))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execve(spec["argv"][0], spec["argv"], spec["environment"])
    except BaseException as error:
        os.write(2, f"cotenant: cannot start {spec['argv'][0]}: {error}\n".encode())
    os._exit(EXIT_CANNOT_EXECUTE)

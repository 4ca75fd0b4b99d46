"""Starts a script in an overlay of all file systems without network: what it writes is gone when it ends.

Run as `python -I -S isolated_start.py PLAN_FILE`; standard library only, since it starts before anything else. With
`isolated` false it only sets the limits. Nothing of the machine is changed: name spaces of the user's own hold it all,
and end with their last process. Exit status 97: this machine does not allow it; the reason stands in the plan's folder.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import resource
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

NOT_ALLOWED: Final = 97
NO_PROGRAM: Final = 96
REASON_FILE: Final = "not-isolated"
_NEW_USER, _NEW_MOUNTS, _NEW_NETWORK = 0x10000000, 0x00020000, 0x40000000  # linux/sched.h
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18  # linux/mount.h
# Flags that a less privileged mount may not drop: those of statvfs have the same bits.
_KEPT_FLAGS: Final = 2 | 4 | 8 | 1024 | 2048
_OF_THE_KERNEL: Final = ("/proc", "/sys", "/dev")
_FOLDERS_MAX: Final = 2_000
_SET_FLAGS, _GET_FLAGS, _IS_UP = 0x8914, 0x8913, 1  # linux/sockios.h, linux/if.h
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def main(plan_file: str) -> None:
    """Carries the plan out; returns only where it cannot."""
    plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    if plan["isolated"]:
        try:
            _isolate(Path(plan["folder"]), plan["overlay_bytes"])
        except OSError as error:
            (Path(plan["folder"]) / REASON_FILE).write_text(str(error), encoding="utf-8")
            sys.exit(NOT_ALLOWED)
    os.chdir(plan["directory"])
    _limit(plan)
    try:
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])
    except OSError as error:
        sys.stderr.write(f"cannot start {plan['command'][0]}: {error.strerror}\n")
        sys.exit(NO_PROGRAM)


def _limit(plan: dict[str, Any]) -> None:
    soft_s, hard_s = plan["cpu_s"], plan["cpu_s"] + plan["export_cpu_s"]
    for limit, wanted in (
        (resource.RLIMIT_CPU, (soft_s, hard_s)),
        (resource.RLIMIT_DATA, (plan["memory_bytes"], plan["memory_bytes"])),
        (resource.RLIMIT_CORE, (0, 0)),
    ):
        most = resource.getrlimit(limit)[1]
        bounded = [value if most == resource.RLIM_INFINITY else min(value, most) for value in wanted]
        resource.setrlimit(limit, (bounded[0], bounded[1]))


def _isolate(folder: Path, overlay_bytes: int) -> None:
    user, group = os.getuid(), os.getgid()
    _check(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_NETWORK), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    stage = folder / "stage"
    mounts = _mount_points()
    _mount("tmpfs", str(stage), "tmpfs", 0, f"size={overlay_bytes},mode=755")
    root = stage / "root"
    _Overlays(root, stage, mounts).lay("/")
    for place in _OF_THE_KERNEL:
        (root / place[1:]).mkdir(exist_ok=True)
        _mount(place, f"{root}{place}", "", _BIND | _RECURSIVE)
    _mount("tmpfs", f"{root}/dev/shm", "tmpfs", 0, f"size={overlay_bytes},mode=1777")
    _mount(str(folder), f"{root}{folder}", "", _BIND)
    _raise_loopback()
    os.chroot(root)


def _mount_points() -> list[str]:
    """Every place below / where another file system lies, but for the kernel's own."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    places = {re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines}
    return [
        place for place in places if place != "/" and not place.startswith(tuple(f"{top}/" for top in _OF_THE_KERNEL))
    ]


class _Overlays:
    """A second root directory whose every folder is an overlay of the folder in the first.

    A folder with mount points below it cannot be a lower layer in a user's name space: it is made anew, entry by entry.
    """

    def __init__(self, root: Path, stage: Path, mounts: list[str]) -> None:
        self._root = root
        self._stage = stage
        self._mounts = mounts
        self._count = 0

    def lay(self, place: str) -> None:
        """Makes one folder of the first root appear in the second."""
        if place in _OF_THE_KERNEL:
            return
        self._count += 1
        if self._count > _FOLDERS_MAX:
            raise OSError(f"more than {_FOLDERS_MAX} folders beside mount points, at {place}")
        target = Path(f"{self._root}{place}")
        target.mkdir()
        target.chmod(Path(place).stat().st_mode & 0o7777)
        if not any(each.startswith(place.rstrip("/") + "/") for each in self._mounts):
            self._overlay(place, target)
            return
        for entry in os.scandir(place):
            self._lay_entry(entry, Path(f"{self._root}{entry.path}"))

    def _lay_entry(self, entry: os.DirEntry[str], target: Path) -> None:
        try:
            self._lay_present(entry, target)
        except FileNotFoundError:
            # Deleted since it was listed, as other programs do in /tmp all the time.
            if os.path.lexists(entry.path):
                raise

    def _lay_present(self, entry: os.DirEntry[str], target: Path) -> None:
        if entry.is_symlink():
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            self.lay(entry.path)
        elif entry.is_file():
            target.touch()
            _mount_read_only(entry.path, target)

    def _overlay(self, lower: str, target: Path) -> None:
        """Lays an overlay; where the file system cannot be a lower layer, it is there for reading only."""
        upper, work = self._stage / f"upper{self._count}", self._stage / f"work{self._count}"
        upper.mkdir()
        work.mkdir()
        upper.chmod(Path(lower).stat().st_mode & 0o7777)
        try:
            if set(lower) & set(":,\\"):
                raise OSError(f"{lower}: no overlay over a path with such characters")
            _mount("overlay", str(target), "overlay", 0, f"userxattr,lowerdir={lower},upperdir={upper},workdir={work}")
        except OSError:
            _mount_read_only(lower, target)


def _mount_read_only(place: str, target: Path) -> None:
    _mount(place, str(target), "", _BIND)
    flags = os.statvfs(target).f_flag & _KEPT_FLAGS
    try:
        _mount(place, str(target), "", _BIND | _REMOUNT | _READ_ONLY | flags)
    except PermissionError:
        if os.access(target, os.W_OK):
            raise


def _raise_loopback() -> None:
    """Lets processes of one machine talk to each other: gloo and torchrun do."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(opened, _GET_FLAGS, request))[1]
        fcntl.ioctl(opened, _SET_FLAGS, struct.pack("16sh", b"lo", flags | _IS_UP))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    result = _LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) if data else None)
    _check(result, f"mount {kind or 'bind'} on {target}")


def _check(result: int, deed: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{deed}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1])
